"""The objects of a script that make up its training state, remembered as the script makes them.

Every worker runs the same script, so the n-th model of one worker is the n-th of another.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from horovod_elastic import stateful
from horovod_elastic.worker import left_out
from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.declared_state import DeclaredState
from horovod_elastic.worker.ddp.script_variables import forget_locals, is_plain_data
from horovod_elastic.worker.state_messages import StatePart
from horovod_elastic.worker.torch_parts import ModelPart, OptimizerPart


class Captured:
    """The models, averaged models and optimizers of this process, in the order in which they were made."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []
        self._averaged: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._of_frameworks: list[Callable[[], StatePart]] = []
        self.declared = DeclaredState(self._objects)
        self._has_dropped = False
        """Whether the script may have dropped objects that live until Python collects garbage."""
        self.sharded = False
        """Whether a worker may have only a part of each tensor, as in a job with units."""

    def part(self, make: Callable[[], StatePart]) -> None:
        """Hand over one more part with the state, such as a framework's counters."""
        self._of_frameworks.append(make)

    def model(self, model: Any) -> None:
        """Remember a DistributedDataParallel model, or one of fully_shard(). It may replace another one."""
        inner = getattr(model, "module", model)
        self._models = [
            weakref.ref(each) for each in _living(self._models) if getattr(each, "module", each) is not inner
        ]
        self._has_dropped = True
        self._models.append(weakref.ref(model))

    def averaged(self, model: Any) -> None:
        """Remember an average of a model's parameters."""
        self._averaged.append(weakref.ref(model))

    def optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer."""
        self._has_dropped = True
        self._optimizers.append(weakref.ref(optimizer))

    def models(self) -> list[Any]:
        """The models that live. One of fully_shard() is a part of another, most often, and then left out."""
        found = _living(self._models)
        inner = {id(each) for model in found for each in model.modules() if each is not model}
        return [each for each in found if id(each) not in inner]

    def averaged_models(self) -> list[Any]:
        """The averages of models that live."""
        return _living(self._averaged)

    def optimizers(self) -> list[Any]:
        """The optimizers that live."""
        return _living(self._optimizers)

    def layout(self) -> str:
        """A digest of what must be the same on all workers; see torchs_own.bucket_layout."""
        forget_locals()
        if self._has_dropped:  # workers would differ in what they have not collected yet
            gc.collect()
            self._has_dropped = False
        optimizers = [[len(group["params"]) for group in each.param_groups] for each in self.optimizers()]
        others = [type(each).__name__ for each in left_out.made()]
        buckets = [torchs_own.bucket_layout(model) for model in self.models()]
        counts = len(_living(self._averaged)), len(self._of_frameworks), self.declared.names()
        return f"{' '.join(buckets)} {optimizers} {others} {counts}"

    def parts(self) -> list[StatePart]:
        """Everything that a worker without the state receives, in the same order on all workers."""
        of_model, of_optimizer = self._kinds()
        models = [of_model(each) for each in [*self.models(), *_living(self._averaged)]]
        optimizers = [of_optimizer(each) for each in self.optimizers()]
        others = [*self.declared.parts(), *(make() for make in self._of_frameworks)]
        return [*models, *optimizers, *map(_Stateful, left_out.made()), _BufferSync(self.models()), *others]

    def _kinds(self) -> tuple[Callable[[Any], StatePart], Callable[[Any], StatePart]]:
        if not self.sharded:
            return ModelPart, OptimizerPart
        from horovod_elastic.worker.ddp.sharded import ShardedModelPart, ShardedOptimizerPart

        return ShardedModelPart, ShardedOptimizerPart

    def private(self) -> list[StatePart]:
        """The parts that each rank has for itself, besides parameters and optimizers."""
        models = [*self.models(), *_living(self._averaged)]
        others = [make() for make in self._of_frameworks]
        return [
            _Buffers(models),
            _Attributes(models),
            *map(_Stateful, left_out.made()),
            _BufferSync(self.models()),
            *others,
        ]

    def memento(self) -> Callable[[], None]:
        """Remember what a script changes in a step that does not count; the function brings it back.

        The optimizers' own step does not take place in such a step. So parameters and the optimizers'
        tensors do not change.
        """
        buffers = [dict(_copies(model.named_buffers())) for model in self.models()]
        averaged = [dict(_copies(each.state_dict().items())) for each in _living(self._averaged)]
        options = [[_options(group) for group in each.param_groups] for each in self.optimizers()]
        others = [copy.deepcopy(stateful.capture(each)) for each in left_out.made()]
        bring_declared_back = self.declared.memento()

        def bring_back() -> None:
            for model, before in zip(self.models(), buffers, strict=True):
                _write(dict(model.named_buffers()), before)
            for each, before in zip(_living(self._averaged), averaged, strict=True):
                _write(each.state_dict(), before)
            for optimizer, groups in zip(self.optimizers(), options, strict=True):
                for group, values in zip(optimizer.param_groups, groups, strict=True):
                    group.update(values)
            for made, saved in zip(left_out.made(), others, strict=True):
                _load(made, saved)
            bring_declared_back()

        return bring_back

    def covered(self) -> list[Any]:
        """The models that are handed over as parts of their own, and not as variables of the script."""
        return [*self.models(), *self.declared.models()]

    def _objects(self) -> list[Any]:
        """The objects that are handed over whether or not the script declares them."""
        models = [*self.models(), *(getattr(model, "module", model) for model in self.models())]
        return [*models, *_living(self._averaged), *self.optimizers(), *left_out.made()]


class RandomNumbers(StatePart):
    """The generators of Python, NumPy and PyTorch, as a part of the state; and `another` one of PyTorch."""

    def __init__(self, another: Any = None) -> None:
        self._another = another

    def own(self) -> Any:
        """See StatePart.own."""
        numpy = sys.modules.get("numpy")
        return {
            "python": random.getstate(),
            "numpy": numpy.random.get_state() if numpy else None,
            "torch": dict(torchs_own.random_states()),
            "another": None if self._another is None else self._another.get_state(),
        }

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        random.setstate(theirs["python"])
        numpy = sys.modules.get("numpy")
        if numpy and theirs["numpy"] is not None:
            numpy.random.set_state(theirs["numpy"])
        torchs_own.set_random_states(theirs["torch"])
        if self._another is not None and theirs["another"] is not None:
            self._another.set_state(theirs["another"])


class _Buffers(StatePart):
    """The models' buffers, such as the statistics of batch normalisation."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models

    def own(self) -> Any:
        return [dict(model.named_buffers()) for model in self._models]

    def take_over(self, theirs: Any) -> None:
        for model, its in zip(self._models, theirs, strict=True):
            _write(dict(model.named_buffers()), its)


class _Attributes(StatePart):
    """The plain values that the models' modules have as attributes, such as a count of calls."""

    def __init__(self, models: list[Any]) -> None:
        self._modules = [module for model in models for module in model.module.modules()]

    def own(self) -> Any:
        return [
            {name: value for name, value in vars(module).items() if name[0] != "_" and is_plain_data(value)}
            for module in self._modules
        ]

    def take_over(self, theirs: Any) -> None:
        for module, its in zip(self._modules, theirs, strict=True):
            vars(module).update(its)


class _BufferSync(StatePart):
    """Whether the next forward pass of a DistributedDataParallel model begins with rank 0's buffers.

    It does so after a pass whose gradients were exchanged, and not after one of an evaluation.
    """

    def __init__(self, models: list[Any]) -> None:
        self._models = models

    def own(self) -> Any:
        return [getattr(model, "require_forward_param_sync", None) for model in self._models]

    def take_over(self, theirs: Any) -> None:
        for model, its in zip(self._models, theirs, strict=True):
            if its is not None:
                model.require_forward_param_sync = its


class _Stateful(StatePart):
    """A scheduler or a gradient scaler."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def own(self) -> Any:
        return stateful.capture(self._value)

    def take_over(self, theirs: Any) -> None:
        _load(self._value, theirs)


def _load(made: Any, state: Any) -> None:
    """Load a scheduler's or scaler's state.

    What a scaler notes within a step stays: a boundary may lie in the step, and workers are at the same line.
    """
    made.load_state_dict(copy.deepcopy(state))


def _living(references: list[weakref.ref[Any]]) -> list[Any]:
    return [each for reference in references if (each := reference()) is not None]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a parameter group has besides its parameters, such as the learning rate."""
    return {name: copy.copy(each) for name, each in group.items() if name != "params"}


def _copies(tensors: Any) -> Iterator[tuple[str, Any]]:
    return ((name, each.detach().clone()) for name, each in tensors if hasattr(each, "detach"))


def _write(into: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in into:
            into[name].detach().copy_(value)
