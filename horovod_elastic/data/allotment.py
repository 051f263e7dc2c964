"""One rank's side of one dataset: the samples of each of its mini-batches, and the consumed samples. Pure.

Before every mini-batch, each rank announces in a Record which samples it holds. A collective gathers the
records of all ranks. All ranks decide from the same records and the same ledger. So after each mini-batch,
all ranks know exactly which samples are consumed. In the ordinary case, each rank takes its share of the
mini-batch (sizes.py) from the front of the samples that it holds. When that is not possible any more, all
ranks compute the same plan for all samples that are left, and keep to the plan until the epoch ends. That
happens in the last two mini-batches of an epoch. It also happens when a rank has run out of samples and the
leader is dry or away, or when two ranks hold the same sample. So nothing that a leader does or fails to do
can make the ranks train on a sample twice, or never.

Positions are places in the epoch. This module does not decide which sample of the dataset stands at a
position.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from horovod_elastic.data.sizes import by_pace, next_shares, shares_of_the_rest
from horovod_elastic.ranges import Range, RangeSet, join, length
from horovod_elastic.shards import handing_order

Ranges = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """The dataset and its division into partitions: the same on all ranks."""

    name: str
    samples: int
    partitions: int
    seed: int


@dataclass(frozen=True, slots=True)
class Record:
    """The message of one rank to all ranks before a mini-batch."""

    epoch: int
    draw: int
    """The number of mini-batches that the rank has taken in this opening."""
    left: int
    """The number of the epoch's samples that no rank has drawn, according to the rank's ledger."""
    opening: int
    """The number of openings (beginnings of a generation or an epoch), according to the rank's ledger."""
    held_since: int
    """The opening in which the rank got `held`. Only samples from the last opening are a claim."""
    batch_size: int
    pace: int
    """The speed of the rank's GPU, in millionths of a unit that is the same on all ranks; 0: not known."""
    settled: bool
    """Whether the rank holds its share of a mini-batch, or cannot get more than it has."""
    held: Ranges
    """The samples that the rank holds, in the order in which it will use them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one rank in one mini-batch."""

    ranges: Ranges
    weight: float
    """The number of this rank's samples, divided by the mean over all ranks; 0.0 if its one sample belongs to
    another rank."""


class Step(enum.Enum):
    """The action that replaces a mini-batch."""

    AGAIN = "again"
    """A rank holds too little and may still get more: all ranks announce once more."""
    END = "end"
    """The epoch is used up."""


class OutOfStep(RuntimeError):
    """Ranks are not at the same mini-batch of a dataset."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of an epoch, as it is saved, synchronised and checkpointed."""

    epoch: int
    opening: int
    consumed: Ranges
    """The consumed samples, as sorted, disjoint ranges."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a stretch of an epoch in one generation; equal on all ranks."""

    number: int
    consumed: Ranges
    held: Ranges
    """The samples of all ranks that go on with samples that they hold already."""


# --- one rank -----------------------------------------------------------------------------------------------


class Allotment:
    """One rank's allotment of samples (see the module).

    Its caller passes in the gathered records and the leader's answers. The allotment itself asks nobody.
    """

    def __init__(self, whole: Whole, batch_size: int) -> None:
        self.whole = whole
        self.batch_size = batch_size
        """This rank's batch size. From the next announcement on, the smallest one of all ranks counts."""
        self.pace = 0
        """The pace of this rank's GPU (see Record.pace). It counts from the next announcement on."""
        self.epoch = 0
        self.has_leader = False
        """Whether there is a leader to ask for more samples."""
        self.opening: Opening | None = None
        self._rank, self._size = 0, 1
        self._paces: tuple[int, ...] = (0,)
        """The paces of all ranks, as the ranks last announced them."""
        self._number = 0
        self._draw = 0
        self._dry = False
        self._left: RangeSet | None = None
        """The positions that no rank has drawn; None before all ranks have agreed on them."""
        self._held: deque[Range] = deque()
        self._held_since = (-1, -1)
        """The epoch and the opening in which this rank got the samples that it holds."""
        self._plan: list[deque[Range]] | None = None
        self._plan_for: tuple[int, tuple[int, ...]] = (0, ())
        """The batch size and the paces for which the plan was made."""
        self._committed = RangeSet()
        self._committed_epoch = 0
        self._committed_number = 0
        self._trained = RangeSet()
        """The samples that all ranks have trained on in this epoch since the last commit."""
        self._drawn: deque[list[Ranges]] = deque()
        """Mini-batches drawn and not trained on, oldest first: the samples of each rank."""
        self._unsettled: list[list[Ranges]] = []
        """Mini-batches that count as trained on, before it is known whether all ranks were there."""

    # --- openings ---

    def enter(self, rank: int, size: int, keep: int | None) -> None:
        """Begin with another set of ranks, or another state. The ranks then agree anew on who holds what.

        Samples that this rank has drawn and not trained on come first. `keep`: the most samples of a plan
        that this rank goes on with, the rest being for ranks that ask; None: all.
        """
        mine = [each for shares in self._drawn for each in shares[self._rank]]
        rest = self._held if self._plan is None else self._plan[self._rank]
        held = join([*mine, *rest])
        if keep is not None and self._plan is not None:
            held = _first(held, keep)
        self._held = deque(held)
        self._drawn.clear()
        self._unsettled.clear()
        self._rank, self._size, self._paces = rank, size, (0,) * size
        self._close()

    def forget(self) -> None:
        """Drop all samples that this rank holds. They concern no other rank (a newcomer's warm-up)."""
        self._held.clear()
        self._drawn.clear()
        self._unsettled.clear()
        self._trained = RangeSet()
        self._close()

    def next_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`. Committed samples stay committed until the next commit."""
        self.epoch = epoch
        self._drawn.clear()
        self._unsettled.clear()
        self._trained = RangeSet()
        self._held.clear()
        self._close()
        self._open(Opening(self._number + 1, (), ()), RangeSet([Range(0, self.whole.samples)]))

    def _close(self) -> None:
        self.opening, self._left, self._plan, self._draw = None, None, None, 0
        self._dry = False

    def _open(self, opening: Opening, left: RangeSet) -> None:
        self.opening, self._left, self._number = opening, left, opening.number
        self._held_since = (self.epoch, opening.number)

    # --- supply ---

    def give(self, ranges: Iterable[Range], *, dry: bool) -> None:
        """Take the leader's answer. `dry`: the leader has no more samples in this opening."""
        if self._plan is None:
            self._held.extend(ranges)
        self._dry = self._dry or dry

    def give_up(self) -> None:
        """Stop asking in this opening, because the leader does not answer."""
        self._dry = True

    def wants(self, ahead: int) -> int:
        """The number of samples to ask for, so that `ahead` samples are held; 0: ask for none."""
        if self._left is None or self._plan is not None or not self.has_leader or self._dry:
            return 0
        return 0 if self._is_tail() else max(0, ahead - length(self._held))

    def is_short(self) -> bool:
        """Whether the rank does not hold its full next mini-batch, and may get more samples."""
        return self.wants(self.share) > 0

    @property
    def share(self) -> int:
        """The number of this rank's samples in a mini-batch that is not one of the last two of an epoch."""
        return by_pace(self._size * self.batch_size, self._paces)[self._rank]

    def _is_tail(self) -> bool:
        assert self._left is not None
        return self._left.total < 2 * self._size * self.batch_size

    # --- mini-batches ---

    def record(self) -> Record:
        """The announcement of this rank before the next mini-batch."""
        claims = self._left is None
        since = self._held_since[1] if self._held_since[0] == self.epoch else -1
        settled = not self.has_leader if claims else not self.is_short()
        held = () if self._plan is not None else join(self._held)
        return Record(
            epoch=self.epoch,
            draw=self._draw,
            left=self.samples_left,
            opening=self._number,
            held_since=since,
            batch_size=self.batch_size,
            pace=self.pace,
            settled=settled,
            held=held,
        )

    def resolve(self, records: Sequence[Record]) -> Batch | Step:
        """The next samples of this rank, or a Step. `records`: the records of all ranks, in order of rank.

        Raises OutOfStep if the ranks are not at the same place.
        """
        self._check_in_step(records)
        held = [each.held for each in records] if self._left is not None else self._settle_claims(records)
        assert self._left is not None
        if self._left.total == 0:
            return Step.END
        batch_size = min(record.batch_size for record in records)
        before, self._paces = self._paces, tuple(record.pace for record in records)
        if self._plan is None and self._left.total >= 2 * self._size * batch_size:
            shares = by_pace(self._size * batch_size, self._paces)
            taken = [_first(each, share) for each, share in zip(held, shares, strict=True)]
            short = [length(each) < share for each, share in zip(taken, shares, strict=True)]
            # a rank that announced that it holds enough went by the shares that it knew of
            may_get = [not record.settled or before != self._paces for record in records]
            if any(few and more for few, more in zip(short, may_get, strict=True)):
                return Step.AGAIN
            if not any(short) and self._can_be_drawn(taken):
                self._held = deque(_without_first(self._held, shares[self._rank]))
                return self._draw_all(taken)
        if self._plan is None or self._plan_for != (batch_size, self._paces):
            self._make_plan(held if self._plan is None else self._plan, batch_size)
        return self._draw_planned(batch_size)

    def _check_in_step(self, records: Sequence[Record]) -> None:
        places = {(record.epoch, record.draw, record.left) for record in records}
        if len(places) > 1:
            where = "; ".join(
                f"rank {rank}: epoch {record.epoch}, mini-batch {record.draw}, {record.left} samples left"
                for rank, record in enumerate(records)
            )
            raise OutOfStep(
                f"the ranks are not at the same place of '{self.whole.name}' ({where}). All ranks have to "
                f"take the same number of mini-batches; and it has to be in the TorchState, which is how "
                f"newcomers learn where it is: TorchState(..., data=...)"
            )

    def _settle_claims(self, records: Sequence[Record]) -> list[Ranges]:
        """Decide from an opening's first records which samples each rank keeps. Returns these, by rank."""
        consumed = self._consumed()
        left = consumed.complement(self.whole.samples)
        free = left.copy()
        number = max(record.opening for record in records)
        held: list[Ranges] = []
        for record in records:
            claims = record.held if record.held_since == number else ()
            kept = [piece for claim in claims for piece in _cut_out(free, claim)]
            held.append(join(kept))
        self._held = deque(held[self._rank])
        every = tuple(piece for each in held for piece in each)
        self._open(Opening(number + 1, tuple(consumed), every), left)
        return held

    def _can_be_drawn(self, taken: Sequence[Ranges]) -> bool:
        """Whether all these samples are left, and none is taken twice."""
        assert self._left is not None
        pieces = sorted(piece for each in taken for piece in each)
        apart = all(one.end <= other.start for one, other in itertools.pairwise(pieces))
        return apart and all(map(self._left.holds, pieces))

    def _make_plan(self, held: Sequence[Iterable[Range]], batch_size: int) -> None:
        """Make the plan for all samples that are left. Each rank first takes those that it holds already."""
        assert self._left is not None
        free = self._left.copy()
        shares = shares_of_the_rest(free.total, batch_size, self._paces)
        plan: list[deque[Range]] = []
        for share, own in zip(shares, held, strict=True):
            queue: deque[Range] = deque()
            for part in (part for piece in own for part in free.within(piece)):
                taken = _first((part,), share)
                share -= length(taken)
                for piece in taken:
                    free.remove(piece)
                queue.extend(taken)
            plan.append(queue)
        whole = self.whole
        spare: deque[Range] = deque()
        for partition in handing_order(whole.samples, whole.partitions, whole.seed, self.epoch):
            spare.extend(free.within(partition))
        for share, mine in zip(shares, plan, strict=True):
            missing = share - length(mine)
            mine.extend(_pop_first(spare, missing))
        self._plan, self._plan_for = plan, (batch_size, self._paces)
        self._held.clear()

    def _draw_planned(self, batch_size: int) -> Batch:
        assert self._plan is not None
        assert self._left is not None
        shares = next_shares(self._left.total, batch_size, self._paces)
        return self._draw_all(
            [_pop_first(queue, share) for queue, share in zip(self._plan, shares, strict=True)]
        )

    def _draw_all(self, taken: Sequence[Ranges]) -> Batch:
        assert self._left is not None
        for each in taken:
            for piece in each:
                self._left.remove(piece)
        everything = tuple(piece for each in taken for piece in each)
        mine = taken[self._rank]
        self._drawn.append(list(taken))
        self._draw += 1
        weight = length(mine) * self._size / length(everything)
        return Batch(mine or (Range(everything[0].start, 1),), weight)

    def upcoming(self, count: int) -> list[Ranges]:
        """The probable samples of this rank in the next `count` mini-batches, for reading ahead."""
        if self._left is None:
            return []
        left = self._left.total
        ahead = deque(self._held if self._plan is None else self._plan[self._rank])
        batch_size = self.batch_size if self._plan is None else self._plan_for[0]
        found: list[Ranges] = []
        while left and len(found) < count:
            shares = next_shares(left, batch_size, self._paces)
            if length(ahead) < shares[self._rank]:
                break
            found.append(_pop_first(ahead, shares[self._rank]))
            left -= sum(shares)
        return found

    # --- what is trained, committed, synchronised ---

    def trained(self, batches: int = 1) -> None:
        """Count the oldest `batches` drawn mini-batches as trained on. ValueError if there are fewer.

        `settle` says afterwards which ranks have not trained on them after all.
        """
        if batches > len(self._drawn):
            raise ValueError(
                f"'{self.whole.name}': {batches} more mini-batches recorded as trained than were handed out"
            )
        for _ in range(batches):
            shares = self._drawn.popleft()
            self._unsettled.append(shares)
            for piece in itertools.chain.from_iterable(shares):
                self._trained.add(piece)

    def settle(self, absent: Iterable[int]) -> bool:
        """Note that ranks have died before they trained on the mini-batches that were counted last.

        Returns whether there are any: their samples are to be trained on again after the next `enter`.
        """
        unsettled, self._unsettled = self._unsettled, []
        pieces = [piece for shares in unsettled for rank in absent for piece in shares[rank]]
        for piece in pieces:
            self._trained.remove(piece)
        return bool(pieces)

    @property
    def untrained(self) -> int:
        """The number of mini-batches drawn and not recorded as trained."""
        return len(self._drawn)

    @property
    def samples_left(self) -> int:
        """The number of this epoch's samples that no rank has drawn."""
        if self._left is not None:
            return self._left.total
        committed = self._committed.total if self._committed_epoch == self.epoch else 0
        return self.whole.samples - committed - self._trained.total

    @property
    def is_over(self) -> bool:
        """Whether all samples of this epoch have been drawn, as all ranks know."""
        return self._left is not None and self._left.total == 0

    @property
    def held(self) -> Ranges:
        """The samples that this rank has been given and not drawn."""
        return tuple(self._held)

    @property
    def ranks(self) -> int:
        """The number of ranks that share the dataset at present."""
        return self._size

    def commit(self) -> None:
        """Commit: samples that were trained on stay consumed, whatever happens later."""
        if self._committed_epoch != self.epoch:
            self._committed, self._committed_epoch = RangeSet(), self.epoch
        for piece in self._trained:
            self._committed.add(piece)
        self._trained = RangeSet()
        self._committed_number = self._number

    def roll_back(self) -> None:
        """Go back to the last commit. This rank may go on with the samples that it still holds."""
        self.epoch, self._number = self._committed_epoch, self._committed_number
        self._drawn.clear()
        self._unsettled.clear()
        self._trained = RangeSet()
        self._left = None

    def ledger(self) -> Ledger:
        """The present state of the epoch."""
        return Ledger(self.epoch, self._number, tuple(self._consumed()))

    def load(self, ledger: Ledger) -> None:
        """Take over another ledger, as committed. Raises ValueError if it does not fit the dataset."""
        consumed = RangeSet(ledger.consumed)
        if consumed.total != length(ledger.consumed) or not all(
            each.start >= 0 and each.end <= self.whole.samples for each in ledger.consumed
        ):
            raise ValueError(f"'{self.whole.name}': the ledger names samples twice or that do not exist")
        self.epoch, self._number = ledger.epoch, ledger.opening
        self._drawn.clear()
        self._unsettled.clear()
        self._trained = RangeSet()
        self._left = None
        self._committed, self._committed_epoch = consumed, ledger.epoch
        self._committed_number = ledger.opening

    def _consumed(self) -> RangeSet:
        consumed = self._committed.copy() if self._committed_epoch == self.epoch else RangeSet()
        for piece in self._trained:
            consumed.add(piece)
        return consumed


# --- ranges in an order -------------------------------------------------------------------------------------


def _pop_first(queue: deque[Range], samples: int) -> Ranges:
    """Take the first `samples` samples off the front of the queue."""
    taken: list[Range] = []
    while samples > 0:
        piece = queue.popleft()
        if piece.length > samples:
            queue.appendleft(Range(piece.start + samples, piece.length - samples))
            piece = Range(piece.start, samples)
        taken.append(piece)
        samples -= piece.length
    return tuple(taken)


def _first(ranges: Iterable[Range], samples: int) -> Ranges:
    """The first `samples` samples, or all if there are fewer."""
    queue = deque(ranges)
    return _pop_first(queue, min(samples, length(queue)))


def _without_first(ranges: Iterable[Range], samples: int) -> Ranges:
    """The ranges after the first `samples` samples."""
    queue = deque(ranges)
    _pop_first(queue, min(samples, length(queue)))
    return tuple(queue)


def _cut_out(free: RangeSet, claim: Range) -> list[Range]:
    """Take the part of `claim` that is still free out of `free`, and return it."""
    found = free.within(claim)
    for piece in found:
        free.remove(piece)
    return found
