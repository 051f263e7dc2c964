"""Has scripts of Hugging Face's Accelerate follow the size of the job.

Accelerate reads the number of processes once, and gives each process its part of an epoch by samplers of its
own. It loads one batch ahead, to know which batch is the last. Here, loaders.py deals the batches out, and
tells which is the last. So no batch is loaded ahead of a resize.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from horovod_elastic.declared import Declared
from horovod_elastic.worker.ddp import script_frames, training_loop
from horovod_elastic.worker.ddp.deal import BatchRule
from horovod_elastic.worker.ddp.frameworks.accelerate_trackers import Trackers
from horovod_elastic.worker.ddp.sources import Source
from horovod_elastic.worker.ddp.training_loop import TrainingLoop
from horovod_elastic.worker.state_messages import StatePart

# --- the number of processes ----------------------------------------------------------------------------


def patch_state(module: ModuleType) -> None:
    """Hook accelerate.state: what Accelerate believes about the processes.

    A newcomer is told the number of the base until it joins. Founders have begun with it, too, so that a
    script computes the same totals on all workers. It is not the main process then, so that it begins no
    trackers.
    """
    loop = training_loop.current()
    partial = module.PartialState
    made = partial.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        fresh = not partial._shared_state
        made(self, *args, **kwargs)
        if fresh and loop.is_new:
            partial._shared_state["num_processes"] = loop.base
            partial._shared_state["process_index"] = max(1, loop.group.rank())

    def arrived(_: bool) -> None:
        for kind in (partial, module.AcceleratorState):
            if "num_processes" in kind._shared_state:
                kind._shared_state["num_processes"] = loop.group.size()
                kind._shared_state["process_index"] = loop.group.rank()

    partial.__init__ = init
    loop.on_arrival(arrived)


def patch_scheduler(module: ModuleType) -> None:
    """Hook accelerate.scheduler: schedulers go one step for each process, whose batch they stand for.

    If the global batch stays that of the base, so do the steps.
    """
    loop = training_loop.current()
    kind = module.AcceleratedScheduler
    original = kind.step
    partial = sys.modules["accelerate.state"].PartialState  # AcceleratorState copies it whenever it is asked
    shared = module.AcceleratorState._shared_state, partial._shared_state

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        if not loop.is_resizable or loop.rule is not BatchRule.KEEP:
            original(self, *args, **kwargs)
            return
        with _as_many(loop.base, shared):
            original(self, *args, **kwargs)

    kind.step = step


@contextlib.contextmanager
def _as_many(processes: int, shared: tuple[dict[str, Any], ...]) -> Iterator[None]:
    present = [each["num_processes"] for each in shared]
    try:
        for each in shared:
            each["num_processes"] = processes
        yield
    finally:
        for each, number in zip(shared, present, strict=True):
            each["num_processes"] = number


# --- what an Accelerator knows --------------------------------------------------------------------------


def patch_accelerator(module: ModuleType) -> None:
    """Hook accelerate.accelerator: newcomers take over its counters, and what the script has registered."""
    loop = training_loop.current()
    kind = module.Accelerator
    made = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if loop.is_resizable:
            accelerator = weakref.ref(self)
            loop.captured.part(lambda: _Counters(accelerator))
            loop.captured.declared.also(lambda: _registered(accelerator))
            loop.on_arrival(lambda lost: _begin_step(accelerator) if lost else None)
            loop.follows_rank()
            _trackers().attach(accelerator)

    save = kind.save_state

    @functools.wraps(save)
    def save_state(self: Any, output_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if loop.is_resizable and loop.is_muted:
            return output_dir  # its steps do not count, and a newcomer's place is not its own yet
        return save(self, output_dir, *args, **kwargs)

    kind.__init__, kind.save_state = init, save_state
    _trackers().patch(kind)


@functools.cache
def _trackers() -> Trackers:
    return Trackers(training_loop.current())


def _begin_step(reference: weakref.ref[Any]) -> None:
    """Begin the present step anew: batches that were accumulated for it are dealt out again."""
    if (accelerator := reference()) is not None:
        accelerator.step -= accelerator.step % max(1, accelerator.gradient_accumulation_steps)


class _Counters(StatePart):
    """How many batches an Accelerator has accumulated, and how many checkpoints it has written."""

    def __init__(self, accelerator: weakref.ref[Any]) -> None:
        self._accelerator = accelerator

    def own(self) -> Any:
        accelerator = self._accelerator()
        return None if accelerator is None else (accelerator.step, accelerator.save_iteration)

    def take_over(self, theirs: Any) -> None:
        accelerator = self._accelerator()
        if accelerator is not None and theirs is not None:
            accelerator.step, accelerator.project_configuration.iteration = theirs


def _registered(reference: weakref.ref[Any]) -> list[Declared]:
    """What the script has registered by register_for_checkpointing."""
    objects = getattr(reference(), "_custom_objects", ())
    return [
        Declared(f"register_for_checkpointing {number}", each.state_dict, each.load_state_dict, each)
        for number, each in enumerate(objects)
    ]


# --- loaders --------------------------------------------------------------------------------------------


def patch_data_loader(module: ModuleType) -> None:
    """Hook accelerate.data_loader."""
    loop = training_loop.current()
    shards = _Shards(module, loop)
    loop.loaders.understand(shards.source_of)
    shard, prepare = module.DataLoaderShard, module.prepare_data_loader
    made, iterate, skip = shard.__init__, shard.__iter__, module.skip_first_batches

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        shards.made(self)

    def iter_shard(self: Any) -> Iterator[Any]:
        known = loop.is_resizable and shards.source_of(self.base_dataloader) is not None
        return shards.iterate(self) if known else iterate(self)

    def prepare_data_loader(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if not loop.is_resizable:
            return prepare(dataloader, *args, **kwargs)
        return shards.prepare(prepare, dataloader, *args, **kwargs)

    def skip_first_batches(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        rest = skip(dataloader, *args, **kwargs)
        if loop.is_resizable and isinstance(rest, shard) and isinstance(dataloader, shard):
            loop.loaders.continues(rest.base_dataloader, dataloader.base_dataloader)
        return rest

    shard.__init__, shard.__iter__ = init, iter_shard
    module.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]
    module.prepare_data_loader = prepare_data_loader  # type: ignore[attr-defined]


class _Shards:
    """The DataLoaders that Accelerate has made of those of the script."""

    def __init__(self, module: ModuleType, loop: TrainingLoop) -> None:
        self._module = module
        self._loop = loop
        self._shards: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """By the loader inside."""

    def made(self, shard: Any) -> None:
        """Remember a DataLoaderShard."""
        self._shards[shard.base_dataloader] = weakref.ref(shard)

    def prepare(self, prepare: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare a script's loader."""
        sampler = self._module.get_sampler(loader)
        if not kwargs.get("use_seedable_sampler") and getattr(sampler, "generator", self) is None:
            sampler.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        prepared = prepare(loader, *args, **kwargs)
        obstacle = self._obstacle(prepared)
        if obstacle:
            self._loop.keep_size(f"{obstacle} (Accelerate's prepare at {script_frames.caller()})")
            return prepared
        if prepared.synchronized_generator is None and getattr(sampler, "generator", None) is not None:
            # Accelerate leaves that out for one process. Others may come.
            prepared.synchronized_generator = sampler.generator
            prepared.rng_types = [*(prepared.rng_types or []), "generator"]
        return prepared

    def _obstacle(self, prepared: Any) -> str:
        """Why the loader's batches cannot be dealt out anew; "" if they can."""
        if isinstance(prepared.dataset, torch.utils.data.IterableDataset):
            return "it loads an IterableDataset, whose samples flexo cannot deal out anew"
        if type(prepared) is not self._module.DataLoaderShard:
            return "rank 0 loads the batches of all (dispatch_batches)"
        if getattr(prepared, "use_stateful_dataloader", False):
            return "its DataLoader is stateful (use_stateful_dataloader)"
        shard = prepared.batch_sampler
        if getattr(shard, "even_batches", True) is False:
            return "workers may have different numbers of batches (even_batches=False)"
        if self.source_of(prepared.base_dataloader) is None:
            inner = getattr(shard, "batch_sampler", None) or shard or prepared.sampler
            return f"its batches come from an object of the class {type(inner).__name__}"
        return ""

    def source_of(self, loader: Any) -> Source | None:
        """See Loaders.understand."""
        reference = self._shards.get(loader)
        shard = None if reference is None else reference()
        if shard is None:
            return None
        batches, skipped, split = self._whole(loader)
        if type(batches) is not BatchSampler:
            return None
        each, sampler = batches.batch_size // (self._loop.base if split else 1), batches.sampler
        return Source(
            samples=len(sampler),
            per_worker=each,
            drop_last=batches.drop_last,
            order=lambda: _order(sampler),
            epoch=shard.iteration,
            in_blocks=True,
            used=min(skipped * each * self._loop.base, len(sampler)),
            sampler=None if type(sampler) is SequentialSampler else _Sampler(sampler),
        )

    def _whole(self, loader: Any) -> tuple[Any, int, bool]:
        """The sampler of all workers' batches, how many it is to skip, and whether each batch is for all."""
        batches, skipped, split = loader.batch_sampler, 0, False
        while isinstance(batches, self._module.SkipBatchSampler):
            skipped, batches = skipped + batches.skip_batches, batches.batch_sampler
        if isinstance(batches, self._module.BatchSamplerShard):
            split, batches = batches.split_batches, batches.batch_sampler
        return batches, skipped, split

    def iterate(self, shard: Any) -> Iterator[Any]:
        """The batches of an epoch, as DataLoaderShard yields them."""
        if shard.rng_types is not None:
            self._module.synchronize_rng_states(shard.rng_types, shard.synchronized_generator)
            _trackers().tell()
        shard.begin()
        shard.set_epoch(shard.iteration)
        batches = iter(shard.base_dataloader)
        for batch in batches:
            if batches.left() == 0:
                shard.end_of_dataloader, shard.remainder = True, batches.real_samples()
            if shard.device is not None:
                batch = self._module.send_to_device(batch, shard.device, non_blocking=shard._non_blocking)
            yield batch
        shard.iteration += 1
        shard.end()


def _order(sampler: Any) -> list[int]:
    """The coming epoch's order. Accelerate's own sampler would go to the next epoch here."""
    epoch = getattr(sampler, "epoch", None)
    order = list(sampler)
    if epoch is not None:
        sampler.epoch = epoch
    return order


class _Sampler(StatePart):
    """What the orders of the coming epochs depend on, as a part of the state."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def own(self) -> Any:
        generator = getattr(self._sampler, "generator", None)
        state = generator.get_state() if isinstance(generator, torch.Generator) else None
        return state, getattr(self._sampler, "initial_seed", None)

    def take_over(self, theirs: Any) -> None:
        state, seed = theirs
        generator = getattr(self._sampler, "generator", None)
        if state is not None and isinstance(generator, torch.Generator):
            generator.set_state(state)
        if seed is not None:
            self._sampler.initial_seed = seed
