"""A model and an optimizer as parts of a state that one worker gives to another (state_messages.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod_elastic import stateful
from horovod_elastic.worker.state_messages import is_plain


class ModelPart:
    """A model: its parameters and persistent buffers, written into the tensors that the receiver has."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def own(self) -> Any:
        """See StatePart.own."""
        return self._model.state_dict()

    room = own

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        own = self._model.state_dict()
        written = [name for name, value in theirs.items() if _is_same_memory(own.get(name), value)]
        if len(written) < len(own) or own.keys() != theirs.keys():
            self._model.load_state_dict(theirs)

    def settle(self) -> None:
        """See StatePart.settle."""


class OptimizerPart:
    """An optimizer. `spare`: memory for the state of an optimizer that has none yet, by parameter number."""

    def __init__(self, optimizer: torch.optim.Optimizer, spare: Callable[[], Any] = dict) -> None:
        self._optimizer = optimizer
        self._spare = spare

    def own(self) -> Any:
        """See StatePart.own."""
        return self._optimizer.state_dict()

    def room(self) -> Any:
        """See StatePart.room."""
        own = self.own()
        return own if own["state"] else {**own, "state": self._spare()}

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        own = self._optimizer.state_dict()
        if _structure(own) != _structure(theirs):  # this optimizer has no state yet
            stateful.load_optimizer(self._optimizer, theirs)
            return
        for key, values in theirs["state"].items():
            own["state"][key].update(values)
        for group, values in zip(self._optimizer.param_groups, theirs["param_groups"], strict=True):
            group.update({name: value for name, value in values.items() if name != "params"})

    def settle(self) -> None:
        """See StatePart.settle."""


def _structure(optimizer_state: Any) -> Any:
    states = {key: sorted(map(str, values)) for key, values in optimizer_state["state"].items()}
    return states, [len(group["params"]) for group in optimizer_state["param_groups"]]


def _is_same_memory(one: Any, other: Any) -> bool:
    return is_plain(one) and is_plain(other) and bool(one.data_ptr() == other.data_ptr())
