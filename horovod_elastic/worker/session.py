"""One training process's conversation with its job's leader, through the agent of its node.

The training thread asks (`found`, `join`, `at_boundary`, `recover`) and waits; one thread reads what the
leader says, one builds communicators in the background, one says every second how this worker stands. What is
said when is decided in part.py. Nothing is connected before the script calls hvd.init.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

import grpc

from flexo_protos.v1 import shards_pb2, tasks_pb2
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import threads
from horovod_elastic.core.interface import Core, CoreFailed, Place
from horovod_elastic.phase import Phase
from horovod_elastic.trace import say, say_error
from horovod_elastic.wire import CHANNEL_OPTIONS, SECRET_KEY
from horovod_elastic.worker import departure
from horovod_elastic.worker.part import Called, Part

STANDING_INTERVAL_S = 1.0
AGENT_AWAY_S = 60.0
"""How long a worker trains on without any agent on its node."""
PAUSE_BETWEEN_AGENTS_S = 0.1
_RECONNECT_SOON = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
MOST_STEPS_TOLD = 256
"""Mini-batch times kept between two standings; of very short mini-batches the last ones count."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a newcomer's script is told while it warms up alone."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Session:
    """See the module. Made once per training process, from the variables that its agent set."""

    def __init__(self) -> None:
        environment = os.environ
        self._pid = os.getpid()
        # Removed, so that what the script starts does not take itself for this worker.
        self.worker_id = environment.pop("FLEXO_WORKER_ID")
        self._secret = environment.pop("FLEXO_WORKER_SECRET")
        self._agent = environment["FLEXO_AGENT"]
        self.warming = environment.pop("FLEXO_NEWCOMER", "") == "1"
        """A newcomer that has not joined yet: it runs alone, with a communicator of size 1."""
        self.outlook = _outlook(environment.pop("FLEXO_OUTLOOK", "")) if self.warming else None
        self.core: Core | None = None
        """Set by the hooks before anything is asked."""
        self.speed = 0.0
        """Of this worker's GPU beside those of others, as the leader has said; 0.0: all count alike."""
        self.samples_per_step = 0
        """Of this worker, if the script has said so."""
        self._part = Part()
        self._changed = threading.Condition()
        self._places: dict[int, Place] = {}
        self._prepared = 0
        self._told_to_leave: str | None = None
        self._lost = False
        self._outbox: queue.SimpleQueue[pb.FromWorker | None] = queue.SimpleQueue()
        self._builds: queue.SimpleQueue[Place] = queue.SimpleQueue()
        self._tasks: deque[tasks_pb2.Task] = deque()
        self._aggregates: dict[int, int] = {}
        """By generation, what SetBatch has said."""
        self._steps = _StepTimes()
        self._switches_since: float | None = None
        """When this worker came to the boundary at which it leaves its generation for the next one."""
        self._paused_s = 0.0
        self._channel: grpc.Channel | None = None
        self._on_shards: list[Callable[[shards_pb2.Shards], None]] = []
        self._held: list[Callable[[], Iterable[shards_pb2.HeldShards]]] = []

    def belongs_here(self) -> bool:
        """False in a process that the training process forked."""
        return os.getpid() == self._pid

    # --- for those who work beside the training loop --------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation that this worker is in, or has left; 0 before the first."""
        return self._part.generation

    @property
    def rank(self) -> int:
        """This worker's rank in that generation."""
        return self._part.rank

    @property
    def boundary(self) -> int:
        """The last mini-batch boundary of that generation that this worker has passed; from 1."""
        return self._part.boundary

    @property
    def size(self) -> int:
        """Workers in that generation."""
        return self._part.size

    @property
    def commits(self) -> int:
        """Mini-batches committed by the state that this worker could come back to."""
        return self._part.commits

    def send(self, message: pb.FromWorker) -> None:
        """Say something to the leader."""
        self._outbox.put(message)

    def on_shards(self, callback: Callable[[shards_pb2.Shards], None]) -> None:
        """Have `callback` called with what the leader hands out, in the session's thread."""
        self._on_shards.append(callback)

    def tell_held(self, held: Callable[[], Iterable[shards_pb2.HeldShards]]) -> None:
        """Have every Standing say what `held` returns."""
        self._held.append(held)

    def aggregate_of_this_generation(self) -> int:
        """Samples that all workers take in a step together, if the leader has said so for it; else 0."""
        with self._changed:
            said = self._aggregates.get(self.generation, 0)
            self._aggregates = {each: n for each, n in self._aggregates.items() if each > self.generation}
        return said

    def take_tasks(self) -> list[tasks_pb2.Task]:
        """What the leader wants done at this boundary."""
        with self._changed:
            tasks = list(self._tasks)
            self._tasks.clear()
        return tasks

    # --- asked by the training thread ---------------------------------------------------------------------

    def found(self) -> None:
        """First hvd.init of a founder: wait until all founders are there, take the place given."""
        self._wait_to_be_called(Part.wait_ready)

    def join(self) -> Called:
        """A newcomer, warmed up, at hvd.elastic.run: wait for its first generation."""
        word = self._wait_to_be_called(Part.wait_ready, in_loop=True)
        self.warming, self.outlook = False, None
        return word

    def enter_loop(self) -> None:
        """The script is at hvd.elastic.run, so it can be resized."""
        with self._changed:
            self._part.in_loop = True
            if self._part.phase is Phase.FINISHED:
                self._part.phase = Phase.TRAINING
        self._stand()

    def begins(self, commits: int, *, saved: bool = True) -> None:
        """The state has been synchronised; training goes on from its `commits` mini-batches.

        Not `saved`: if this generation broke now, others would have to give it to this worker again.
        """
        with self._changed:
            self._part.begins(commits, saved=saved)
            if self._switches_since is not None:
                self._paused_s = time.monotonic() - self._switches_since
                self._switches_since = None
        self._steps.begin(self._waited())

    def committed(self, progress: float = 0.0) -> None:
        """A mini-batch was committed; `progress` is the part of the whole training that is done, if known."""
        self._part.committed()
        self._part.progress = progress

    def has_saved(self) -> None:
        """The state was saved between two commits."""
        self._part.has_saved()

    def at_boundary(self) -> Called | None:
        """A mini-batch has ended. Blocks where that was promised; the word, if it is to be carried out."""
        self._steps.end(self._waited())
        part, since = self._part, time.monotonic()
        with self._changed:
            if not part.in_loop or part.phase is not Phase.TRAINING:
                return None
            if not part.may_pass():
                self._stand()
                while not part.may_pass():
                    self._check_agent()
                    self._changed.wait()
            word = part.pass_boundary()
            self._switches_since = None if word is None or word.aside else since
        self._steps.begin(self._waited())
        return word

    def enter(self, word: Called) -> Called:
        """Switch to the generation of `word`; if that cannot be, the one that there is to be instead."""
        core = self._core()
        try:
            core.switch(word.generation)
        except CoreFailed:
            return self.recover()
        place = self._places[word.generation]
        with self._changed:
            self._part.enter(word, place.rank, place.size)
            self._paused_s = 0.0
            broken = self._part.broken >= word.generation
            for generation in [old for old in self._places if old < word.generation]:
                del self._places[generation]
        self._stand()
        if broken:
            core.hang_up(word.generation)
        return word

    def step_aside(self) -> Called:
        """Out of the generation at a boundary, until called back."""
        self._core().leave()
        return self._wait_to_be_called(Part.wait_ready)

    def leave(self) -> NoReturn:
        """Out of the generation at a boundary, and out of the job: SystemExit with 0."""
        self._core().leave()
        departure.leave()

    def hang_up(self) -> None:
        """A collective failed: let everybody notice."""
        self._core().hang_up(self._part.generation)
        self._core().settle()

    def recover(self) -> Called:
        """Back at the last commit after a generation broke: wait for the next one, and enter it."""
        return self._wait_to_be_called(Part.go_back)

    def finished(self) -> None:
        """The training function has returned."""
        with self._changed:
            self._part.finish()
        self._stand()

    def _wait_to_be_called(self, begin: Callable[[Part], None], *, in_loop: bool = False) -> Called:
        with self._changed:
            self._part.in_loop = self._part.in_loop or in_loop
            begin(self._part)
        self._stand()
        with self._changed:
            while (word := self._part.take_call()) is None:
                if self._told_to_leave is not None:
                    departure.leave()
                self._check_agent()
                self._changed.wait()
        if word.leave:
            departure.leave()
        return self.enter(word)

    def _check_agent(self) -> None:
        if self._lost:
            sys.exit("flexo: the agent of this node is gone; this worker ends")

    def _core(self) -> Core:
        assert self.core is not None
        return self.core

    def _waited(self) -> float:
        return 0.0 if self.core is None else self.core.waited_s

    # --- the stream -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Dial the agent, once; from then on whichever agent is there. Raises grpc.FutureTimeoutError."""
        if self._channel is not None:
            return
        self._channel = grpc.insecure_channel(self._agent, options=(*CHANNEL_OPTIONS, *_RECONNECT_SOON))
        grpc.channel_ready_future(self._channel).result(timeout=AGENT_AWAY_S)
        works = (
            ("read", self._keep_in_touch),
            ("stand", self._keep_standing),
            ("build", self._keep_building),
        )
        for name, work in works:
            threads.start(work, name=f"flexo-{name}", failed=_end_this_worker)

    def _keep_in_touch(self) -> None:
        """Speak with the agent; if it is gone, with the next one, which knows nothing yet."""
        assert self._channel is not None
        stub = rpc.AgentServiceStub(self._channel)
        try:
            while True:
                grpc.channel_ready_future(self._channel).result(timeout=AGENT_AWAY_S)
                self._read(stub.AttachWorker(self._outgoing(), metadata=((SECRET_KEY, self._secret),)))
                time.sleep(PAUSE_BETWEEN_AGENTS_S)
        except grpc.FutureTimeoutError:
            with self._changed:
                self._lost = True
                self._changed.notify_all()

    def _outgoing(self) -> Iterator[pb.FromWorker]:
        """What one agent is told: who this is, how it stands, and whatever comes."""
        yield pb.FromWorker(hello=pb.WorkerHello(worker_id=self.worker_id, pid=self._pid))
        with self._changed:
            outbox, self._outbox = self._outbox, queue.SimpleQueue()
        outbox.put(None)  # ends the stream before this one, should it still be there
        outbox = self._outbox
        self._stand()
        while (message := outbox.get()) is not None:
            yield message

    def _keep_standing(self) -> None:
        while True:
            time.sleep(STANDING_INTERVAL_S)
            self._stand(with_steps=True)

    def _stand(self, *, with_steps: bool = False) -> None:
        """Say how this worker stands."""
        held = [each for tell in self._held for each in tell()]
        with self._changed:
            part = self._part
            standing = pb.Standing(
                phase=part.phase.value,
                generation=part.generation,
                rank=part.rank,
                size=part.size,
                commits=part.commits,
                boundary=part.boundary,
                in_loop=part.in_loop,
                holding=part.holding,
                prepared=self._prepared,
                called=part.called,
                going=part.going,
                progress=part.progress,
                held=held,
                paused_s=self._paused_s,
            )
            if with_steps:
                standing.steps.CopyFrom(self._steps.told(self.samples_per_step))
            self.send(pb.FromWorker(standing=standing))

    def _read(self, stream: Iterator[pb.ToWorker]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in stream:
                self._hear(message)

    def _hear(self, message: pb.ToWorker) -> None:
        kind = message.WhichOneof("body")
        if kind == "prepare":
            self._hear_prepare(message.prepare)
        elif kind == "abandon":
            self._hear_abandon(message.abandon.generation)
        elif kind == "propose":
            self._hear_propose(message.propose)
        elif kind == "go":
            self._hear_go(message.go)
        elif kind == "broken":
            self._hear_broken(message.broken.generation)
        elif kind == "shards":
            for callback in self._on_shards:
                callback(message.shards)
        else:
            self._hear_briefly(message)

    def _hear_briefly(self, message: pb.ToWorker) -> None:
        with self._changed:
            if message.HasField("withdraw"):
                self._part.withdrawn(message.withdraw.generation, message.withdraw.at)
            elif message.HasField("leave"):
                self._told_to_leave = message.leave.reason
            elif message.HasField("task") and message.task.HasField("set_batch"):
                batch = message.task.set_batch
                self._aggregates[batch.generation] = batch.aggregate
            elif message.HasField("task") and message.task.HasField("set_speed"):
                self.speed = message.task.set_speed.speed
            elif message.HasField("task"):
                self._tasks.append(message.task)
            self._changed.notify_all()

    def _hear_prepare(self, prepare: pb.Prepare) -> None:
        place = Place(
            generation=prepare.generation,
            rank=prepare.rank,
            size=prepare.size,
            local_rank=prepare.local_rank,
            local_size=prepare.local_size,
            cross_rank=prepare.cross_rank,
            cross_size=prepare.cross_size,
            hostname=prepare.hostname,
            rendezvous_address=prepare.rendezvous_address,
            rendezvous_port=prepare.rendezvous_port,
        )
        with self._changed:
            self._places[place.generation] = place
        self._builds.put(place)

    def _hear_abandon(self, generation: int) -> None:
        """That one and all before it that were not entered."""
        with self._changed:
            # A word that was given stands, whatever a new leader believes.
            kept = {self._part.generation, self._part.called}
            given_up = [each for each in self._places if each <= generation and each not in kept]
            for each in given_up:
                del self._places[each]
            if self._prepared in given_up:
                self._prepared = 0
        for each in given_up:
            self._core().abandon(each)

    def _hear_propose(self, propose: pb.Propose) -> None:
        with self._changed:
            answer = self._part.proposed(propose.generation, propose.at)
        accepted = pb.Accepted(
            generation=answer.generation, at=answer.at, boundary=answer.boundary, passed=answer.passed
        )
        self.send(pb.FromWorker(accepted=accepted))

    def _hear_go(self, go: pb.Go) -> None:
        with self._changed:
            self._part.given(Called(go.generation, go.at, go.sync, go.leave, go.aside))
            self._changed.notify_all()
        self._stand()

    def _hear_broken(self, generation: int) -> None:
        with self._changed:
            member, present = self._part.is_broken(generation), self._part.generation
            holding, self._part.promised = self._part.holding, 0
            if holding:
                self._changed.notify_all()
        if member:  # if it is just switching: `enter` sees to the next one, should that be broken, too
            self._core().hang_up(present)

    def _keep_building(self) -> None:
        while True:
            place = self._builds.get()
            if place.generation not in self._places:
                continue
            failure = ""
            try:
                self._core().prepare(place)
            except Exception as error:  # this thread is to answer the next one, too
                failure = str(error) or "the communicator could not be built"
            with self._changed:
                if not failure:
                    self._prepared = place.generation
            self.send(pb.FromWorker(prepared=pb.Prepared(generation=place.generation, failure=failure)))


def _end_this_worker(error: Exception) -> None:
    """A thread of the session has failed, and a worker that hears nothing could hold up all others.

    Its peers go back to the last commit, and its agent starts another worker in its place.
    """
    if sys.is_finalizing() or not threading.main_thread().is_alive():
        return  # the script has ended, and its exit code stands
    say_error(error)
    say("this worker ends: without that thread it would hear nothing of the job's other workers")
    os._exit(1)


class _StepTimes:
    """How long mini-batches take, with and without waiting for others (seconds)."""

    def __init__(self) -> None:
        self._own: deque[float] = deque(maxlen=MOST_STEPS_TOLD)
        self._wall: deque[float] = deque(maxlen=MOST_STEPS_TOLD)
        self._began: tuple[float, float] | None = None

    def begin(self, waited: float) -> None:
        """A mini-batch begins; `waited` is the core's total so far."""
        self._began = time.monotonic(), waited

    def end(self, waited: float) -> None:
        """It has ended."""
        if self._began is not None:
            wall = time.monotonic() - self._began[0]
            self._wall.append(wall)
            self._own.append(max(0.0, wall - (waited - self._began[1])))

    def told(self, samples: int) -> pb.StepTimes:
        """What was not told yet."""
        own = [self._own.popleft() for _ in range(len(self._own))]
        wall = [self._wall.popleft() for _ in range(len(self._wall))]
        return pb.StepTimes(own_s=own, wall_s=wall, samples=samples)


@cache
def current() -> Session:
    """The session of this training process."""
    return Session()


def _outlook(text: str) -> Outlook | None:
    """From "rank,size,local_rank,local_size,cross_rank,cross_size"."""
    numbers = [int(part) for part in text.split(",")] if text else []
    return Outlook(*numbers) if len(numbers) == 6 else None
