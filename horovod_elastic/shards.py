"""The leader's side of the data pipeline: the seeded permutation of partitions, handed out on demand. Pure.

Where an epoch stands is decided by the training state that the workers commit. The desk is told that ledger
at every opening (a generation or an epoch begins), and from then on remembers what it gives away. So it may
be lost at any moment: another one is told the ledger again, and by every worker what it has been given.

Amoeba, section 5.3: "The leader generates a random permutation of the indexes of the partitions and uses it
for dynamic data assignment."
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flexo_protos.v1 import shards_pb2 as pb
from horovod_elastic.ranges import Range, RangeSet

MOST_PARTITIONS = 4096
SAMPLES_PER_PARTITION = 256
FEWEST_PARTITIONS = 64


def default_partitions(samples: int) -> int:
    """How many partitions a dataset of `samples` samples is split into if the script does not say.

    Far more than workers, and large enough to be read in one go (the rule of thumb of Amoeba, section 5.3):
    256 samples each, but at least 64 partitions and at most 4096.
    """
    wanted = samples // SAMPLES_PER_PARTITION
    return min(max(wanted, FEWEST_PARTITIONS, 1), MOST_PARTITIONS, max(samples, 1))


def handing_order(samples: int, partitions: int, seed: int, epoch: int) -> list[Range]:
    """The partitions of a dataset in the order of this epoch: the same wherever it is computed."""
    order = list(range(partitions))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    bounds = [number * samples // partitions for number in range(partitions + 1)]
    return [Range(bounds[number], bounds[number + 1] - bounds[number]) for number in order]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one dataset is, as the leader knows it: at most a few partitions ahead of the workers."""

    dataset: str
    epoch: int
    samples: int
    handed_out: int
    """Samples of this epoch that are consumed or with a worker."""


Answer = tuple[str, pb.Shards]
"""What a worker, by its id, is to be told."""


@dataclass(slots=True)
class _Opening:
    """What is left to hand out of one dataset in one opening."""

    key: tuple[int, int]
    """(generation, opening): later ones are greater."""
    ledger: pb.ShardLedger
    free: RangeSet
    order: Iterator[Range]
    answers: dict[str, pb.Shards] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: pb.ShardLedger) -> _Opening:
        taken = RangeSet(_ranges([*ledger.consumed, *ledger.held]))
        order = handing_order(ledger.samples, ledger.partitions, ledger.seed, ledger.epoch)
        free = taken.complement(ledger.samples)
        return cls((ledger.generation, ledger.opening), ledger, free, iter(order))

    def take(self, ranges: Iterable[Range]) -> None:
        for each in ranges:
            self.free.remove(each)

    def answer(self, worker_id: str, want: pb.ShardsWanted) -> pb.Shards:
        """The next partitions, or what is left of them; the same again for a request that is repeated."""
        said = self.answers.get(worker_id)
        if said is not None and said.request == want.request:
            return said
        given: list[Range] = []
        missing = max(want.at_least, 1)
        while missing > 0 and self.free.total > 0:
            pieces = self.free.within(next(self.order))
            self.take(pieces)
            given += pieces
            missing -= sum(piece.length for piece in pieces)
        self.answers[worker_id] = pb.Shards(
            dataset=want.dataset,
            generation=want.generation,
            opening=want.opening,
            request=want.request,
            ranges=[pb.Range(start=each.start, length=each.length) for each in given],
            dry=self.free.total == 0,
        )
        return self.answers[worker_id]


class ShardDesk:
    """Hands out the partitions of all datasets of a job. Every method returns what is to be said to whom."""

    def __init__(self) -> None:
        self._openings: dict[str, _Opening] = {}
        self._waiting: dict[tuple[str, str], pb.ShardsWanted] = {}
        """By (dataset, worker): asked before the opening's ledger was here, or before all were heard."""
        self._held: dict[str, tuple[pb.HeldShards, ...]] = {}
        self._unheard: set[str] = set()

    def take_over(self, members: Iterable[str]) -> None:
        """This leader follows another one: hand nothing out until each of `members` has been heard.

        Members are the workers of the present generation. What they said to the leader before does not count:
        it may have given them something since then.
        """
        self._unheard = set(members)

    def stands(self, worker_id: str, held: Iterable[pb.HeldShards]) -> list[Answer]:
        """A Standing of this worker arrived, said to this leader."""
        self._held[worker_id] = tuple(held)
        self._note_held(self._held[worker_id])
        return self._heard(worker_id)

    def worker_gone(self, worker_id: str) -> list[Answer]:
        """It is dead or has left. What it held comes back with the ledger of the next generation."""
        self._held.pop(worker_id, None)
        for asked in [each for each in self._waiting if each[1] == worker_id]:
            del self._waiting[asked]
        return self._heard(worker_id)

    def ledger(self, ledger: pb.ShardLedger) -> list[Answer]:
        """What an opening begins with; said again for a leader that does not know it."""
        known = self._openings.get(ledger.dataset)
        if known is not None and known.key >= (ledger.generation, ledger.opening):
            return []
        self._openings[ledger.dataset] = _Opening.of(ledger)
        for held in self._held.values():
            self._note_held(held)
        return self._answer_waiting()

    def wanted(self, worker_id: str, want: pb.ShardsWanted) -> list[Answer]:
        """A worker's pipeline has room."""
        self._waiting[want.dataset, worker_id] = want
        return self._answer_waiting()

    def progress(self) -> list[Progress]:
        """How far each dataset is."""
        return [
            Progress(name, each.ledger.epoch, each.ledger.samples, each.ledger.samples - each.free.total)
            for name, each in sorted(self._openings.items())
        ]

    def _note_held(self, held: Iterable[pb.HeldShards]) -> None:
        for each in held:
            opening = self._openings.get(each.dataset)
            if opening is not None and opening.key == (each.generation, each.opening):
                opening.take(_ranges(each.ranges))

    def _heard(self, worker_id: str) -> list[Answer]:
        if worker_id not in self._unheard:
            return []
        self._unheard.discard(worker_id)
        return self._answer_waiting()

    def _answer_waiting(self) -> list[Answer]:
        if self._unheard:
            return []
        answers: list[Answer] = []
        for (dataset, worker_id), want in list(self._waiting.items()):
            opening = self._openings.get(dataset)
            if opening is None or opening.key < (want.generation, want.opening):
                continue
            del self._waiting[dataset, worker_id]
            if opening.key == (want.generation, want.opening):
                answers.append((worker_id, opening.answer(worker_id, want)))
        return answers


def _ranges(said: Iterable[pb.Range]) -> list[Range]:
    return [Range(each.start, each.length) for each in said]
