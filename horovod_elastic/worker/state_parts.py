"""The parts of a state that one worker gives to another (see state_sync.py).

Each handler of a Horovod state that synchronises in Horovod's own way is a part. Other handlers synchronise
by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod.common.elastic import ObjectState, State
from horovod.torch.elastic import state as horovods

from horovod_elastic.worker import attached, sampler_order, spare_memory
from horovod_elastic.worker.state_messages import StatePart
from horovod_elastic.worker.torch_parts import ModelPart, OptimizerPart


def synced_by_horovod(state: State) -> bool:
    """Whether `state` synchronises in Horovod's own way, which this package knows."""
    definers = {kind for kind in type(state).__mro__ if "sync" in vars(kind)}
    return isinstance(state, horovods.TorchState) and definers == {horovods.TorchState, ObjectState, State}


def obstacle(state: State) -> str:
    """Why the base of an opportunistic job cannot keep this state; "" if it can.

    A part with a sync of its own can only be sent from one worker to the others.
    """
    if not synced_by_horovod(state):
        return f"the class of its state, {type(state).__name__}, synchronises in a way of its own"
    others = [name for name, handler in state._handlers.items() if _part(handler) is None]
    return f"the handler of its state.{others[0]} synchronises in a way of its own" if others else ""


def parts_of(state: State) -> list[StatePart]:
    """The parts of a state that is `synced_by_horovod`. The state's attributes come last."""
    parts = [part for handler in state._handlers.values() if (part := _part(handler)) is not None]
    return [*parts, _Objects(state)]


def settle(state: State, parts: Iterable[StatePart]) -> None:
    """End a change, on all ranks. Handlers that are no parts synchronise now, each in its own way."""
    for part in parts:
        part.settle()
    for handler in state._handlers.values():
        if _part(handler) is None:
            handler.sync()


def small(parts: Iterable[StatePart]) -> list[StatePart]:
    """The parts without the tensors of a model or an optimizer."""
    return [part for part in parts if not isinstance(part, ModelPart | OptimizerPart)]


def orders_of(state: ObjectState) -> StatePart:
    """A part in addition to `parts_of`: the samplers' orders, for newcomers."""
    return _Orders(state)


class _Sampler:
    """Anything with state_dict and load_state_dict that is handled as Horovod handles a sampler."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._theirs: Any = None

    def own(self) -> Any:
        return self._sampler.state_dict()

    room = own

    def take_over(self, theirs: Any) -> None:
        self._theirs = theirs

    def settle(self) -> None:
        # On rank 0, too: this divides the rest of the epoch among the present workers.
        self._sampler.load_state_dict(self.own() if self._theirs is None else self._theirs)


class _Orders:
    """The orders of this epoch's samples. A sampler takes longer to make its order than to receive it."""

    def __init__(self, state: ObjectState) -> None:
        self._handlers = state._handlers

    def own(self) -> Any:
        return {name: sampler_order.told(handler.value) for name, handler in self._handlers.items()}

    def room(self) -> Any:
        return None

    def take_over(self, theirs: Any) -> None:
        for name, told in theirs.items():
            sampler_order.tell(self._handlers[name].value, told)

    def settle(self) -> None:
        pass


class _Objects:
    """The attributes of a state as they were last saved. Horovod synchronises these saved values."""

    def __init__(self, state: ObjectState) -> None:
        self._state = state
        self._taken = False

    def own(self) -> Any:
        return self._state._saved_state

    room = own

    def take_over(self, theirs: Any) -> None:
        self._state._saved_state = theirs
        self._taken = True

    def settle(self) -> None:
        attached.set_attributes(self._state, from_another=self._taken)


def _part(handler: horovods.StateHandler) -> StatePart | None:
    """The part for a handler; None if the handler synchronises in a way of its own."""
    sync = type(handler).sync
    if sync is horovods.ModelStateHandler.sync:
        return ModelPart(handler.value)
    if sync is horovods.OptimizerStateHandler.sync:
        return OptimizerPart(handler.value, lambda: spare_memory.to_receive(handler))
    if sync is not horovods.SamplerStateHandler.sync:
        return None
    return _Sampler(handler if hasattr(handler, "state_dict") else handler.value)
