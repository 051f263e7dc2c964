"""The parts of a state that one worker gives to another (see state_sync.py).

Each handler of a Horovod state that synchronises in Horovod's own way is a part. Other handlers synchronise
by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from horovod.common.elastic import ObjectState, State
from horovod.torch.elastic import state as horovods

from horovod_elastic import stateful
from horovod_elastic.worker import attached, sampler_order, spare_memory


class StatePart(Protocol):
    """A unit that is given and taken over separately: a model, an optimizer, a sampler, the attributes."""

    def own(self) -> Any:
        """The part's state: tensors and objects that can be pickled, in dictionaries, lists and tuples."""

    def room(self) -> Any:
        """The memory, in the structure of `own`, into which a giver's tensors are received where they fit."""

    def take_over(self, theirs: Any) -> None:
        """Take over the giver's state. Tensors of `room` that fitted are in it, with the giver's values."""

    def settle(self) -> None:
        """Do the work that follows on all ranks, also on the giver."""


def synced_by_horovod(state: State) -> bool:
    """Whether `state` synchronises in Horovod's own way, which this package knows."""
    definers = {kind for kind in type(state).__mro__ if "sync" in vars(kind)}
    return isinstance(state, horovods.TorchState) and definers == {horovods.TorchState, ObjectState, State}


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
    return [part for part in parts if not isinstance(part, _Model | _Optimizer)]


def orders_of(state: ObjectState) -> StatePart:
    """A part in addition to `parts_of`: the samplers' orders, for newcomers."""
    return _Orders(state)


class _Model:
    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def own(self) -> Any:
        return self._model.state_dict()

    room = own

    def take_over(self, theirs: Any) -> None:
        own = self._model.state_dict()
        written = [name for name, value in theirs.items() if _is_same_memory(own.get(name), value)]
        if len(written) < len(own) or own.keys() != theirs.keys():
            self._model.load_state_dict(theirs)

    def settle(self) -> None:
        pass


class _Optimizer:
    def __init__(self, handler: horovods.OptimizerStateHandler) -> None:
        self._optimizer: torch.optim.Optimizer = handler.value
        self._handler = handler

    def own(self) -> Any:
        return self._optimizer.state_dict()

    def room(self) -> Any:
        own = self.own()
        return own if own["state"] else {**own, "state": spare_memory.to_receive(self._handler)}

    def take_over(self, theirs: Any) -> None:
        own = self._optimizer.state_dict()
        if _structure(own) != _structure(theirs):  # this optimizer has no state yet
            stateful.load_optimizer(self._optimizer, theirs)
            return
        for key, values in theirs["state"].items():
            own["state"][key].update(values)
        for group, values in zip(self._optimizer.param_groups, theirs["param_groups"], strict=True):
            group.update({name: value for name, value in values.items() if name != "params"})

    def settle(self) -> None:
        pass


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
        return _Model(handler.value)
    if sync is horovods.OptimizerStateHandler.sync:
        return _Optimizer(handler)
    if sync is not horovods.SamplerStateHandler.sync:
        return None
    return _Sampler(handler if hasattr(handler, "state_dict") else handler.value)


def _structure(optimizer_state: Any) -> Any:
    states = {key: sorted(map(str, values)) for key, values in optimizer_state["state"].items()}
    return states, [len(group["params"]) for group in optimizer_state["param_groups"]]


def _is_same_memory(one: Any, other: Any) -> bool:
    return is_plain(one) and is_plain(other) and bool(one.data_ptr() == other.data_ptr())


def is_plain(value: Any) -> bool:
    """Whether the value is a tensor of plain bytes. Sparse, quantised and other ones are pickled whole."""
    return bool(
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )
