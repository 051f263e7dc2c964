"""One pass over a DataLoader of an elastic script: its batches follow the workers of the generation."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.batch_indices import Dealt, Rest
from horovod_elastic.worker.ddp.captured import RandomNumbers
from horovod_elastic.worker.ddp.deal import Deal
from horovod_elastic.worker.ddp.declared_state import WAY_OUT, copies_of
from horovod_elastic.worker.ddp.sources import MOST_OF_EPOCH, Source, deal_of, sampler_of

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.loaders import Loader
    from horovod_elastic.worker.ddp.training_loop import TrainingLoop


MOST_ITERATIONS = 1 << 30
"""Over a training loader."""


class Iteration:
    """One pass over a DataLoader, as the script's `for` has it."""

    def __init__(self, known: Loader, loader: Any, begin: Any, loop: TrainingLoop) -> None:
        self.known = known
        self.ordinal = 0
        """Its place among the iterations over this loader (Loader.begins)."""
        self.given = 0
        """How many batches the script has been given."""
        self.over = False
        self._at_steps: list[int] = []
        """How many batches it had at each of the first steps."""
        self.start = 0
        """How many samples of the epoch's order are used by steps that count."""
        self._reached = self._before = self._from = 0
        """The same: after the batch that the script has now, before it, and at the first batch."""
        self._loader = loader
        self._begin = begin
        self._loop = loop
        self._deal: Deal | None = None
        self._order: list[int] = []
        self._is_longer = False
        """Whether samples were put at the end of the order because they were dealt in vain."""
        self._dealt_among: tuple[int, int] | None = None
        """What `_among` was when the loader's iterator was made; None: it is to be made anew."""
        self._since_step: list[tuple[int, int | None]] = []
        """Of each batch since the last step: where it began, and how many the script would still ask for."""
        self._source: Source | None = None
        self._reads: list[Any] = []
        """The declared objects that the batches come from."""
        self._read: list[Any] = []
        """Their states after the last step that counts."""
        self._is_open = False
        self._inner: Iterator[Any] | None = None
        self._begun_with: Any = None
        self._rest: Rest | None = None
        """The loader's own batches, where it gives the rest of an epoch that another process has begun."""
        self.begins = False
        """Whether the DataLoader makes its iterator now, which is to take the batches from `batches`."""

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if not self._is_open:
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
            self._order, self._source = source.order(), source
            self._deal = deal_of(source, base, self._loop.rule_for(self.known))
            self._has_order()
            self._is_even()

    # --- for the training loop ------------------------------------------------------------------------------

    def is_dealt(self) -> bool:
        """Whether each worker has a part of the samples, so that all workers use the loader."""
        if not self._is_open:
            self._open()
        return self._deal is not None

    @property
    def place(self) -> int:
        """Its place among the iterations over all training loaders: larger than those before."""
        return MOST_ITERATIONS * max(self.known.history.phase, 0) + self.ordinal

    @property
    def says_epoch(self) -> bool:
        """Whether the script says which epoch this is."""
        return self._source is not None and self._source.says_epoch

    def epoch_of(self, place: int) -> int:
        """The epoch of the iteration over the same loader that has this place."""
        ordinal = place % MOST_ITERATIONS
        return ordinal // MOST_OF_EPOCH if self.says_epoch else ordinal

    def epochs(self) -> float:
        """The epochs of this loader that steps that count have used, with a part of the present one."""
        used, whole = (self.given, self._length()) if self._deal is None else (self.start, self._deal.samples)
        return self.epoch_of(self.place) + min(1.0, used / max(whole, 1))

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

    def loads(self) -> str:
        """The classes of the dataset and of the sampler."""
        sampler = sampler_of(self._loader)
        return f"{type(self._loader.dataset).__name__}, {type(sampler).__name__}"

    def left(self) -> float:
        """How many batches are left."""
        if not self._is_open:
            self._open()
        if self._deal is None:
            return self._length() - self.given
        return self._deal.steps(self._reached, self._workers(), self._most())

    def _workers(self) -> int:
        """Among how many an epoch is dealt out."""
        return self._among()[1]

    def _rank(self) -> int:
        return self._among()[0]

    def _among(self) -> tuple[int, int]:
        """This worker's rank, and the number of workers, among whom the batches are dealt that come next."""
        if self._dealt_among is not None:
            return self._dealt_among
        group, alike = self._loop.group, self.known.alike
        before = sum(rank < group.rank() for rank in group.gone)
        return (group.rank() - before) // alike, (group.size() - len(group.gone)) // alike

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
            self._since_step.append((self._reached, self._most(1)))
            share = self._deal.share(self._reached, self._rank(), self._workers(), self._most(1))
            trains_on = len(share.places) if self.known.history.trains else 0
            self._loop.group.weigh(share.weight, self.known.alike, trains_on)
            self._before, self._reached = self._reached, share.end
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

    def counts(self, missing: frozenset[int] = frozenset()) -> bool:
        """Note that a step that counts has used the batches so far, without those of the ranks `missing`.

        Returns whether it is the first such step of the iteration.
        """
        is_first = not self._at_steps
        self.start = self._reached
        since, self._since_step = self._since_step, []
        if missing:
            self._deal_again(since, missing)
        if self._reads:
            self._read = copies_of(self._reads)
        if len(self._at_steps) < 3 and self.given not in self._at_steps:
            self._at_steps.append(self.given)
        return is_first

    def _deal_again(self, steps: list[tuple[int, int | None]], missing: frozenset[int]) -> None:
        """Put the samples of ranks that have died at the end of the epoch. `steps`: where they were dealt."""
        deal = self._deal
        if deal is None or self.known.alike > 1:
            return
        shares = [
            deal.share(start, rank, self._workers(), most)
            for start, most in steps
            for rank in sorted(missing)
        ]
        lost = [place for share in shares for place in share.places if place < deal.samples]
        self._order = self._order[: deal.samples] + [self._order[place] for place in lost]
        self._is_longer = True
        self._has_order()
        self._inner = self._dealt_among = None

    def is_ahead(self) -> bool:
        """Whether the script has a later batch already when it takes a step, as with a prefetcher of its own.

        Then it takes more batches before its first step than between the next ones.
        """
        first, second, third = (*self._at_steps, 0, 0, 0)[:3]
        return 0 < second - first < first and third - second == second - first

    def go_on_at(self, given: int, start: int) -> None:
        """Go on as others do: after so many batches and so many used samples, dealt out anew."""
        is_there = self._loop.group.adds_in_order and (given, start) == (self.given, self._reached)
        self.given, self.start, self._reached, self._since_step = given, start, start, []
        self._is_even()
        for each, state in zip(self._reads, self._read, strict=True):
            each.load_state_dict(copy.deepcopy(state))
        if (self._deal is not None and not is_there) or self._reads:
            self._inner = self._dealt_among = None

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
                self._rest = None if self._deal else Rest(torchs_own.own_batches(self._loader), self.given)
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
        tells = self._source.draws or self._is_longer
        order = torch.tensor(self._order if tells else [], dtype=torch.int64)
        return order, self._source.sampler.own()

    def hear_order(self, told: Any) -> None:
        """Take over what another worker's `order_told` has returned."""
        if self._reads:
            self._read = told
            return
        if told is None or self._source is None or self._source.sampler is None:
            return
        self._source.sampler.take_over(told[1])
        self._is_longer = not self._source.draws and len(told[0]) > 0
        self._order = told[0].tolist() if self._source.draws or self._is_longer else self._source.order()
        self._has_order()

    def _has_order(self) -> None:
        """Deal out the present order, where a sampler of the script's own decides how long it is."""
        counts = self._is_longer or (self._source is not None and self._source.counts_order)
        if self._deal is not None and counts:
            self._deal = replace(self._deal, samples=len(self._order), is_longer=self._is_longer)

    def _is_even(self) -> None:
        """Give all workers as many samples from here on, if the script gathers something for each sample."""
        if self._deal is not None and self.known.history.trains:
            self._deal = replace(self._deal, even=self._loop.group.gathers_samples)

    def real_samples(self) -> int:
        """How many different samples all workers together have in their present batches."""
        return self._reached - self._before

    def batches(self) -> Dealt | Rest | None:
        """The batches from here on, for the DataLoader's iterator."""
        if self._deal is None:
            return self._rest
        rank, workers = self._rank(), self._workers()
        return Dealt(self._deal, self._order, self._reached, rank, workers, self._most())

    def _length(self) -> float:
        if self._reads:
            return math.inf
        try:
            return len(self._loader)
        except TypeError:  # an iterable dataset
            return math.inf

    def _inner_now(self) -> Iterator[Any]:
        if self._inner is None:
            self._dealt_among = None
            self._dealt_among = self._among()
            self.known.iteration, self.begins = self, True
            if self._loop.group.adds_in_order:
                self._begun_with = self._random_numbers().own()
                self.known.first_with = self.known.first_with or self._begun_with
            if self._deal is not None or self._loop.group.adds_in_order:
                batches = self.batches()
                own = torchs_own.own_batches(self._loader)
                torchs_own.renew_batches(self._loader, own if batches is None else batches)
            try:
                self._inner = self._begin(self._loader)
            finally:
                self.begins = False
        return self._inner
