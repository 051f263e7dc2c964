"""The state that a script has declared, handed over with what flexo captures itself.

A script declares it by flexo.elastic(...), or to its framework, as objects that belong into checkpoints.

An object that is captured anyway, such as an optimizer, is not handed over twice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from horovod_elastic import declared
from horovod_elastic.declared import Declared
from horovod_elastic.worker.state_messages import StatePart
from horovod_elastic.worker.torch_parts import ModelPart

WAY_OUT = "see flexo.elastic() in docs/howto/declare-state.md"
"""What messages about things that a script can declare end with."""
_SHARDING = "DTensor", "FullyShardedDataParallel", "DeepSpeedEngine"


class DeclaredState:
    """The declared state of this process. `captured`: the objects that other parts hand over."""

    def __init__(self, captured: Callable[[], Iterable[Any]]) -> None:
        self._captured = captured
        self._to_frameworks: list[Callable[[], Sequence[Declared]]] = []

    def also(self, units: Callable[[], Sequence[Declared]]) -> None:
        """Hand over what `units` returns, too: what the script has declared to a framework."""
        self._to_frameworks.append(units)

    def names(self) -> list[str]:
        """What must be the same on all workers: the names of all units."""
        return [unit.name for unit in self._all()]

    def values(self) -> list[Any]:
        """The objects that hold declared state."""
        return [unit.value for unit in self._all() if unit.value is not None]

    def read_by(self, loader: Any) -> list[Any]:
        """The declared objects that a DataLoader takes its batches from."""
        stream = loader.dataset if isinstance(loader.dataset, IterableDataset) else loader
        sources = stream, loader.sampler, loader.batch_sampler
        values = [unit.value for unit in declared.declared() if unit.value is not None]
        return [value for value in values if any(value is each for each in sources)]

    def models(self) -> list[torch.nn.Module]:
        """The declared models that no other part hands over."""
        return [unit.value for unit in self._units() if isinstance(unit.value, torch.nn.Module)]

    def parts(self) -> list[StatePart]:
        """The parts of the state, in the script's order."""
        return [_part(unit) for unit in self._units()]

    def memento(self) -> Callable[[], None]:
        """See Captured.memento. Models keep their parameters then, so only their buffers are remembered."""
        buffers = [(buffer, buffer.detach().clone()) for model in self.models() for buffer in model.buffers()]
        units = (unit for unit in self._units() if unit.goes_back)
        others = [unit for unit in units if not isinstance(unit.value, torch.nn.Module)]
        saved = [copy.deepcopy(unit.own()) for unit in others]

        def bring_back() -> None:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for unit, before in zip(others, saved, strict=True):
                unit.take_over(copy.deepcopy(before))

        return bring_back

    def obstacle(self, optimizers: Iterable[Any]) -> str:
        """Why a script without a DistributedDataParallel model cannot be resized; "" if it can."""
        units = declared.declared()
        if not units:
            return (
                f"it trains no model in DistributedDataParallel, so flexo does not know its state: {WAY_OUT}"
            )
        for unit in units:
            if isinstance(unit.value, torch.nn.Module) and _is_sharded(unit.value):
                return f"the model that flexo.elastic({unit.name}=...) declares is sharded over the workers"
        held = {tensor.data_ptr() for unit in units for tensor in _tensors(unit.own())}
        for optimizer in optimizers:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            if any(each.numel() and each.data_ptr() not in held for each in parameters):
                kind = type(optimizer).__name__
                return f"{kind} trains parameters that no state of flexo.elastic() holds: declare their model"
        return ""

    def _units(self) -> Iterator[Declared]:
        """The units whose state no other part hands over."""
        captured = {id(each) for each in self._captured()}
        return (unit for unit in self._all() if id(unit.value) not in captured)

    def _all(self) -> list[Declared]:
        """All units; none of an object that is declared twice."""
        units = list(declared.declared())
        known = {id(unit.value) for unit in units}
        told = (unit for of_framework in self._to_frameworks for unit in of_framework())
        return [*units, *(unit for unit in told if id(unit.value) not in known)]


class _Unit(StatePart):
    """Declared state other than a model."""

    def __init__(self, unit: Declared) -> None:
        self._unit = unit

    def own(self) -> Any:
        return self._unit.own()

    def take_over(self, theirs: Any) -> None:
        self._unit.take_over(theirs)


def _part(unit: Declared) -> StatePart:
    return ModelPart(unit.value) if isinstance(unit.value, torch.nn.Module) else _Unit(unit)


def _is_sharded(model: torch.nn.Module) -> bool:
    """Whether each worker has a part of the parameters only."""
    objects = *model.parameters(), *model.modules()
    return any(type(each).__name__ in _SHARDING for each in objects)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for each in state.values():
            yield from _tensors(each)
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _tensors(each)


def copies_of(objects: Iterable[Any]) -> list[Any]:
    """Copies of the objects' states."""
    return [copy.deepcopy(each.state_dict()) for each in objects]
