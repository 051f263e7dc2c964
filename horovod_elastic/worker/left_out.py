"""Learning-rate schedulers and gradient scalers that the script keeps beside its TorchState.

A newcomer's own ones are at their beginning while the others' have advanced: its learning rate would be
another one, and nobody would notice. After a restore they would be ahead of the optimizer. So they go with
the state. Every worker makes the same ones in the same order before it enters the training function. What the
training function makes, it makes again when it is entered again: those are the script's own business.
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
"""All that were made outside of the training function, in order."""
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
    """What is made meanwhile is not remembered."""
    global _training
    before, _training = _training, True
    try:
        yield
    finally:
        _training = before


def attach(state: Any) -> None:
    """The training function is about to be entered: save, restore and hand them over with `state`."""
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
    """What belongs to the optimizers of `state`, and is not in it."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._told = False

    def members(self) -> list[Any]:
        """In the order in which they were made."""
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
        """Of each, what it is and its own state_dict."""
        return [(type(each).__name__, each.state_dict()) for each in self.members()]

    def load_state_dict(self, theirs: list[tuple[str, Any]]) -> None:
        """The same of another worker, or saved earlier. Of another kind or number: says so, loads nothing."""
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
    """A scheduler, and those that it is made of; of lists and dictionaries, each."""
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
    """A gradient scaler is of all optimizers. A scheduler's may be the one that Horovod's was made of."""
    optimizer = getattr(made, "optimizer", None)
    if optimizer is None:
        return hasattr(made, "unscale_")
    return not parameters.isdisjoint(_parameters(iter([optimizer])))
