"""Learning-rate schedulers and gradient scalers that the script keeps beside its TorchState.

A newcomer's schedulers and scalers are at their beginning, while the others' have advanced. The newcomer's
learning rate would differ, and nobody would notice. After a restore, schedulers and scalers would be ahead of
the optimizer. So they are saved, restored and handed over with the state. Every worker makes the same ones in
the same order before it enters the training function. Objects that the training function makes are made again
when it is entered again: they are the script's own business.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from horovod_elastic import stateful
from horovod_elastic.stateful import LEFT_OUT
from horovod_elastic.trace import say
from horovod_elastic.worker.gradients import optimizers_of

_made: list[weakref.ref[Any]] = []
"""All schedulers and scalers that were made outside of the training function, in order."""
_training = False


def patch(module: ModuleType) -> None:
    """Hook torch.optim.lr_scheduler, or the module of a GradScaler: remember what is made."""
    for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau", "GradScaler"):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and not getattr(kind, "_flexo_remembers", False):
            _remember_all_of(kind)


def _remember_all_of(kind: Any) -> None:
    # Not __init__: some of PyTorch's own schedulers do not call that of their base.
    make = kind.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        if not _training:
            _made.append(weakref.ref(made))
        return made

    kind.__new__ = new
    kind._flexo_remembers = True


@contextlib.contextmanager
def in_training_function() -> Iterator[None]:
    """A context in which objects are made without being remembered."""
    global _training
    before, _training = _training, True
    try:
        yield
    finally:
        _training = before


def attach(state: Any) -> None:
    """Save, restore and hand over schedulers and scalers with `state` from now on.

    Called just before the training function is entered.
    """
    handlers = getattr(state, "_handlers", None)
    if not isinstance(handlers, dict) or LEFT_OUT in handlers:
        return
    from horovod_elastic.worker import attached  # imports PyTorch

    attached.attach(state)
    handlers[LEFT_OUT] = stateful.handler_of(LeftOut(state))
    for name, value in state._saved_state.items():
        kept = stateful.mixed(value)
        if kept is None:
            kept = attached.among_others(state, name, value)
        if kept is not None:
            say(
                f"'{name}' in the elastic state holds a {type(kept).__name__} among other things. Workers"
                " that join get a copy of it that belongs to nothing. Pass it to TorchState by a name of its"
                " own."
            )


class LeftOut:
    """The schedulers and scalers that belong to the optimizers of `state`, and are not in `state`."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._told = False

    def members(self) -> list[Any]:
        """The schedulers and scalers, in the order in which they were made."""
        handlers = {name: each for name, each in self._state._handlers.items() if name != LEFT_OUT}
        inside = {id(each) for handler in handlers.values() for each in _with_parts(handler.value)}
        parameters = _parameters(optimizer for _, optimizer in optimizers_of(self._state))
        found = []
        for reference in list(_made):
            each = reference()
            if each is None:
                _made.remove(reference)
            elif id(each) not in inside and _belongs(each, parameters):
                found.append(each)
        return found

    def state_dict(self) -> list[tuple[str, Any]]:
        """For each member: the name of its class, and its own state_dict."""
        return [(type(each).__name__, each.state_dict()) for each in self.members()]

    def load_state_dict(self, theirs: list[tuple[str, Any]]) -> None:
        """Load the state_dict of another worker, or one that was saved earlier.

        If the members' classes or their number differ, load nothing and tell the user once.
        """
        own = self.members()
        if [type(each).__name__ for each in own] != [kind for kind, _ in theirs]:
            self._say(own, theirs)
            return
        for each, (_, saved) in zip(own, theirs, strict=True):
            stateful.put_back(each, saved)

    def _say(self, own: list[Any], theirs: list[tuple[str, Any]]) -> None:
        if self._told:
            return
        self._told = True
        here = ", ".join(type(each).__name__ for each in own) or "none"
        there = ", ".join(kind for kind, _ in theirs) or "none"
        say(
            "the learning-rate schedulers and gradient scalers of this worker are not those of the worker"
            f" that hands over the state (here: {here}; there: {there}). They stay as they are, and learning"
            " rates may differ from now on. Pass them to TorchState by name, as in"
            " TorchState(model=model, optimizer=optimizer, scheduler=scheduler), or make the same ones on"
            " every worker before hvd.elastic.run."
        )


def _with_parts(value: Any) -> Iterator[Any]:
    """The value and the schedulers that it is made of; for a list or dictionary, those of each element."""
    if type(value) is dict:
        for each in value.values():
            yield from _with_parts(each)
    elif type(value) in (list, tuple):
        for each in value:
            yield from _with_parts(each)
    else:
        yield value
        yield from getattr(value, "_schedulers", None) or ()


def _parameters(optimizers: Iterator[Any]) -> set[int]:
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


def _belongs(made: Any, parameters: set[int]) -> bool:
    """Whether the object belongs to optimizers with these parameters.

    A gradient scaler belongs to all optimizers. A scheduler's optimizer may be the one from which Horovod's
    was made.
    """
    optimizer = getattr(made, "optimizer", None)
    if optimizer is None:
        return hasattr(made, "unscale_")
    return not parameters.isdisjoint(_parameters(iter([optimizer])))


def made() -> list[Any]:
    """All schedulers and scalers that live, in the order in which they were made."""
    return [each for reference in _made if (each := reference()) is not None]
