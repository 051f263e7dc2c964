"""One training process's conversation with its job's leader, through the agent of its node.

The training thread calls `found`, `join`, `at_boundary` and `recover`, and waits in them. One thread reads
the leader's messages, one builds communicators in the background, and one reports this worker's status every
second. participant_state.py decides which messages are sent when. Nothing is connected before the script
calls hvd.init.
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
from horovod_elastic import reproducible, threads
from horovod_elastic.core.interface import Core, CoreFailed, RankPlacement
from horovod_elastic.phase import Phase
from horovod_elastic.trace import say, say_error
from horovod_elastic.wire import CHANNEL_OPTIONS, SECRET_KEY
from horovod_elastic.worker import departure
from horovod_elastic.worker.participant_state import Called, ParticipantState
from horovod_elastic.worker.trials import Trials

STANDING_INTERVAL_S = 1.0
AGENT_AWAY_S = 60.0
"""Seconds that a worker trains on without any agent on its node."""
PAUSE_BETWEEN_AGENTS_S = 0.1
_RECONNECT_SOON = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
MOST_STEPS_TOLD = 256
"""The limit of mini-batch times kept between two reports. Of very short mini-batches, the last are kept."""


@dataclass(frozen=True, slots=True)
class ProjectedRank:
    """The rank and size that a newcomer's script is told while it warms up alone."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Session:
    """The session of a training process (see the module). Made once, from variables that the agent set."""

    def __init__(self) -> None:
        environment = os.environ
        self._pid = os.getpid()
        # Removed, so that a process that the script starts does not take itself for this worker.
        self.worker_id = environment.pop("FLEXO_WORKER_ID")
        self._secret = environment.pop("FLEXO_WORKER_SECRET")
        self._agent = environment["FLEXO_AGENT"]
        self.warming = environment.pop("FLEXO_NEWCOMER", "") == "1"
        """Whether this is a newcomer that has not joined yet: it runs alone, in a communicator of size 1."""
        self.projected_rank = _outlook(environment.pop("FLEXO_OUTLOOK", "")) if self.warming else None
        self.core: Core | None = None
        """The core, which the hooks set before the training thread calls anything else."""
        self.speed = 0.0
        """The speed of this worker's GPU relative to other workers' GPUs, as the leader has said; 0.0: all
        speeds count alike."""
        self.epoch = 0
        """The script's pass over its training loader, from 1 (ddp Loader.begins); 0: not known."""
        self.epoch_of_others = 0
        """The same of those who train, for a newcomer."""
        self.batches: tuple[int, ...] = ()
        """The batch of each DataLoader that the script has made, in order; 0: not known."""
        self.batches_of_others: tuple[int, ...] = ()
        """The same of those who train, for a newcomer."""
        self.told_first = False
        """Whether the script was told rank 0, and any worker can give the state to the others."""
        self.fixed_why = ""
        """Why this script can never be resized; "" if it can, or that is not known yet."""
        self.layout = ""
        """A digest of what must be the same on all workers; "" if the script has told nothing."""
        self.samples_per_step = 0
        """The number of this worker's samples in a step, if the script has said so; else 0."""
        self.trials = Trials()
        """The trials of several batches, which the leader may ask for."""
        self.on_cannot_enter: Callable[[], None] = lambda: None
        """Called by the training thread when it cannot enter a generation, and is to wait for another one."""
        self._part = ParticipantState()
        if reproducible.virtual_workers(environment):  # a new leader has to know the rank
            self._part.rank = int(environment["RANK"])
        self._changed = threading.Condition()
        self._places: dict[int, RankPlacement] = {}
        self._prepared = 0
        self._told_to_leave: str | None = None
        self._lost = False
        self._outbox: queue.SimpleQueue[pb.FromWorker | None] = queue.SimpleQueue()
        self._builds: queue.SimpleQueue[RankPlacement] = queue.SimpleQueue()
        self._tasks: deque[tasks_pb2.Task] = deque()
        self._aggregates: dict[int, int] = {}
        """By generation: the aggregate batch that a task SetBatch has set."""
        self._steps = _StepTimes()
        self._switches_since: float | None = None
        """The time at which this worker came to the boundary where it leaves for the next generation."""
        self._paused_s = 0.0
        self._channel: grpc.Channel | None = None
        self._on_shards: list[Callable[[shards_pb2.Shards], None]] = []
        self._held: list[Callable[[], Iterable[shards_pb2.HeldShards]]] = []

    def belongs_here(self) -> bool:
        """Whether this is the training process itself, and not a process that it has forked."""
        return os.getpid() == self._pid

    # --- for those who work beside the training loop --------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation that this worker is in, or has left; 0 before the first."""
        return self._part.generation

    @property
    def rank(self) -> int:
        """This worker's rank in `generation`."""
        return self._part.rank

    @property
    def place(self) -> RankPlacement:
        """This worker's place in `generation`. Raises KeyError before the first."""
        return self._places[self._part.generation]

    @property
    def boundary(self) -> int:
        """The last mini-batch boundary of `generation` that this worker has passed; counted from 1."""
        return self._part.boundary

    @property
    def size(self) -> int:
        """The number of workers in `generation`."""
        return self._part.size

    @property
    def commits(self) -> int:
        """The number of mini-batches committed by the state that this worker could restore."""
        return self._part.commits

    def absent(self) -> frozenset[int]:
        """The ranks that have died and have not trained in the last step (see Core.absent)."""
        return frozenset() if self.core is None else self.core.absent()

    def send(self, message: pb.FromWorker) -> None:
        """Send a message to the leader."""
        self._outbox.put(message)

    def on_shards(self, callback: Callable[[shards_pb2.Shards], None]) -> None:
        """Register `callback`: a thread of the session calls it with the shards that the leader hands out."""
        self._on_shards.append(callback)

    def tell_held(self, held: Callable[[], Iterable[shards_pb2.HeldShards]]) -> None:
        """Have every WorkerStatus message contain what `held` returns."""
        self._held.append(held)

    def aggregate_of_this_generation(self) -> int:
        """The samples in a step of all workers, if the leader has set them for this generation; else 0."""
        with self._changed:
            said = self._aggregates.get(self.generation, 0)
            self._aggregates = {each: n for each, n in self._aggregates.items() if each > self.generation}
        return said

    def try_batches(self) -> None:
        """Go on with the trials of several batches, if the leader wants some, after a boundary."""
        self.trials.at_boundary(self.generation, self.size, *self._steps.last)

    def take_tasks(self) -> list[tasks_pb2.Task]:
        """Take the leader's tasks, for this boundary. There are none nearly always."""
        if not self._tasks:
            return []
        with self._changed:
            tasks = list(self._tasks)
            self._tasks.clear()
        return tasks

    # --- the parked state of an opportunistic job -------------------------------------------------------

    def begin_to_park(self, pieces: Iterator[pb.ParkedPiece]) -> grpc.Future[pb.Parked]:
        """Begin to send a state to the base. The future's result raises grpc.RpcError."""
        assert self._channel is not None
        metadata = ((SECRET_KEY, self._secret),)
        return rpc.AgentServiceStub(self._channel).Park.future(pieces, metadata=metadata)

    def park(self, pieces: Iterator[pb.ParkedPiece]) -> None:
        """Send a state to the base, and wait until the base keeps it. Raises grpc.RpcError."""
        self.begin_to_park(pieces).result()

    def fetch_parked(self) -> Iterator[pb.ParkedPiece]:
        """The state that the base keeps. Raises grpc.RpcError."""
        assert self._channel is not None
        metadata = ((SECRET_KEY, self._secret),)
        return rpc.AgentServiceStub(self._channel).FetchParked(pb.ParkedWanted(), metadata=metadata)

    # --- asked by the training thread ---------------------------------------------------------------------

    def found(self) -> None:
        """Wait, in a founder's first hvd.init, until all founders are there, and take the given place."""
        self._wait_to_be_called(ParticipantState.wait_ready)

    def join(self) -> Called:
        """Wait, in a warm newcomer at hvd.elastic.run, for its first generation."""
        word = self._wait_to_be_called(ParticipantState.wait_ready, in_loop=True)
        self.warming, self.projected_rank = False, None
        return word

    def enter_loop(self) -> None:
        """Note that the script is at hvd.elastic.run, so that the job can be resized."""
        with self._changed:
            self._part.in_loop = True
            if self._part.phase is Phase.FINISHED:
                self._part.phase = Phase.TRAINING
        self._stand()

    def keeps_size(self, why: str) -> None:
        """Note that this script can never be resized. `why` names what stands in the way, and where."""
        self.fixed_why = why
        if self.rank == 0:
            say(f"this job keeps its size: {why}")

    def begins(self, commits: int, *, saved: bool = True) -> None:
        """Note that the state is synchronised, and that training goes on from its `commits` mini-batches.

        Not `saved`: if this generation broke now, others would have to give the state to this worker again.
        """
        with self._changed:
            self._part.begins(commits, saved=saved)
            if self._switches_since is not None:
                self._paused_s = time.monotonic() - self._switches_since
                self._switches_since = None
        self._steps.begin(self._waited())

    def lacks_state(self) -> None:
        """Note that this worker could not restore any state now: it is about to receive one."""
        with self._changed:
            self._part.begins(0, saved=True)

    def is_in_epoch(self, number: int, layout: str) -> None:
        """Tell the leader that the script is in this pass over its training loader, from 1.

        `layout`: what newcomers must have there.
        """
        self.epoch, self.layout = number, layout
        self._stand()

    def wait_for_batches(self, bound_s: float) -> tuple[int, ...]:
        """The batches of those who train. Waits so long, at most, for a leader that has not told them yet."""
        deadline = time.monotonic() + bound_s
        while not self.epoch_of_others and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.batches_of_others

    def committed(self, progress: float = 0.0) -> None:
        """Count a committed mini-batch. `progress`: the part of the whole training that is done, if known."""
        self._part.committed()
        self._part.progress = progress

    def has_saved(self) -> None:
        """Note that the state was saved between two commits."""
        self._part.has_saved()

    def at_boundary(self) -> Called | None:
        """Pass the boundary at the end of a mini-batch. Blocks if the worker has promised to wait there.

        Returns the leader's word if it is to be carried out there, else None.
        """
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
        """Switch to the generation of `word`; if that fails, wait for the generation that replaces it.

        Returns the leader's word that was carried out.
        """
        core = self._core()
        try:
            core.switch(word.generation)
        except CoreFailed:
            self.on_cannot_enter()
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
        """Leave the generation at a boundary, and wait until the leader calls this worker back."""
        self._core().leave()
        return self._wait_to_be_called(ParticipantState.wait_ready)

    def leave(self) -> NoReturn:
        """Leave the generation at a boundary, and the job. Raises SystemExit with 0."""
        self._core().leave()
        departure.leave()

    def hang_up(self) -> None:
        """Break the connections after a failed collective, so that all workers notice the failure."""
        self._core().hang_up(self._part.generation)
        self._core().settle()

    def recover(self) -> Called:
        """Go back to the last commit after a generation broke: wait for the next generation, and enter it."""
        return self._wait_to_be_called(ParticipantState.go_back)

    def finished(self) -> None:
        """Note that the training function has returned."""
        with self._changed:
            self._part.finish()
        self._stand()

    def _wait_to_be_called(
        self, begin: Callable[[ParticipantState], None], *, in_loop: bool = False
    ) -> Called:
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
        """Connect to the agent, and from then on to any later agent of the node. A second call does nothing.

        Raises grpc.FutureTimeoutError if there is no agent.
        """
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
        """Exchange messages with the agent; if it is gone, with the next agent, which knows nothing yet."""
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
        """The messages to one agent: who this worker is, its status, and all later messages."""
        yield pb.FromWorker(hello=pb.WorkerHello(worker_id=self.worker_id, pid=self._pid))
        with self._changed:
            outbox, self._outbox = self._outbox, queue.SimpleQueue()
        outbox.put(None)  # ends the stream before this one, if that stream still exists
        outbox = self._outbox
        self._stand()
        while (message := outbox.get()) is not None:
            yield message

    def _keep_standing(self) -> None:
        while True:
            time.sleep(STANDING_INTERVAL_S)
            self._stand(with_steps=True)

    def _stand(self, *, with_steps: bool = False) -> None:
        """Send this worker's status to the leader."""
        held = [each for tell in self._held for each in tell()]
        with self._changed:
            part = self._part
            status = pb.WorkerStatus(
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
                layout=self.layout,
                fixed_why=self.fixed_why,
                told_first=self.told_first,
                epoch=self.epoch,
                batches=self.batches,
                outlives=self.core is not None and self.core.outlives,
            )
            if self.trials.result is not None:
                status.tried.CopyFrom(self.trials.result)
            if with_steps:
                status.steps.CopyFrom(self._steps.told(self.samples_per_step))
            self.send(pb.FromWorker(status=status))

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
            elif message.HasField("epoch"):
                self.batches_of_others = tuple(message.epoch.batches)
                self.epoch_of_others = message.epoch.number
            elif message.HasField("leave"):
                self._told_to_leave = message.leave.reason
            elif message.HasField("task") and message.task.HasField("set_batch"):
                batch = message.task.set_batch
                self._aggregates[batch.generation] = batch.aggregate
            elif message.HasField("task") and message.task.HasField("set_speed"):
                self.speed = message.task.set_speed.speed
            elif message.HasField("task") and message.task.HasField("try_batches"):
                self.trials.want(message.task.try_batches)
            elif message.HasField("task"):
                self._tasks.append(message.task)
            self._changed.notify_all()

    def _hear_prepare(self, prepare: pb.Prepare) -> None:
        place = RankPlacement(
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
        """Give up that generation, and all generations before it that this worker has not entered."""
        with self._changed:
            # A word that the leader has given stands, whatever a new leader believes.
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
            word = Called(go.generation, go.at, go.sync, go.leave, go.aside, go.parks, go.resumes)
            self._part.given(word)
            self._changed.notify_all()
        self._stand()

    def _hear_broken(self, generation: int) -> None:
        with self._changed:
            member, present = self._part.is_broken(generation), self._part.generation
            holding, self._part.promised = self._part.holding, 0
            if holding:
                self._changed.notify_all()
        if member:  # during a switch, `enter` breaks the next generation's connections, if need be
            self._core().hang_up(present)

    def _keep_building(self) -> None:
        while True:
            place = self._builds.get()
            if place.generation not in self._places:
                continue
            failure = ""
            try:
                self._core().prepare(place)
            except Exception as error:  # this thread must go on with the next build
                failure = str(error) or "the communicator could not be built"
            with self._changed:
                if not failure:
                    self._prepared = place.generation
            self.send(pb.FromWorker(prepared=pb.Prepared(generation=place.generation, failure=failure)))


def _end_this_worker(error: Exception) -> None:
    """End the process after a thread of the session has failed.

    A worker that receives no messages could hold up all others. Its peers go back to the last commit, and its
    agent starts another worker in its place.
    """
    if sys.is_finalizing() or not threading.main_thread().is_alive():
        return  # the script has ended, and its exit code stands
    say_error(error)
    say("this worker ends: without that thread it would hear nothing of the job's other workers")
    os._exit(1)


class _StepTimes:
    """The times in seconds that mini-batches take, with and without waiting for others."""

    def __init__(self) -> None:
        self._own: deque[float] = deque(maxlen=MOST_STEPS_TOLD)
        self._wall: deque[float] = deque(maxlen=MOST_STEPS_TOLD)
        self._began: tuple[float, float] | None = None
        self.last = (0.0, 0.0)
        """Seconds of the last mini-batch without and with waiting for others."""

    def begin(self, waited: float) -> None:
        """Begin a mini-batch. `waited`: the core's waiting time so far, in all."""
        self._began = time.monotonic(), waited

    def end(self, waited: float) -> None:
        """End the mini-batch. `waited`: the core's waiting time so far, in all."""
        if self._began is not None:
            wall = time.monotonic() - self._began[0]
            self.last = max(0.0, wall - (waited - self._began[1])), wall
            self._own.append(self.last[0])
            self._wall.append(wall)

    def told(self, samples: int) -> pb.StepTimes:
        """Take the times that were not sent yet, as a message."""
        own = [self._own.popleft() for _ in range(len(self._own))]
        wall = [self._wall.popleft() for _ in range(len(self._wall))]
        return pb.StepTimes(own_s=own, wall_s=wall, samples=samples)


@cache
def current() -> Session:
    """The session of this training process."""
    return Session()


def _outlook(text: str) -> ProjectedRank | None:
    """The projected rank in a text "rank,size,local_rank,local_size,cross_rank,cross_size"."""
    numbers = [int(part) for part in text.split(",")] if text else []
    return ProjectedRank(*numbers) if len(numbers) == 6 else None
