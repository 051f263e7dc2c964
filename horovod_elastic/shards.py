"""The leader's side of the data pipeline: the seeded permutation of partitions, handed out on demand. Pure.

The training state that the workers commit decides how far an epoch is. Workers send that ledger to the shard
server at every opening (when a generation or an epoch begins). From then on the server remembers the samples
that it hands out. So the server may be lost at any moment: the next server gets the ledger again, and every
worker tells it the samples that the worker holds.

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
    """The number of partitions of a dataset of `samples` samples if the script does not set it.

    There are far more than workers, and each is large enough to be read in one go (the rule of thumb of
    Amoeba, section 5.3): 256 samples, but at least 64 partitions and at most 4096.
    """
    wanted = samples // SAMPLES_PER_PARTITION
    return min(max(wanted, FEWEST_PARTITIONS, 1), MOST_PARTITIONS, max(samples, 1))


def handing_order(samples: int, partitions: int, seed: int, epoch: int) -> list[Range]:
    """The partitions of a dataset in the order of `epoch`; the result is the same wherever it is computed."""
    order = list(range(partitions))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    bounds = [number * samples // partitions for number in range(partitions + 1)]
    return [Range(bounds[number], bounds[number + 1] - bounds[number]) for number in order]


@dataclass(frozen=True, slots=True)
class Progress:
    """The leader's view of one dataset's progress, at most a few partitions ahead of the workers."""

    dataset: str
    epoch: int
    samples: int
    handed_out: int
    """Number of samples of this epoch that are consumed or that a worker holds."""


Answer = tuple[str, pb.Shards]
"""A worker's id, and the answer for that worker."""


@dataclass(slots=True)
class _Opening:
    """The samples of one dataset that one opening still has to hand out."""

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
        """Hand out the next partitions, or what is left of them. A repeated request gets the same answer."""
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


class ShardServer:
    """Hands out the partitions of all datasets of a job. Methods return the answers to send to workers."""

    def __init__(self) -> None:
        self._openings: dict[str, _Opening] = {}
        self._waiting: dict[tuple[str, str], pb.ShardsWanted] = {}
        """Requests by (dataset, worker), until the opening's ledger is here and all members are heard."""
        self._held: dict[str, tuple[pb.HeldShards, ...]] = {}
        self._unheard: set[str] = set()

    def take_over(self, members: Iterable[str]) -> None:
        """Hand nothing out until each of `members` has been heard, because this leader follows another one.

        `members`: the workers of the present generation. Their messages to the former leader do not count,
        because that leader may have handed out samples since.
        """
        self._unheard = set(members)

    def stands(self, worker_id: str, held: Iterable[pb.HeldShards]) -> list[Answer]:
        """Take the samples that a worker holds, from its WorkerStatus to this leader."""
        self._held[worker_id] = tuple(held)
        self._note_held(self._held[worker_id])
        return self._heard(worker_id)

    def worker_gone(self, worker_id: str) -> list[Answer]:
        """Forget a worker that died or left. Its samples come back with the next generation's ledger."""
        self._held.pop(worker_id, None)
        for asked in [each for each in self._waiting if each[1] == worker_id]:
            del self._waiting[asked]
        return self._heard(worker_id)

    def ledger(self, ledger: pb.ShardLedger) -> list[Answer]:
        """Begin an opening. Workers send the ledger again to a leader that does not know it."""
        known = self._openings.get(ledger.dataset)
        if known is not None and known.key >= (ledger.generation, ledger.opening):
            return []
        self._openings[ledger.dataset] = _Opening.of(ledger)
        for held in self._held.values():
            self._note_held(held)
        return self._answer_waiting()

    def wanted(self, worker_id: str, want: pb.ShardsWanted) -> list[Answer]:
        """Take a request for samples from a worker whose pipeline has room."""
        self._waiting[want.dataset, worker_id] = want
        return self._answer_waiting()

    def progress(self) -> list[Progress]:
        """The progress of each dataset."""
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
