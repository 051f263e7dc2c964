"""Objects with state_dict and load_state_dict in a TorchState: saved, restored and handed over in place.

Horovod handles models, optimizers and samplers in this way. Horovod keeps every other object as it is, and
sends a pickled copy of it. The copy of a learning-rate scheduler has a copy of the optimizer, and sets the
learning rate of that copy. A restore does not bring the scheduler back. So flexo handles schedulers, gradient
scalers and the like by their state_dict, and also lists and dictionaries of them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

LEFT_OUT = "(learning-rate schedulers and gradient scalers)"
"""Handler name, in a state, for objects that the script keeps beside it: no argument can have this name."""
_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})


def is_stateful(value: Any) -> bool:
    """Whether `value` has the methods of PyTorch's protocol Stateful."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def capture(value: Any) -> Any:
    """The state_dict of `value`; for a list, tuple or dictionary, one state_dict for each element."""
    if type(value) is dict:
        return {key: capture(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [capture(each) for each in value]
    return value.state_dict()


def put_back(value: Any, captured: Any) -> None:
    """Load into `value` what `capture` returned. `captured` is not changed."""
    if type(value) is dict:
        for key, each in value.items():
            put_back(each, captured[key])
    elif type(value) in (list, tuple):
        for each, its in zip(value, captured, strict=True):
            put_back(each, its)
    elif hasattr(value, "param_groups"):
        load_optimizer(value, captured)
    elif hasattr(value, "named_parameters"):
        value.load_state_dict(captured)
    else:
        value.load_state_dict(copy.deepcopy(captured))
        if hasattr(value, "unscale_"):
            from horovod_elastic.core.c10d import torchs_own

            torchs_own.begin_step(value)


def load_optimizer(optimizer: Any, state: Any) -> None:
    """Call `optimizer.load_state_dict(state)`, but keep the present dictionaries of parameter groups.

    PyTorch replaces them with new dictionaries. Horovod's optimizer shares its dictionaries with the
    optimizer that it was made of, and a scheduler may refer to that optimizer.
    """
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        if group is not loaded:
            group.clear()
            group.update(loaded)
    optimizer.param_groups = groups


def patch(module: ModuleType) -> None:
    """Patch horovod.torch.elastic.state, so that a TorchState keeps stateful objects in handlers too."""
    known = module._get_handler

    class StatefulHandler(module.SamplerStateHandler):  # type: ignore[misc,name-defined]
        """The handler of a stateful object, which is synchronized as samplers are."""

        def __init__(self, value: Any) -> None:
            self.value = value
            self.save()

        def save(self) -> None:
            self._saved = copy.deepcopy(capture(self.value))

        def restore(self) -> None:
            put_back(self.value, self._saved)

        def state_dict(self) -> Any:
            return capture(self.value)

        def load_state_dict(self, state: Any) -> None:
            put_back(self.value, state)

    def get_handler(value: Any) -> Any:
        handler = known(value)
        if handler is None and _all_stateful(value):
            handler = StatefulHandler(value)
        return handler

    def restore(self: Any) -> None:
        load_optimizer(self.value, self._saved_optimizer_state)

    module._get_handler = get_handler  # type: ignore[attr-defined]
    module.StatefulHandler = StatefulHandler  # type: ignore[attr-defined]
    module.OptimizerStateHandler.restore = restore


def handler_of(value: Any) -> Any:
    """A Horovod handler for a stateful `value`. Call it after `patch`."""
    return sys.modules["horovod.torch.elastic.state"].StatefulHandler(value)


def _all_stateful(value: Any) -> bool:
    each = list(leaves(value))
    return bool(each) and all(map(is_stateful, each))


def leaves(value: Any) -> Iterator[Any]:
    """All elements of nested lists, tuples and dictionaries; for any other value, the value itself."""
    if type(value) is dict:
        for each in value.values():
            yield from leaves(each)
    elif type(value) in (list, tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def mixed(value: Any) -> Any:
    """The first scheduler, optimizer or the like in a list, tuple or dictionary; None if there is none."""
    if type(value) not in (dict, list, tuple):
        return None
    return next((each for each in leaves(value) if is_stateful(each)), None)


def copied(value: Any) -> Any:
    """A copy of `value`, if it consists of numbers, text, tensors and containers; other objects stay shared.

    Horovod saves attributes by reference. A list that training appends to would not go back to the commit.
    """
    if type(value) in _IMMUTABLE:
        return value
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple, set):
        immutable = _IMMUTABLE.issuperset(map(type, value))
        return type(value)(value if immutable else map(copied, value))
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value
