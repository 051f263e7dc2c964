"""Gradients between a backward pass and the optimizer's step: no boundary falls there, no restore keeps them.

A script with `backward_passes_per_step` may call `state.commit()` after every mini-batch. In the middle of an
accumulation that call must not take effect. The gradient of the samples so far exists on this worker only. A
resize would lose the gradient of a worker that leaves, and a newcomer would have none; a commit would say
that these samples are done. So a boundary counts only when no gradient waits for its step.

The state need not hold that optimizer. It may hold the model alone, or the optimizer from which Horovod's was
made. So this module remembers every optimizer that Horovod makes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MANY_DEFERRED = 100
"""The number of deferred boundaries in a row, plus four accumulations, after which the user is told: such a
script never has a boundary between two steps."""


_made: list[weakref.ref[Any]] = []
"""Horovod's optimizers of this process, in the order in which they were made."""


def patch(module: ModuleType) -> None:
    """Hook horovod.torch.optimizer: remember every optimizer that is made."""
    for name in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        kind = getattr(module, name)
        kind.__init__ = _remembering(kind.__init__)


def _remembering(make: Any) -> Any:
    # Horovod makes a new class for each optimizer, and gives it the functions of this one.
    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _made.append(weakref.ref(self, _made.remove))

    return init


def optimizers_of(state: Any) -> Iterator[tuple[str, Any]]:
    """The names and optimizers that `state` holds. In a state that is no TorchState, they are attributes."""
    handlers = getattr(state, "_handlers", None)
    if handlers is None:
        values = ((name, value) for name, value in vars(state).items())
    else:
        values = (found for name, handler in handlers.items() for found in _each(name, handler.value))
    for name, value in values:
        if hasattr(value, "param_groups") and hasattr(value, "load_state_dict"):
            yield name, value


def _each(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        for key, each in value.items():
            yield from _each(f"{name}[{key!r}]", each)
    elif type(value) in (list, tuple):
        for number, each in enumerate(value):
            yield from _each(f"{name}[{number}]", each)
    else:
        yield name, value


def _optimizers_of_script(state: Any) -> Iterator[tuple[str, Any]]:
    """The optimizers of `optimizers_of`, and then Horovod's optimizers that the state does not hold."""
    seen = set()
    for name, optimizer in optimizers_of(state):
        seen.add(id(optimizer))
        yield name, optimizer
    for reference in list(_made):
        optimizer = reference()
        if optimizer is not None and id(optimizer) not in seen:
            yield f"DistributedOptimizer({type(optimizer).__name__})", optimizer


def waiting(state: Any) -> str:
    """The name of the first optimizer with gradients that no step has used yet; "" if there is none.

    Horovod's optimizers note every parameter in `_handles` from its first backward pass to `synchronize()`.
    """
    for name, optimizer in _optimizers_of_script(state):
        if getattr(optimizer, "_handles", None):
            return name
    return ""


def drop(state: Any) -> None:
    """Drop all gradients after a restore, so that no optimizer has gradients that were rolled back.

    Then no optimizer waits for the exchange of such gradients either.
    """
    for _, optimizer in _optimizers_of_script(state):
        if hasattr(optimizer, "_allreduce_delay"):
            _begin_anew(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _begin_anew(optimizer: Any) -> None:
    """Reset the optimizer as Horovod's `load_state_dict` does, but not without its groups.

    Horovod's function forgets those of `DistributedOptimizer(groups=...)`.
    """
    optimizer._handles = {}
    optimizer._synchronized, optimizer._should_synchronize = False, True
    optimizer.set_backward_passes_per_step(optimizer.backward_passes_per_step)
    for group in getattr(optimizer, "_group_counts", ()):
        optimizer._group_counts[group] = 0


class Deferred:
    """The number of boundaries in a row that did not count. If that goes on, the user gets one message."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._told = False

    def counts(self) -> None:
        """Note a boundary that counts."""
        self._in_a_row = 0

    def another(self, state: Any, name: str) -> str:
        """Note a boundary that does not count, because of the optimizer `name`.

        Returns the message to the user, or "".
        """
        self._in_a_row += 1
        optimizers = _optimizers_of_script(state)
        passes = sum(getattr(each, "backward_passes_per_step", 1) for _, each in optimizers)
        if self._told or self._in_a_row < MANY_DEFERRED + 4 * passes:
            return ""
        self._told = True
        return (
            f"{self._in_a_row} calls in a row of state.commit() or state.check_host_updates() had no effect:"
            f" each came between a backward pass and step() of '{name}'. So this job is neither saved nor"
            " resized. Call them after step(), when no optimizer is accumulating gradients."
        )
