"""Models whose parameters are spread over the workers of a unit: captured, weighed, handed over in shards.

Such a model is one of fully_shard() over a mesh of units and shards, or one that parallelize_module() has
spread and DistributedDataParallel wraps. Its tensors are DTensors. A newcomer has the same shards as the
worker of another unit that gives it the state, so only this worker's own part of each tensor is sent.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from horovod_elastic import stateful
from horovod_elastic.worker.ddp.script_frames import caller
from horovod_elastic.worker.ddp.unit_groups import AcrossUnits, UnitsGroup

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.training_loop import TrainingLoop


def patch(module: ModuleType, loop: TrainingLoop) -> None:
    """Hook fully_shard() of torch.distributed.fsdp."""
    shard = module.fully_shard

    @functools.wraps(shard)
    def fully_shard(model: Any, *args: Any, **kwargs: Any) -> Any:
        if loop.runs and (why := _why_fixed(loop, kwargs.get("mesh"))):
            loop.keep_size(f"fully_shard() at {caller()} {why}")
        made = shard(model, *args, **kwargs)
        if loop.runs and isinstance(loop.group, UnitsGroup):
            for each in made if isinstance(made, list) else [made]:
                each.set_custom_reduce_scatter(_WeighingReduceScatter(loop.group))
                loop.captured.model(each)
        return made

    module.fully_shard = fully_shard  # type: ignore[attr-defined]


def _why_fixed(loop: TrainingLoop, mesh: Any) -> str:
    """Why a job with such a model has to keep its size; "" if it has not."""
    if not isinstance(loop.group, UnitsGroup):
        return "shards the model over fixed workers; see --elastic-unit in flexo run --help"
    if mesh is None or mesh.ndim != 2 or not isinstance(mesh.get_group(0), AcrossUnits):
        return f"needs a mesh of (workers // {loop.group.unit.size}, {loop.group.unit.size})"
    return ""


class _WeighingReduceScatter:
    """The reduction of gradients to shards within a unit (torch.distributed.fsdp, ReduceScatter)."""

    def __init__(self, group: UnitsGroup) -> None:
        self._group = group

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        if self._group.scatter_weight != 1.0:
            input_tensor.mul_(self._group.scatter_weight)
        reduce = getattr(
            dist, "reduce_scatter_single", dist.reduce_scatter_tensor
        )  # the new name, and the old
        return reduce(output_tensor, input_tensor, op, group, async_op)


def own_shards(value: Any) -> Any:
    """The value, a state_dict, with this worker's shards in the place of DTensors; they share memory."""
    if isinstance(value, DTensor):
        with torch.no_grad():
            return value.to_local()
    if isinstance(value, dict):
        return {key: own_shards(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(own_shards, value))
    return value


class ShardedModelPart:
    """A model, of which each worker has its own shards; see StatePart."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def own(self) -> Any:
        """See StatePart.own."""
        return own_shards(dict(self._model.state_dict()))

    room = own

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        _write(self.own(), theirs)

    def settle(self) -> None:
        """See StatePart.settle."""


class ShardedOptimizerPart:
    """An optimizer of such a model, and its parameters; see StatePart.

    A model in tensor parallelism and DistributedDataParallel does not list its parameters any more, once it
    has made a pass. Those that the model part has, too, are sent once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def own(self) -> Any:
        """See StatePart.own."""
        parameters = {number: each.detach() for number, each in enumerate(self._parameters())}
        return own_shards({"parameters": parameters, "own": self._optimizer.state_dict()})

    room = own

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        _write(dict(enumerate(self._parameters())), theirs["parameters"])
        own, theirs = self._optimizer.state_dict(), theirs["own"]
        if {key: set(its) for key, its in own["state"].items()} != {
            key: set(its) for key, its in theirs["state"].items()
        }:
            stateful.load_optimizer(self._optimizer, {**theirs, "state": self._as_mine(theirs["state"])})
            return
        for key, its in theirs["state"].items():
            _write(own["state"][key], its)
        for group, values in zip(self._optimizer.param_groups, theirs["param_groups"], strict=True):
            group.update({name: value for name, value in values.items() if name != "params"})

    def _parameters(self) -> list[Any]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def _as_mine(self, state: Any) -> Any:
        """Another worker's state of the same shards, for an optimizer that has none yet."""
        parameters = self._parameters()
        return {
            number: {name: _like(parameters[number], value) for name, value in its.items()}
            for number, its in state.items()
        }

    def settle(self) -> None:
        """See StatePart.settle."""


def _like(param: Any, value: Any) -> Any:
    """A shard as a DTensor, if it is of this parameter's form."""
    if not isinstance(param, DTensor) or not isinstance(value, torch.Tensor):
        return value
    if value.shape != own_shards(param).shape:
        return value
    return DTensor.from_local(
        value, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def _write(own: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    """Write the values into the tensors that are there, or put them in their place."""
    for name, value in theirs.items():
        mine = own_shards(own.get(name))
        if not isinstance(mine, torch.Tensor) or not isinstance(value, torch.Tensor):
            own[name] = value
        elif mine.data_ptr() != value.data_ptr():
            with torch.no_grad():
                mine.copy_(value)
