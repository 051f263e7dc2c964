"""DataLoaders of elastic scripts: what they yield follows the workers of the present generation.

A DataLoader over a DistributedSampler that was made for all workers has its batches dealt out anew in each
generation (deal.py). Each sample is used once an epoch. Batches that worker processes have loaded before a
resize, but the script has not seen, are loaded again by those to whom they then belong.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod_elastic.worker.ddp.deal import BatchRule, Deal

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.training_loop import TrainingLoop


class Loader:
    """What is known of a DataLoader. `number`: which one of the process's DataLoaders it is."""

    def __init__(self, loader: Any, number: int) -> None:
        self.number = number
        self.trains = False
        """Whether an optimizer has taken a step between two of its batches."""
        self.begun = 0
        """How often an iteration over it has begun."""
        self.iteration: Iteration | None = None
        """The iteration that has begun last."""
        self._loader = weakref.ref(loader)

    def deal(self, base: int, rule: BatchRule) -> Deal | None:
        """How an epoch is dealt out; None for a loader whose batches are left alone."""
        from torch.utils.data import BatchSampler, DistributedSampler

        loader = self._loader()
        if loader is None or type(loader.sampler) is not DistributedSampler:
            return None
        if type(loader.batch_sampler) is not BatchSampler:
            return None
        batches = loader.batch_sampler
        return Deal(len(loader.sampler.dataset), batches.batch_size, base, batches.drop_last, rule)

    def order(self) -> list[int]:
        """The order of the coming epoch's samples, of a loader that has a `deal`."""
        from torch.utils.data import DistributedSampler

        loader = self._loader()
        assert loader is not None
        sampler = loader.sampler
        whole = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
        whole.set_epoch(sampler.epoch)
        return list(whole)

    def epoch(self) -> int:
        """The epoch that an iteration that begins now is in: as the script has set it, or counted."""
        loader = self._loader()
        told = getattr(getattr(loader, "sampler", None), "epoch", 0)
        return max(int(told), self.begun) if isinstance(told, int) else self.begun


class Iteration:
    """One pass over a DataLoader, as the script's `for` has it."""

    def __init__(self, known: Loader, loader: Any, begin: Any, loop: TrainingLoop) -> None:
        self.known = known
        self.epoch = known.epoch()
        if known.trains or not known.begun:
            loop.counting.batch_loop_begins()
        known.begun += 1
        known.iteration = self
        self.given = 0
        """How many batches the script has been given."""
        self.over = False
        self.start = 0
        """How many samples of the epoch's order are used by steps that count."""
        self._reached = 0
        """The same, after the batch that the script has now."""
        self._loader = loader
        self._begin = begin
        self._loop = loop
        self._deal = known.deal(loop.base, loop.rule)
        self._order = known.order() if self._deal is not None else []
        self._inner: Iterator[Any] | None = None
        self.begins = False
        """Whether the DataLoader makes its iterator now, which is to take the batches from `batches`."""

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        return self._loop.fetch(self)

    def __len__(self) -> int:
        if self._deal is None:
            return len(self._loader)
        return self.given + self._deal.steps(self._reached, self._loop.group.size())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner_now(), name)

    # --- for the training loop ------------------------------------------------------------------------------

    def streams(self) -> bool:
        """Whether the loader is over an IterableDataset, which has no order."""
        from torch.utils.data import IterableDataset

        return isinstance(self._loader.dataset, IterableDataset)

    def left(self) -> float:
        """How many batches are left."""
        if self._deal is None:
            return self._length() - self.given
        return self._deal.steps(self._reached, self._loop.group.size())

    def next(self) -> Any:
        """The next batch. Raises StopIteration."""
        if self._deal is None and self.given >= self._length():
            self.over = True
            raise StopIteration
        try:
            batch = next(self._inner_now())
        except StopIteration:
            self.over = True
            raise
        self.given += 1
        if self._deal is not None:
            workers = self._loop.group.size()
            share = self._deal.share(self._reached, self._loop.group.rank(), workers)
            self._loop.group.weight = share.weight
            self._reached = self._deal.end(self._reached, workers)
        return batch

    def counts(self) -> None:
        """Note that the batches so far have been used by a step that counts."""
        self.start = self._reached

    def go_on_at(self, given: int, start: int) -> None:
        """Go on as others do: after so many batches and so many used samples, dealt out anew."""
        self.given, self.start, self._reached = given, start, start
        if self._deal is not None:
            self._inner = None

    def again(self) -> Any:
        """A batch from the beginning, for a newcomer that only warms up."""
        self._inner = None
        self._reached = self.given = 0
        return self.next()

    def batches(self) -> _Dealt | None:
        """The batches from here on, for the DataLoader's iterator."""
        if self._deal is None:
            return None
        return _Dealt(
            self._deal, self._order, self._reached, self._loop.group.rank(), self._loop.group.size()
        )

    def _length(self) -> float:
        try:
            return len(self._loader)
        except TypeError:  # an iterable dataset
            return math.inf

    def _inner_now(self) -> Iterator[Any]:
        if self._inner is None:
            self.begins = True
            try:
                self._inner = self._begin(self._loader)
            finally:
                self.begins = False
        return self._inner


class _Dealt:
    """The batches' indices from one place of an epoch on."""

    def __init__(self, deal: Deal, order: list[int], start: int, rank: int, workers: int) -> None:
        self._deal = deal
        self._order = order
        self._start = start
        self._rank = rank
        self._workers = workers

    def __len__(self) -> int:
        return self._deal.steps(self._start, self._workers)

    def __iter__(self) -> Iterator[list[int]]:
        start = self._start
        for _ in range(self._deal.steps(start, self._workers)):
            places = self._deal.share(start, self._rank, self._workers).places
            yield [self._order[place % len(self._order)] for place in places]
            start = self._deal.end(start, self._workers)


class Loaders:
    """All DataLoaders of the process."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()

    def made(self, loader: Any) -> None:
        """Remember a DataLoader."""
        self._known[loader] = Loader(loader, next(self._numbers))

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
        deal = known.deal(loop.base, loop.rule)  # the script asks for the length
        if deal is None:
            return None
        now = known.iteration
        return range(deal.steps(0, loop.group.size()) if now is None or now.over else len(now))


def patch_dataloader(module: ModuleType, loop: TrainingLoop) -> None:
    """Hook torch.utils.data.dataloader.DataLoader."""
    loader = module.DataLoader
    made, begin = loader.__init__, loader.__iter__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        loop.loaders.made(self)
        loop.watch_newcomer()

    def iterate(self: Any) -> Any:
        known = loop.loaders.of(self)
        return begin(self) if known is None or not loop.runs else Iteration(known, self, begin, loop)

    loader.__init__, loader.__iter__ = init, iterate
