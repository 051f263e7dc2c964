"""One rank's side of one dataset: which samples it trains on in each mini-batch, and what is consumed. Pure.

Before every mini-batch each rank announces in a Record what it holds; the records of all ranks, gathered by
a collective, decide what everybody takes. All ranks decide on the same records and the same ledger, so they
all know after each mini-batch exactly what has been consumed, whoever handed it out. In the ordinary case
each rank takes its share of the mini-batch (sizes.py) from the front of what it holds. When that does not
work out any more (the last two mini-batches of an epoch; a rank has run out and the leader is dry, or away;
two ranks hold the same sample), everybody computes the same plan for all the samples that are left and keeps
to it until the epoch ends. So nothing that a leader does or fails to do can have a sample trained on twice,
or never.

Positions are places in the epoch; which sample of the dataset stands there is not decided here.
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
    """What is split up: the same on all ranks."""

    name: str
    samples: int
    partitions: int
    seed: int


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank tells all ranks before a mini-batch."""

    epoch: int
    draw: int
    """How many mini-batches it has taken in this opening."""
    left: int
    """Samples of the epoch that nobody has drawn, as its ledger knows."""
    opening: int
    """How often a generation or an epoch has begun, as its ledger knows."""
    held_since: int
    """The opening that `held` was given in. Only what comes from the last opening is a claim."""
    batch_size: int
    pace: int
    """Of its GPU, in millionths of any unit that is the same on all ranks; 0: not known."""
    settled: bool
    """It holds its share of a mini-batch, or cannot get more than it has."""
    held: Ranges
    """In the order in which it will be used."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank trains on in one mini-batch."""

    ranges: Ranges
    weight: float
    """Samples of this rank over the mean of all ranks; 0.0 if its one sample belongs to another rank."""


class Step(enum.Enum):
    """What there is instead of a mini-batch."""

    AGAIN = "again"
    """Somebody holds too little and may still get more: everybody announces once more."""
    END = "end"
    """The epoch is used up."""


class OutOfStep(RuntimeError):
    """Ranks are not at the same mini-batch of a dataset."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where an epoch stands: what is saved, synchronised and checkpointed."""

    epoch: int
    opening: int
    consumed: Ranges
    """Sorted, disjoint."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stretch of an epoch in one generation began with; equal on all ranks."""

    number: int
    consumed: Ranges
    held: Ranges
    """By all ranks that go on with what they hold."""


# --- one rank -----------------------------------------------------------------------------------------------


class Allotment:
    """See the module. Told what was gathered and what the leader gave; asks nobody."""

    def __init__(self, whole: Whole, batch_size: int) -> None:
        self.whole = whole
        self.batch_size = batch_size
        """What this rank wants; the smallest wish of all ranks counts, from the next announcement on."""
        self.pace = 0
        """Of this rank's GPU, as in Record; counts from the next announcement on."""
        self.epoch = 0
        self.has_leader = False
        """There is somebody to ask for more."""
        self.opening: Opening | None = None
        self._rank, self._size = 0, 1
        self._paces: tuple[int, ...] = (0,)
        """Of all ranks, as they last said."""
        self._number = 0
        self._draw = 0
        self._dry = False
        self._left: RangeSet | None = None
        """Positions that nobody has drawn; None before all ranks have agreed on it."""
        self._held: deque[Range] = deque()
        self._held_since = (-1, -1)
        """The epoch and opening of what is held."""
        self._plan: list[deque[Range]] | None = None
        self._plan_for: tuple[int, tuple[int, ...]] = (0, ())
        """The batch size and the paces that it was made for."""
        self._committed = RangeSet()
        self._committed_epoch = 0
        self._committed_number = 0
        self._trained = RangeSet()
        """By all ranks, in this epoch, since the last commit."""
        self._drawn: deque[tuple[Ranges, Ranges]] = deque()
        """And not trained on, oldest first: what all ranks together drew, and what this one did."""

    # --- openings ---

    def enter(self, rank: int, size: int, keep: int | None) -> None:
        """Another set of ranks, or another state: agree anew on who holds what.

        What this rank has drawn and not trained on comes first among what it holds. With `keep`, it goes on
        with no more than that many samples of what it holds; the rest is for whoever asks.
        """
        mine = [each for _, own in self._drawn for each in own]
        rest = self._held if self._plan is None else self._plan[self._rank]
        held = join([*mine, *rest])
        if keep is not None and self._plan is not None:
            held = _first(held, keep)
        self._held = deque(held)
        self._drawn.clear()
        self._rank, self._size, self._paces = rank, size, (0,) * size
        self._close()

    def forget(self) -> None:
        """Go on with nothing of what is held: it was never anybody's business (a newcomer's warm-up)."""
        self._held.clear()
        self._drawn.clear()
        self._trained = RangeSet()
        self._close()

    def next_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`. What was committed stays committed until the next commit."""
        self.epoch = epoch
        self._drawn.clear()
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
        """The leader's answer."""
        if self._plan is None:
            self._held.extend(ranges)
        self._dry = self._dry or dry

    def give_up(self) -> None:
        """Nothing more is to be had in this opening: the leader does not answer."""
        self._dry = True

    def wants(self, ahead: int) -> int:
        """How many samples to ask for, so that `ahead` are held; 0: nothing is to be asked for."""
        if self._left is None or self._plan is not None or not self.has_leader or self._dry:
            return 0
        return 0 if self._is_tail() else max(0, ahead - length(self._held))

    def is_short(self) -> bool:
        """The next mini-batch is not held in full, and more may be had."""
        return self.wants(self.share) > 0

    @property
    def share(self) -> int:
        """Samples of this rank in a mini-batch that is not one of the last two of an epoch."""
        return by_pace(self._size * self.batch_size, self._paces)[self._rank]

    def _is_tail(self) -> bool:
        assert self._left is not None
        return self._left.total < 2 * self._size * self.batch_size

    # --- mini-batches ---

    def record(self) -> Record:
        """What this rank announces before the next mini-batch."""
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
        """What this rank trains on next, by the records of all ranks in order of rank.

        Raises OutOfStep if they are not at the same place.
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
            # who has said that it holds enough went by the shares that it knew of
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
        """The first records of an opening: who goes on with what. Returns what each rank holds."""
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
        """Whether all of it is left, and nothing of it is taken twice."""
        assert self._left is not None
        pieces = sorted(piece for each in taken for piece in each)
        apart = all(one.end <= other.start for one, other in itertools.pairwise(pieces))
        return apart and all(map(self._left.holds, pieces))

    def _make_plan(self, held: Sequence[Iterable[Range]], batch_size: int) -> None:
        """Who takes which of all the samples that are left: first of all what it holds already."""
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
        self._drawn.append((everything, mine))
        self._draw += 1
        weight = length(mine) * self._size / length(everything)
        return Batch(mine or (Range(everything[0].start, 1),), weight)

    def upcoming(self, count: int) -> list[Ranges]:
        """What this rank will probably train on in the next `count` mini-batches, for reading ahead."""
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
        """The oldest `batches` mini-batches not counted yet have been trained on."""
        if batches > len(self._drawn):
            raise ValueError(
                f"'{self.whole.name}': {batches} more mini-batches recorded as trained than were handed out"
            )
        for _ in range(batches):
            everything, _mine = self._drawn.popleft()
            for piece in everything:
                self._trained.add(piece)

    @property
    def untrained(self) -> int:
        """Mini-batches drawn and not recorded as trained."""
        return len(self._drawn)

    @property
    def samples_left(self) -> int:
        """Samples of this epoch that nobody has drawn."""
        if self._left is not None:
            return self._left.total
        committed = self._committed.total if self._committed_epoch == self.epoch else 0
        return self.whole.samples - committed - self._trained.total

    @property
    def is_over(self) -> bool:
        """Everything of this epoch has been drawn, as all ranks know."""
        return self._left is not None and self._left.total == 0

    @property
    def held(self) -> Ranges:
        """What this rank has been given and not drawn."""
        return tuple(self._held)

    @property
    def ranks(self) -> int:
        """Ranks that share the dataset at present."""
        return self._size

    def commit(self) -> None:
        """What has been trained on stays consumed, whatever happens later."""
        if self._committed_epoch != self.epoch:
            self._committed, self._committed_epoch = RangeSet(), self.epoch
        for piece in self._trained:
            self._committed.add(piece)
        self._trained = RangeSet()
        self._committed_number = self._number

    def roll_back(self) -> None:
        """Back to the last commit. What this rank still holds it may go on with."""
        self.epoch, self._number = self._committed_epoch, self._committed_number
        self._drawn.clear()
        self._trained = RangeSet()
        self._left = None

    def ledger(self) -> Ledger:
        """Where the epoch stands now."""
        return Ledger(self.epoch, self._number, tuple(self._consumed()))

    def load(self, ledger: Ledger) -> None:
        """Take another ledger over, as committed. Raises ValueError if it does not fit the dataset."""
        consumed = RangeSet(ledger.consumed)
        if consumed.total != length(ledger.consumed) or not all(
            each.start >= 0 and each.end <= self.whole.samples for each in ledger.consumed
        ):
            raise ValueError(f"'{self.whole.name}': the ledger names samples twice or that do not exist")
        self.epoch, self._number = ledger.epoch, ledger.opening
        self._drawn.clear()
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
    """Take the first `samples` samples off the front."""
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
    """What follows the first `samples` samples."""
    queue = deque(ranges)
    _pop_first(queue, min(samples, length(queue)))
    return tuple(queue)


def _cut_out(free: RangeSet, claim: Range) -> list[Range]:
    """What of `claim` is still free, which then is not any more."""
    found = free.within(claim)
    for piece in found:
        free.remove(piece)
    return found
