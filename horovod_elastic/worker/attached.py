"""Objects in a TorchState that have no state_dict and refer to the state's models or optimizers.

Examples are a schedule of learning rates as in "The Annotated Transformer", and a running average of a model.
Horovod saves such an object by reference, so a restore does not take it back. Horovod sends a pickled copy
with copies of model and optimizer in it, which a new worker would train instead of its own. Here the object
is pickled without the parts that belong to the state: a reference stands for each module, parameter,
optimizer and parameter group. A worker that restores the object, or takes it over from another worker, puts
its own modules, parameters, optimizers and groups in the places of the references.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from horovod_elastic import stateful
from horovod_elastic.trace import say
from horovod_elastic.worker.gradients import optimizers_of

MOST_BYTES = 64 * 2**20
"""The limit of such an object without its tensors, which may be a few times the model. The object is saved at
every commit."""
_TENSOR = "tensor"
_SAMPLER = "sampler"
"""The kind of a reference to a sampler. An object that refers to nothing else of the state, such as a data
loader, stays as Horovod keeps it."""
_FLAGS = "_flexo_attached"
"""The attribute of a state that remembers which objects refer to the state, by attribute and type."""


class Saved(dict[str, Any]):
    """A saved object: `pickled`, and copies of its `tensors`, which travel like any dictionary's tensors."""


class _TooLarge(Exception):
    pass


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST_BYTES:
            raise _TooLarge
        return super().write(data)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle is not typed
    def __init__(self, file: io.BytesIO, known: dict[int, tuple[Any, ...]]) -> None:
        super().__init__(file)
        self._known = known
        self.refers = False
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, each: Any) -> Any:
        """The reference that stands for the object; None: the object itself is pickled."""
        reference = self._known.get(id(each))
        if reference is not None:
            self.refers = self.refers or reference[0] != _SAMPLER
            return reference
        if type(each) is not torch.Tensor or not each.is_leaf:
            return None
        if id(each) not in self._numbers:
            self._numbers[id(each)] = len(self.tensors)
            self.tensors.append(each)
        return _TENSOR, self._numbers[id(each)], each.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, saved: Saved, own: dict[tuple[Any, ...], Any]) -> None:
        super().__init__(io.BytesIO(saved["pickled"]))
        self._own = own
        self._tensors = [each.detach().clone() for each in saved["tensors"]]

    def persistent_load(self, reference: Any) -> Any:
        """The object in this worker's state, or the tensor, that the reference stands for."""
        if reference[0] == _TENSOR:
            _, number, requires_grad = reference
            return self._tensors[number].requires_grad_(requires_grad)
        try:
            return self._own[reference]
        except KeyError:
            raise pickle.UnpicklingError(
                f"this worker's state has no {reference[0]} {reference[1:]}"
            ) from None


def save(state: Any, name: str, value: Any) -> Any:
    """The value to keep in a commit for the attribute `name`.

    It is a Saved if `value` is an object that refers to the state, `value` itself if it is any other object
    of a class, and otherwise a copy (stateful.copied).
    """
    if not _may_refer(value) or not hasattr(state, "_handlers"):
        return stateful.copied(value)
    flags: dict[tuple[str, type], bool] = vars(state).setdefault(_FLAGS, {})
    kind = name, type(value)
    if flags.get(kind, True):
        saved = _saved(state, name, value)
        flags[kind] = saved is not None
        if saved is not None:
            return saved
    return value


def bring_back(state: Any, name: str, saved: Any) -> Any:
    """The value that `save` was given. If the present object is of the same class, it is changed in place."""
    if not isinstance(saved, Saved):
        return stateful.copied(saved)
    present = vars(state).get(name)
    try:
        made = _Unpickler(saved, dict(_belongings(state))).load()
    except Exception as error:  # whatever the class raises
        say(f"'{name}' in the elastic state stays as it is: what was saved of it cannot be read ({error!r})")
        return present
    if _is_of_the_same_class(present, made):
        vars(present).clear()
        vars(present).update(vars(made))
        return present
    return made


def set_attributes(state: Any, *, from_another: bool = True) -> None:
    """Replaces ObjectState._set_attrs. `from_another`: whether another worker has sent the saved values."""
    for name, saved in state._saved_state.items():
        if not isinstance(saved, Saved):
            setattr(state, name, saved)
        elif from_another:
            setattr(state, name, bring_back(state, name, saved))


def attach(state: Any) -> None:
    """Save objects that refer to the state, just before the training function is entered.

    The first state that is sent to other workers is not saved by a commit.
    """
    for name, value in list(state._saved_state.items()):
        if _may_refer(value):
            state._saved_state[name] = save(state, name, value)


def among_others(state: Any, name: str, value: Any) -> Any:
    """The first object in a list, tuple or dictionary that refers to the state; None if there is none."""
    if type(value) not in (dict, list, tuple):
        return None
    leaves = (each for each in stateful.leaves(value) if _may_refer(each))
    return next((each for each in leaves if _saved(state, name, each) is not None), None)


def _may_refer(value: Any) -> bool:
    """Whether the value is an instance of a class that is not Python's own, and no tensor."""
    kind = type(value)
    return kind.__module__ != "builtins" and hasattr(value, "__dict__") and not isinstance(
        value, type | torch.Tensor
    )  # fmt: skip


def _saved(state: Any, name: str, value: Any) -> Saved | None:
    """The saved object; None if it does not refer to the state, or cannot be pickled this way."""
    file = _Bounded()
    pickler = _Pickler(file, {id(each): reference for reference, each in _belongings(state)})
    try:
        pickler.dump(value)
        if pickler.refers and _bytes_of(pickler.tensors) > MOST_BYTES + 4 * _bytes_of(_tensors_of(state)):
            raise _TooLarge
    except _TooLarge:
        if pickler.refers:
            _warn(name, value, "is too large to be copied at every commit")
        return None
    except Exception as error:  # whatever the class raises; Horovod cannot send it either
        if pickler.refers:
            _warn(name, value, f"cannot be pickled ({type(error).__name__}: {error})")
        return None
    if not pickler.refers:
        return None
    return Saved(pickled=file.getvalue(), tensors=[each.detach().clone() for each in pickler.tensors])


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _tensors_of(state: Any) -> Iterator[torch.Tensor]:
    return (each for _, each in _belongings(state) if isinstance(each, torch.Tensor))


def _warn(name: str, value: Any, why: str) -> None:
    say(
        f"'{name}' in the elastic state ({type(value).__name__}) refers to the state's models or optimizers"
        f" and {why}. Workers that join get a copy of it that belongs to nothing, and a crash does not take"
        " it back to the last commit. Give its class state_dict() and load_state_dict()."
    )


def _belongings(state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The objects of the state, each with a reference that is the same on every worker."""
    yield ("state",), state
    for name, handler in state._handlers.items():
        sampler = isinstance(handler.value, torch.utils.data.Sampler)
        yield (_SAMPLER if sampler else "value", name), handler.value
    for name, optimizer in optimizers_of(state):
        yield ("optimizer", name), optimizer
        yield ("groups", name), optimizer.param_groups
        for number, group in enumerate(optimizer.param_groups):
            yield ("group", name, number), group
            for place, parameter in enumerate(group["params"]):
                yield ("parameter of", name, number, place), parameter
    for name, handler in state._handlers.items():
        value = handler.value
        if isinstance(value, torch.nn.Module):
            for path, module in value.named_modules():
                yield ("module", name, path), module
            for path, parameter in value.named_parameters():
                yield ("parameter", name, path), parameter
            for path, buffer in value.named_buffers():
                yield ("buffer", name, path), buffer


def _is_of_the_same_class(one: Any, other: Any) -> bool:
    """Whether both objects have classes of the same name, without slots.

    Classes of the script itself travel with their objects, and are other class objects on arrival.
    """
    names = [(type(each).__module__, type(each).__qualname__) for each in (one, other)]
    slots = any(vars(kind).get("__slots__") for kind in type(one).__mro__)
    return names[0] == names[1] and hasattr(one, "__dict__") and not slots
