"""A job that trains on one dataset, simulated in one thread: ranks, leader, commits, resizes, crashes.

The ranks run the real horovod_elastic.data.shard_reader. The collective, the session's stream and the
leader's mailbox are simulated, so that everything can be delayed, lost and cut off at any point.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch")

from flexo_protos.v1 import shards_pb2 as pb
from flexo_protos.v1 import workers_pb2
from horovod_elastic.data import shard_client as clients
from horovod_elastic.data.allotment import Batch, Record
from horovod_elastic.data.communicator import Alone, Records, decode, encode
from horovod_elastic.data.shard_reader import ShardReader, Wait
from horovod_elastic.shards import ShardServer

clients.PATIENCE_S = 0.0
clients.RETRY_S = 0.0


class Broke(Exception):
    """As HorovodInternalError: somebody of the generation is dead."""


@dataclass
class Collective:
    """The allgather of one generation."""

    size: int
    rounds: list[dict[int, list[int]]] = field(default_factory=list)
    broken: bool = False
    gone: set[int] = field(default_factory=set)
    """The ranks that have died, where the others go on without them."""

    def is_whole(self, number: int) -> bool:
        """Whether all that live have taken part in this round."""
        return self.rounds[number].keys() | self.gone >= set(range(self.size))


class Gathering:
    def __init__(self, collective: Collective, number: int) -> None:
        self._collective, self._number = collective, number

    @property
    def done(self) -> bool:
        return self._collective.broken or self._collective.is_whole(self._number)

    def finish(self) -> Records:
        told = self._collective.rounds[self._number]
        whole = self._collective.is_whole(self._number)
        if self._collective.broken and not whole:
            raise Broke
        assert whole, "finished before everybody has begun"
        return decode([number for rank in sorted(told) for number in told[rank]])


class Ranks:
    """One rank's communicator."""

    def __init__(self, collective: Collective, rank: int) -> None:
        self._collective, self._rank, self._begun = collective, rank, 0

    def place(self) -> tuple[int, int]:
        return self._rank, self._collective.size

    def begin(self, name: str, record: Record) -> Gathering:
        if self._collective.broken:
            raise Broke
        if self._begun == len(self._collective.rounds):
            self._collective.rounds.append({})
        self._collective.rounds[self._begun][self._rank] = encode(self._rank, record)
        self._begun += 1
        return Gathering(self._collective, self._begun - 1)

    def failure(self, why: str) -> Exception:
        return Broke(why)


class Session:
    """A worker's session: its stream ends in the job's mailbox."""

    def __init__(self, worker_id: str, say: Callable[[str, workers_pb2.FromWorker], None]) -> None:
        self.worker_id, self._say = worker_id, say
        self.generation = 0
        self.warming = True
        self.speed = 0.0
        self.untrained: frozenset[int] = frozenset()
        """The ranks that have died, and have not trained in the last step."""
        self.hear: Callable[[pb.Shards], None] = lambda shards: None
        self.held: Callable[[], Iterable[pb.HeldShards]] = tuple

    def absent(self) -> frozenset[int]:
        return self.untrained

    def send(self, message: workers_pb2.FromWorker) -> None:
        self._say(self.worker_id, message)

    def on_shards(self, callback: Callable[[pb.Shards], None]) -> None:
        self.hear = callback

    def tell_held(self, held: Callable[[], Iterable[pb.HeldShards]]) -> None:
        self.held = held


@dataclass
class Worker:
    """One training process."""

    worker_id: str
    session: Session | None
    share: ShardReader
    communicator: Any
    commits: int = 0


@dataclass
class Trained:
    """What the training state has seen: how often each position of each epoch."""

    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    epoch: int = 0


class Job:
    """See the module. All checks are made as it goes; `finish_epoch` makes the last one."""

    def __init__(
        self,
        samples: int,
        batch_size: int,
        workers: int,
        *,
        partitions: int | None = None,
        seed: int = 7,
        flexo: bool = True,
        loses: Callable[[], bool] = lambda: False,
        delays: Callable[[], bool] = lambda: False,
        drawn_ahead: int = 0,
        speeds: Sequence[float] = (),
    ) -> None:
        self.samples, self.batch_size, self.partitions, self.seed = samples, batch_size, partitions, seed
        self.flexo, self.loses, self.delays = flexo, loses, delays
        self.leader = ShardServer()
        self.leader_away = False
        self.mail: list[tuple[str, workers_pb2.FromWorker]] = []
        self.drawn_ahead = drawn_ahead
        self.drawn: list[list[Batch]] = []
        self.generation = 0
        self.commits = 0
        self.state = Trained()
        self.saved = {0: (Counter(self.state.seen), 0)}
        self._names = itertools.count()
        self._speeds = itertools.cycle(speeds or [0.0])
        """Of one newcomer after the other."""
        self._was_uneven = False
        """Whether speeds differed at the mini-batch before."""
        self.workers: list[Worker] = []
        self.aside: list[Worker] = []
        """Out of the generation, with what they held, and perhaps called back."""
        self.steps: list[list[Batch]] = []
        self.resize(join=workers)

    # --- who is there ---

    def newcomer(self) -> Worker:
        name = f"w{next(self._names)}"
        session = Session(name, self._say) if self.flexo else None
        if session is not None:
            session.speed = next(self._speeds)
        worker = Worker(name, session, None, Alone())  # type: ignore[arg-type]
        worker.share = ShardReader(
            "data",
            self.samples,
            self.batch_size,
            self.seed,
            self.partitions,
            ahead=2,
            counts_itself=self.drawn_ahead == 0,
            find_communicator=lambda: worker.communicator,
            session=lambda: session,
        )
        return worker

    def _warm_up(self, worker: Worker) -> None:
        """A script may take mini-batches and commit before it joins; that is nobody's business."""
        for _ in range(self.generation % 3):
            worker.share.draw()
            worker.share.save()

    def resize(
        self, *, leave: Iterable[int] = (), join: int = 0, order: int = 0, call_back: bool = False
    ) -> None:
        """A planned change at a mini-batch boundary: the loop saves, and synchronises if somebody is new.

        Horovod's own loop leaves the synchronisation out only if workers have gone and none have come.
        """
        leave = set(leave)
        new = [self.newcomer() for _ in range(join)]
        for worker in self.workers:
            worker.share.save()
            assert worker.share._gathering is None, "something is under way when the communicator changes"
            worker.commits = self.commits
        self.saved[self.commits] = (Counter(self.state.seen), self.state.epoch)
        if self.flexo and self.workers:
            for worker in new:
                self._warm_up(worker)
        if call_back:
            new += self.aside
            self.aside.clear()
        stay = [worker for rank, worker in enumerate(self.workers) if rank not in leave]
        others = [*stay[1:], *new]
        random.Random(order).shuffle(others)
        members = [*stay[:1], *others]
        for worker in self.workers:
            if worker not in stay:
                self.leader.worker_gone(worker.worker_id)
                self.aside.append(worker)
        if stay and (new or not (self.flexo or leave)):
            self._synchronise(members)
        self._form(members)

    def crash(self, dead: Iterable[int], committed: Iterable[int] = ()) -> None:
        """Some die. Of the others, those in `committed` had committed the last mini-batch already."""
        dead, ahead = set(dead), set(committed)
        live = [worker for rank, worker in enumerate(self.workers) if rank not in dead]
        self.workers[0].communicator._collective.broken = True
        if ahead:
            self._commit([worker for rank, worker in enumerate(self.workers) if rank in ahead])
        for rank in dead:
            self.leader.worker_gone(self.workers[rank].worker_id)
        if not live:
            raise AssertionError("somebody has to survive")
        for worker in live:
            worker.share.restore()
        live.sort(key=lambda worker: -worker.commits)
        seen, epoch = self.saved[live[0].commits]
        self.state, self.commits = Trained(Counter(seen), epoch), live[0].commits
        self._synchronise(live)
        self._form(live)

    def _synchronise(self, members: list[Worker]) -> None:
        state = members[0].share.state_dict()
        for worker in members:
            worker.share.load_state_dict(state)
            worker.share.save()
            worker.commits = members[0].commits

    def _form(self, members: list[Worker]) -> None:
        self.generation += 1
        self.drawn.clear()
        collective = Collective(len(members))
        for rank, worker in enumerate(members):
            worker.communicator = Ranks(collective, rank)
            if worker.session is not None:
                worker.session.generation, worker.session.warming = self.generation, False
        self.workers = members

    @property
    def uneven(self) -> bool:
        """Whether somebody's GPU is said to be faster than another's."""
        return len({worker.session.speed for worker in self.workers if worker.session}) > 1

    # --- training ---

    def step(self, stop_after: int | None = None) -> bool:
        """One mini-batch everywhere; False at the end of an epoch, which is checked.

        With `stop_after`, ranks stop dead after so many moves: for a crash in the middle. With `drawn_ahead`,
        so many mini-batches are drawn before the oldest of them is trained on.
        """
        while len(self.drawn) <= self.drawn_ahead:
            batches = self._draw(stop_after)
            if not batches:
                break
            self.drawn.append(batches)
        if stop_after is not None:
            return True
        if not self.drawn:
            self._check_epoch()
            for worker in self.workers:
                worker.share.go_to(self.state.epoch)
            return False
        if self.drawn_ahead:
            for worker in self.workers:
                worker.share.allotment.trained()
        self._train(self.drawn.pop(0))
        return True

    def _draw(self, stop_after: int | None) -> list[Batch]:
        """One mini-batch of each rank; nothing at the end of the epoch."""
        left = self.samples - sum(epoch == self.state.epoch for epoch, _ in self.state.seen)
        left -= sum(_samples(batch) for batches in self.drawn for batch in batches)
        drawing = {rank: worker.share.drawing() for rank, worker in enumerate(self.workers)}
        drawn: dict[int, Batch | None] = {}
        waits: dict[int, Wait] = {}
        moves = 0
        while drawing:
            before = moves
            for rank in list(drawing):
                gathering = self.workers[rank].share._gathering
                if waits.get(rank) is Wait.FOR_RANKS and not gathering.done:
                    continue
                if stop_after is not None and moves >= stop_after:
                    return []
                moves += 1
                try:
                    waits[rank] = next(drawing[rank])
                except StopIteration as end:
                    drawn[rank] = end.value
                    del drawing[rank]
            assert moves > before, "everybody waits for somebody"
            self.deliver()
        batches = [drawn[rank] for rank in range(len(self.workers))]
        if batches[0] is None:
            assert batches == [None] * len(batches)
            return []
        self._check_sizes(left, [batch for batch in batches if batch is not None])
        return batches

    def _check_sizes(self, left: int, batches: list[Batch]) -> None:
        assert len(batches) == len(self.workers)
        real = [batch for batch in batches if batch.weight > 0]
        assert len(real) == min(left, len(batches)), "somebody had nothing although there was enough"
        before, self._was_uneven = self._was_uneven, self.uneven
        if not before and not self.uneven:  # speeds count from the next mini-batch on
            sizes = [_samples(batch) for batch in real]
            assert max(sizes) - min(sizes) <= 1
        assert abs(sum(batch.weight for batch in batches) - len(batches)) < 1e-9

    def _train(self, batches: list[Batch]) -> None:
        self.steps.append(batches)
        for batch in (batch for batch in batches if batch.weight > 0):
            for each in batch.ranges:
                for position in range(each.start, each.end):
                    self.state.seen[self.state.epoch, position] += 1
                    assert self.state.seen[self.state.epoch, position] == 1, "a sample was seen twice"

    def _check_epoch(self) -> None:
        seen = {position for epoch, position in self.state.seen if epoch == self.state.epoch}
        assert seen == set(range(self.samples)), "a sample was left out"
        self.state.epoch += 1

    def commit(self) -> None:
        self._commit(self.workers)

    def _commit(self, workers: list[Worker]) -> None:
        self.commits += 1
        self.saved[self.commits] = (Counter(self.state.seen), self.state.epoch)
        for worker in workers:
            worker.share.save()
            worker.commits = self.commits

    def finish_epoch(self) -> int:
        """Train to its end; how many mini-batches that took."""
        steps = 1
        while self.step():
            steps += 1
            assert steps < 10_000
        return steps - 1

    # --- the leader ---

    def _say(self, worker_id: str, message: workers_pb2.FromWorker) -> None:
        self.mail.append((worker_id, message))

    def deliver(self) -> None:
        """What was said reaches the leader, and its answers the workers; or gets lost."""
        if self.delays():
            return
        mail, self.mail = self.mail, []
        by_id = {worker.worker_id: worker for worker in self.workers}
        for worker_id, message in mail:
            if self.leader_away or self.loses():
                continue
            if message.HasField("shard_ledger"):
                answers = self.leader.ledger(message.shard_ledger)
            else:
                answers = self.leader.wanted(worker_id, message.shards_wanted)
            for receiver, shards in answers:
                if receiver in by_id and not self.loses():
                    by_id[receiver].session.hear(shards)

    def new_leader(self, *, hears: bool = True) -> None:
        """The leader is killed; another one takes over and is told how everybody stands, or should be."""
        self.leader_away = False
        self.leader = ShardServer()
        if not hears:
            return
        self.leader.take_over(worker.worker_id for worker in self.workers)
        for worker in self.workers:
            self.leader.stands(worker.worker_id, list(worker.session.held()))


def _samples(batch: Batch) -> int:
    """That count: a sample that belongs to another rank does not."""
    return sum(each.length for each in batch.ranges) if batch.weight > 0 else 0
