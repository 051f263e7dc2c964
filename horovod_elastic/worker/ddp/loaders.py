"""DataLoaders of elastic scripts: what they yield follows the workers of the present generation.

A DataLoader that gives each worker its part of an epoch has its batches dealt out anew in each generation
(deal.py): one over a DistributedSampler, or one that a framework has prepared. Each sample is used once an
epoch. Batches that worker processes have loaded before a resize, but the script has not seen, are loaded
again by those to whom they then belong.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from horovod_elastic import reproducible
from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.batch_seeds import BatchSeeds
from horovod_elastic.worker.ddp.captured import RandomNumbers
from horovod_elastic.worker.ddp.deal import BatchRule, Deal
from horovod_elastic.worker.ddp.declared_state import WAY_OUT, copies_of
from horovod_elastic.worker.state_messages import StatePart

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.training_loop import TrainingLoop


MOST_OF_EPOCH = 64
"""Iterations over a training loader in an epoch, at most: some scripts look at a batch before they train."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the batches of a DataLoader come from, whose epochs all workers use together.

    `samples`: of an epoch. `per_worker`: the batch of a worker of the base. `order`: the coming epoch's.
    `epoch`: the coming epoch's number. `in_blocks`: see Deal. `used`: samples that are left out at the
    beginning, by a script that resumes. `sampler`: what the orders depend on, which newcomers are told. With
    `draws`, orders are drawn from random numbers, so that newcomers are told the present one, too.
    `says_epoch`: whether the script itself says which epoch comes.
    """

    samples: int
    per_worker: int
    drop_last: bool
    order: Callable[[], list[int]]
    epoch: int = 0
    in_blocks: bool = False
    used: int = 0
    sampler: StatePart | None = None
    draws: bool = True
    says_epoch: bool = False


SourceOf = Callable[[Any], Source | None]


def of_distributed_sampler(loader: Any) -> Source | None:
    """The source of a loader over PyTorch's DistributedSampler."""
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler, batches = loader.sampler, loader.batch_sampler
    if type(sampler) is not DistributedSampler or type(batches) is not BatchSampler:
        return None

    def order() -> list[int]:
        whole = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
        whole.set_epoch(sampler.epoch)
        return list(whole)

    return Source(
        samples=len(sampler.dataset),
        per_worker=batches.batch_size,
        drop_last=batches.drop_last,
        order=order,
        epoch=sampler.epoch,
        sampler=_EpochOf(sampler),
        draws=False,
        says_epoch=hasattr(sampler, _SAID),
    )


_SAID = "_flexo_epoch_is_said"
"""An attribute of samplers whose set_epoch was called."""


class _EpochOf(StatePart):
    """The epoch of a DistributedSampler: a script that resumes may have counted another in its practice."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def own(self) -> Any:
        """See StatePart.own."""
        return self._sampler.epoch

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        self._sampler.epoch = theirs


@dataclass(slots=True)
class History:
    """What has been done with a DataLoader. `number`: which one of the process's DataLoaders it is."""

    number: int
    trains: bool = False
    """Whether an optimizer has taken a step between two of its batches."""
    begun: int = 0
    """How often an iteration over it has begun."""


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
        if source := self.source():
            ordinal = MOST_OF_EPOCH * source.epoch if source.says_epoch else max(source.epoch, begun)
        else:
            told = getattr(getattr(self._loader(), "sampler", None), "epoch", 0)
            ordinal = max(int(told), begun) if isinstance(told, int) else begun
        self._last = max(self._last + 1, ordinal)
        return self._last


def deal_of(source: Source, base: int, rule: BatchRule) -> Deal:
    """How an epoch is dealt out."""
    return Deal(source.samples, source.per_worker, base, source.drop_last, rule, source.in_blocks)


class Iteration:
    """One pass over a DataLoader, as the script's `for` has it."""

    def __init__(self, known: Loader, loader: Any, begin: Any, loop: TrainingLoop) -> None:
        self.known = known
        self.ordinal = 0
        """Its place among the iterations over this loader (Loader.begins)."""
        self.given = 0
        """How many batches the script has been given."""
        self.over = False
        self.start = 0
        """How many samples of the epoch's order are used by steps that count."""
        self._reached = self._before = self._from = 0
        """The same: after the batch that the script has now, before it, and at the first batch."""
        self._loader = loader
        self._begin = begin
        self._loop = loop
        self._deal: Deal | None = None
        self._order: list[int] = []
        self._source: Source | None = None
        self._reads: list[Any] = []
        """The declared objects that the batches come from."""
        self._read: list[Any] = []
        """Their states after the last step that counts."""
        self._is_open = False
        self._inner: Iterator[Any] | None = None
        self._begun_with: Any = None
        self._rest: _Rest | None = None
        """The loader's own batches, where it gives the rest of an epoch that another process has begun."""
        self.begins = False
        """Whether the DataLoader makes its iterator now, which is to take the batches from `batches`."""

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        self._open()
        return self._loop.fetch(self)

    def __len__(self) -> int:
        if self._deal is None:
            return len(self._loader)
        return self.given + self._deal.steps(self._reached, self._workers(), self._most())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner_now(), name)

    def _open(self) -> None:
        """Begin the epoch, at the first call for a batch: scripts set a sampler's epoch until then."""
        if self._is_open:
            return
        self._is_open = True
        history = self.known.history
        if history.trains or not history.begun:
            self._loop.counting.batch_loop_begins()
        self.ordinal = self.known.begins()
        self._reads = self._loop.captured.declared.read_by(self._loader)
        self._read = copies_of(self._reads)
        if self._reads:
            return
        if source := self.known.source():
            self.start = self._reached = self._before = self._from = source.used
            base = self._loop.base // self.known.alike
            self._deal = deal_of(source, base, self._loop.rule_for(self.known))
            self._order, self._source = source.order(), source

    # --- for the training loop ------------------------------------------------------------------------------

    def is_dealt(self) -> bool:
        """Whether each worker has a part of the samples, so that all workers use the loader."""
        self._open()
        return self._deal is not None

    def epoch_of(self, ordinal: int) -> int:
        """The epoch of the iteration over the same loader that has this ordinal."""
        says_epoch = self._source is not None and self._source.says_epoch
        return ordinal // MOST_OF_EPOCH if says_epoch else ordinal

    def obstacle(self) -> str:
        """Why the loader's batches cannot be dealt out anew; "" if they can."""
        from torch.utils.data import IterableDataset

        if self._reads and self._loader.num_workers:
            return (
                f"its DataLoader has num_workers={self._loader.num_workers}: worker processes are ahead of"
                " the position that flexo.elastic() declares. num_workers=0 is allowed"
            )
        if isinstance(self._loader.dataset, IterableDataset) and not self._reads:
            return f"it loads an IterableDataset, whose samples flexo cannot deal out anew: {WAY_OUT}"
        return ""

    def left(self) -> float:
        """How many batches are left."""
        self._open()
        if self._deal is None:
            return self._length() - self.given
        return self._deal.steps(self._reached, self._workers(), self._most())

    def _workers(self) -> int:
        """Among how many an epoch is dealt out."""
        return self._loop.group.size() // self.known.alike

    def _rank(self) -> int:
        return self._loop.group.rank() // self.known.alike

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
            workers = self._workers()
            most = self._most(1)
            share = self._deal.share(self._reached, self._rank(), workers, most)
            self._loop.group.weigh(share.weight, self.known.alike)
            self._before = self._reached
            self._reached = self._deal.end(self._reached, workers, most)
        return batch

    def is_over(self) -> bool:
        """Whether steps that count have used all of the epoch."""
        return self._deal is not None and self._deal.steps(self.start, self._workers()) == 0

    def skip(self) -> None:
        """Count a batch that others have had."""
        self.given += 1

    def _most(self, given_now: int = 0) -> int | None:
        """How many batches a script that has counted them will still ask for; `given_now` is one of them."""
        if self._deal is None or not (self.known.history.trains and self._loop.counts_steps):
            return None
        base = self._loop.base // self.known.alike
        return max(0, self._deal.steps(self._from, base) - self.given + given_now)

    def counts(self) -> None:
        """Note that the batches so far have been used by a step that counts."""
        self.start = self._reached
        self._read = copies_of(self._reads)

    def go_on_at(self, given: int, start: int) -> None:
        """Go on as others do: after so many batches and so many used samples, dealt out anew."""
        is_there = self._loop.private is not None and (given, start) == (self.given, self._reached)
        self.given, self.start, self._reached = given, start, start
        for each, state in zip(self._reads, self._read, strict=True):
            each.load_state_dict(copy.deepcopy(state))
        if (self._deal is not None and not is_there) or self._reads:
            self._inner = None

    def begun_with(self) -> Any:
        """The random numbers with which this iteration and the loader's first one began; None: not yet."""
        return self._begun_with, self.known.first_with

    def begin_like(self, told: Any) -> None:
        """Begin as the iteration of another process did (`begun_with`), and leave out what it has given."""
        now, first = told
        self._inner, self.known.first_with = None, None
        keeps_processes = self._loader.persistent_workers
        if keeps_processes:
            torchs_own.end_worker_processes(self._loader)
        for random in [first] * (keeps_processes and first is not now) + [now]:
            if random is not None:
                self._random_numbers().take_over(random)
                self._inner = None
                self._rest = None if self._deal else _Rest(torchs_own.own_batches(self._loader), self.given)
                self._inner_now()
                if self._rest is not None:
                    self._rest.skip()

    def _random_numbers(self) -> RandomNumbers:
        return RandomNumbers(getattr(self._loader, "generator", None))

    def again(self) -> Any:
        """A batch from the beginning, for a newcomer that only warms up."""
        self._inner = None
        self._reached, self.given = self._from, 0
        return self.next()

    def order_told(self) -> Any:
        """What the epoch's order and those of the next ones depend on, for workers that cannot know it."""
        if self._reads:
            return self._read
        if self._source is None or self._source.sampler is None:
            return None
        order = torch.tensor(self._order if self._source.draws else [], dtype=torch.int64)
        return order, self._source.sampler.own()

    def hear_order(self, told: Any) -> None:
        """Take over what another worker's `order_told` has returned."""
        if self._reads:
            self._read = told
            return
        if told is None or self._source is None or self._source.sampler is None:
            return
        self._source.sampler.take_over(told[1])
        self._order = told[0].tolist() if self._source.draws else self._source.order()

    def real_samples(self) -> int:
        """How many different samples all workers together have in their present batches."""
        return self._reached - self._before

    def batches(self) -> _Dealt | _Rest | None:
        """The batches from here on, for the DataLoader's iterator."""
        if self._deal is None:
            return self._rest
        rank, workers = self._rank(), self._workers()
        return _Dealt(self._deal, self._order, self._reached, rank, workers, self._most())

    def _length(self) -> float:
        if self._reads:
            return math.inf
        try:
            return len(self._loader)
        except TypeError:  # an iterable dataset
            return math.inf

    def _inner_now(self) -> Iterator[Any]:
        if self._inner is None:
            self.known.iteration, self.begins = self, True
            if self._loop.private is not None:
                self._begun_with = self._random_numbers().own()
                self.known.first_with = self.known.first_with or self._begun_with
            if self._deal is not None or self._loop.private is not None:
                batches = self.batches()
                own = torchs_own.own_batches(self._loader)
                torchs_own.renew_batches(self._loader, own if batches is None else batches)
            try:
                self._inner = self._begin(self._loader)
            finally:
                self.begins = False
        return self._inner


class _Rest:
    """A loader's own batches, without the first ones. Samplers draw random numbers for the first one."""

    def __init__(self, batches: Any, left_out: int) -> None:
        self._batches = batches
        self._left_out = left_out
        self._iterator: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._batches)
        return self

    def __next__(self) -> Any:
        self.skip()
        return next(self._iterator)

    def skip(self) -> None:
        """Leave the first ones out now, if that was not done yet."""
        for _ in range(self._left_out):
            next(self._iterator, None)
        self._left_out = 0


class _Dealt:
    """The batches' indices from one place of an epoch on."""

    def __init__(
        self, deal: Deal, order: list[int], start: int, rank: int, workers: int, most: int | None = None
    ) -> None:
        self._deal = deal
        self._order = order
        self._start = start
        self._rank = rank
        self._workers = workers
        self._most = most

    def __len__(self) -> int:
        return self._deal.steps(self._start, self._workers, self._most)

    def __iter__(self) -> Iterator[list[int]]:
        start, most = self._start, self._most
        for _ in range(len(self)):
            places = self._deal.share(start, self._rank, self._workers, most).places
            yield [self._order[place % len(self._order)] for place in places]
            start = self._deal.end(start, self._workers, most)
            most = most and most - 1


class Loaders:
    """All DataLoaders of the process."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._sources: list[SourceOf] = [of_distributed_sampler]

    def understand(self, source_of: SourceOf) -> None:
        """Have `source_of` asked for the sources of loaders, too: it knows those of a framework."""
        self._sources.append(source_of)

    def made(self, loader: Any, alike: int) -> None:
        """Remember a DataLoader. `alike`: see Loader."""
        self._known[loader] = known = Loader(loader, History(next(self._numbers)), self._sources)
        known.alike = alike

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
        return _Dealt(deal_of(source, base, rule), [], source.used, 0, size // known.alike)


def patch_sampler(module: ModuleType) -> None:
    """Hook torch.utils.data.distributed.DistributedSampler, to know whether the script says its epochs."""
    original = module.DistributedSampler.set_epoch

    @functools.wraps(original)
    def set_epoch(self: Any, epoch: int) -> None:
        setattr(self, _SAID, True)
        original(self, epoch)

    module.DistributedSampler.set_epoch = set_epoch


def patch_dataloader(module: ModuleType, loop: TrainingLoop) -> None:
    """Hook torch.utils.data.dataloader.DataLoader."""
    loader = module.DataLoader
    made, begin = loader.__init__, loader.__iter__

    @functools.wraps(made)  # frameworks read the signature, to make a loader anew with another sampler
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        loop.loaders.made(self, loop.samples_alike(self))
        if reproducible.virtual_workers(os.environ) and not isinstance(self.worker_init_fn, BatchSeeds):
            self.worker_init_fn = BatchSeeds(self.worker_init_fn)
        loop.watch_newcomer()

    @functools.wraps(begin)
    def iterate(self: Any) -> Any:
        known = loop.loaders.of(self)
        return begin(self) if known is None or not loop.runs else Iteration(known, self, begin, loop)

    loader.__init__, loader.__iter__ = init, iterate
