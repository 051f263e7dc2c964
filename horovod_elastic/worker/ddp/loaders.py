"""DataLoaders of elastic scripts: what they yield follows the workers of the present generation.

A DataLoader that gives each worker its part of an epoch has its batches dealt out anew in each generation
(deal.py): one over a DistributedSampler, or one that a framework has prepared. Each sample is used once an
epoch. Batches that worker processes have loaded before a resize, but the script has not seen, are loaded
again by those to whom they then belong.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod_elastic import reproducible
from horovod_elastic.worker.ddp import own_samplers, parts_of_ranks, torchs_own
from horovod_elastic.worker.ddp.batch_indices import Dealt
from horovod_elastic.worker.ddp.batch_seeds import BatchSeeds
from horovod_elastic.worker.ddp.iteration import Iteration
from horovod_elastic.worker.ddp.sources import (
    MOST_OF_EPOCH,
    Source,
    SourceOf,
    deal_of,
    of_distributed_sampler,
    sampler_of,
)

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.training_loop import TrainingLoop


MOST_TOLD = 64
"""Loaders whose batches newcomers are told."""


@dataclass(slots=True)
class History:
    """What has been done with a DataLoader. `number`: which one of the process's DataLoaders it is."""

    number: int
    trains: bool = False
    """Whether an optimizer has taken a step between two of its batches."""
    begun: int = 0
    """How often an iteration over it has begun."""
    phase: int = -1
    """Which of the loaders it is with which the script trains one after the other; -1: it does not train."""


class Loader:
    """What is known of a DataLoader."""

    def __init__(self, loader: Any, history: History, sources: list[SourceOf]) -> None:
        self.history = history
        self._sources = sources
        self.iteration: Iteration | None = None
        """The iteration that has begun last."""
        self._last = -1
        """Its ordinal."""
        self.alike = 1
        """The number of workers that have the same samples: those of a unit, or each one has its own."""
        self.first_with: Any = None
        """The random numbers with which the first iteration began, in reproducible mode."""
        self._loader = weakref.ref(loader)
        self.loads = 0
        """A digest of what it loads, if flexo does not deal its samples out; else 0."""

    def source(self) -> Source | None:
        """Where its batches come from; None for a loader whose batches are left alone."""
        loader = self._loader()
        if loader is None:
            return None
        return next((found for source_of in self._sources if (found := source_of(loader))), None)

    def begins(self) -> int:
        """The ordinal of an iteration that begins now: larger than those before, and alike on all workers.

        A worker that resumes from a checkpoint has begun fewer iterations than the others. So where a script
        says its epochs, they count; MOST_OF_EPOCH is for the iterations between two of them.
        """
        begun = self.history.begun
        self.history.begun += 1
        loader, source = self._loader(), self.source()
        if not begun and source is None and loader is not None:
            self.loads = parts_of_ranks.digest(loader)
        if source is not None:
            ordinal = MOST_OF_EPOCH * source.epoch if source.says_epoch else max(source.epoch, begun)
        else:
            told = 0 if loader is None else getattr(sampler_of(loader), "epoch", 0)
            ordinal = max(int(told), begun) if isinstance(told, int) else begun
        self._last = max(self._last + 1, ordinal)
        return self._last


class Loaders:
    """All DataLoaders of the process."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._sources: list[SourceOf] = [of_distributed_sampler, own_samplers.source_of]

    def understand(self, source_of: SourceOf) -> None:
        """Have `source_of` asked for the sources of loaders, too: it knows those of a framework."""
        self._sources.append(source_of)

    def made(self, loader: Any, alike: int) -> None:
        """Remember a DataLoader. `alike`: see Loader."""
        self._known[loader] = known = Loader(loader, History(next(self._numbers)), self._sources)
        known.alike = alike

    def batches(self) -> list[int]:
        """The batch of each DataLoader, in the order in which they were made; 0: not known."""
        found = {known.history.number: torchs_own.batch_of(loader) for loader, known in self._known.items()}
        return [found.get(number, 0) for number in range(min(MOST_TOLD, max(found, default=-1) + 1))]

    def continues(self, loader: Any, other: Any) -> None:
        """Note that `loader` gives the rest of an epoch of `other`, to a script that resumes."""
        self._known[loader].history = self._known[other].history

    def of(self, loader: Any) -> Loader | None:
        """What is known of it."""
        return self._known.get(loader)

    def batches_of(self, loader: Any, loop: TrainingLoop) -> Any | None:
        """See torchs_own.take_batches_from."""
        known = self._known.get(loader)
        if known is None or not loop.runs:
            return None
        if known.iteration is not None and known.iteration.begins:
            return known.iteration.batches()
        source = known.source()
        if source is None:
            return None
        now = known.iteration
        if now is not None and now.given and not now.over and not loop.is_new:
            return range(len(now))
        # The script asks for the length. Until a loader is used, it hears that of the base, as founders do.
        size = loop.group.size() if known.history.begun and not loop.is_new else loop.base
        rule, base = loop.rule_for(known), loop.base // known.alike
        return Dealt(deal_of(source, base, rule), [], source.used, 0, size // known.alike)


def patch_dataloader(module: ModuleType, loop: TrainingLoop) -> None:
    """Hook torch.utils.data.dataloader.DataLoader."""
    loader = module.DataLoader
    made, begin = loader.__init__, loader.__iter__

    @functools.wraps(made)  # frameworks read the signature, to make a loader anew with another sampler
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        loop.loaders.made(self, loop.samples_alike(self))
        loop.adapt_batch(self)
        if reproducible.virtual_workers(os.environ) and not isinstance(self.worker_init_fn, BatchSeeds):
            self.worker_init_fn = BatchSeeds(self.worker_init_fn)
        loop.watch_newcomer()

    @functools.wraps(begin)
    def iterate(self: Any) -> Any:
        known = loop.loaders.of(self)
        return begin(self) if known is None or not loop.runs else Iteration(known, self, begin, loop)

    loader.__init__, loader.__iter__ = init, iterate
