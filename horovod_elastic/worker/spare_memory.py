"""A newcomer makes the memory for its optimizers' states while it waits, not when everybody waits for it.

An optimizer has no state before its first step, and only the optimizer knows the form of its state. So
another optimizer of the same class takes a step with a stand-in of each parameter, one after the other. The
stand-in's gradient is zero. The script's parameters, gradients and optimizers stay as they are. If an
optimizer cannot do that, its memory is made when the state comes. So is all memory on a GPU.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

_HOROVODS_OPTIMIZERS = "horovod.torch.optimizer"
"""The module of classes that Horovod makes, each a subclass of the class of the script's optimizer."""
_TO_RECEIVE, _TO_SAVE = "_flexo_to_receive", "_flexo_to_save"
"""Attributes of handlers that hold spare memory: states by the parameter's number, as in a state_dict."""


def make(state: Any) -> None:
    """Make spare memory for all optimizers that have no state yet. The memory stays until it is dropped."""
    for handler in _handlers(state):
        try:
            made = dict(_states(handler.value))
            setattr(handler, _TO_SAVE, copy.deepcopy(made))
            setattr(handler, _TO_RECEIVE, made)
        except Exception:  # any error of a script's own optimizer: without spare memory it is only slower
            _drop(handler, _TO_RECEIVE, _TO_SAVE)


def drop(state: Any, *, but_to_save: bool = False) -> None:
    """Drop the unused spare memory; `but_to_save`: keep the memory that the first save may be written to."""
    for handler in _handlers(state):
        _drop(handler, _TO_RECEIVE, *(() if but_to_save else (_TO_SAVE,)))


def to_receive(handler: Any) -> dict[int, Any]:
    """The memory into which the handler's optimizer state may be received, by the parameter's number."""
    return getattr(handler, _TO_RECEIVE, {})


def to_save(handler: Any) -> Any:
    """The memory to which the optimizer's state_dict may be saved, once there is a state; else None."""
    made = handler.__dict__.pop(_TO_SAVE, None) if handler.value.state else None
    return {"state": made} if made else None


def _handlers(state: Any) -> Iterator[Any]:
    for handler in getattr(state, "_handlers", {}).values():
        if isinstance(handler.value, torch.optim.Optimizer):
            yield handler


def _drop(handler: Any, *attributes: str) -> None:
    for attribute in attributes:
        handler.__dict__.pop(attribute, None)


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, dict[str, Any]]]:
    """The states that the optimizer will keep for its parameters, by the parameter's number."""
    if optimizer.state:
        return
    numbers = itertools.count()
    for group in optimizer.param_groups:
        options = copy.deepcopy({name: value for name, value in group.items() if name != "params"})
        for parameter, number in zip(group["params"], numbers, strict=False):
            if parameter.requires_grad and parameter.device.type == "cpu":
                yield number, _state_after_a_step(optimizer, parameter, options)


def _state_after_a_step(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, options: dict[str, Any]
) -> dict[str, Any]:
    stand_in = torch.zeros_like(parameter.detach()).requires_grad_()
    stand_in.grad = torch.zeros_like(stand_in)
    kind: Any = type(optimizer)
    if kind.__module__ == _HOROVODS_OPTIMIZERS:
        kind = kind.__mro__[1]
    trial = kind.__new__(kind)
    group = {"params": [stand_in], **options}
    trial.__setstate__({"defaults": optimizer.defaults, "state": defaultdict(dict), "param_groups": [group]})
    trial.step()
    return dict(trial.state[stand_in])
