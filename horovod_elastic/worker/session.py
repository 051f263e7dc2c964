"""One training process's conversation with its job's leader.

The training thread asks (`found`, `join`, `arrive`) and waits; another thread reads what the leader says.
Nothing is connected before the script calls hvd.init.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import grpc

from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic.wire import CHANNEL_OPTIONS, SECRET_KEY

PROGRESS_INTERVAL_S = 1.0


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
        self._worker_id = environment.pop("FLEXO_WORKER_ID")
        self._secret = environment.pop("FLEXO_WORKER_SECRET")
        self._leader = environment["FLEXO_LEADER"]
        self.warming = environment.pop("FLEXO_NEWCOMER", "") == "1"
        """A newcomer that has not joined yet: it runs alone, with a Horovod of size 1."""
        self.outlook = _outlook(environment.pop("FLEXO_OUTLOOK", "")) if self.warming else None
        self.generation = 0
        self.commits = 0
        self._outbox: queue.SimpleQueue[pb.FromWorker | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._assignment: pb.Assignment | None = None
        self._told_to_leave: str | None = None
        self._lost = False
        self._interrupt = 0
        self._deliver: Callable[[int], None] | None = None
        self._channel: grpc.Channel | None = None

    def belongs_here(self) -> bool:
        """False in a process that the training process forked."""
        return os.getpid() == self._pid

    # --- asked by the training thread ---------------------------------------------------------------------

    def found(self) -> None:
        """First hvd.init of a founder: wait until all founders are there, take the place given."""
        self._send(pb.FromWorker(ready=pb.Ready()))
        self._take(self._next_assignment())

    def join(self) -> None:
        """A newcomer, warmed up, at hvd.elastic.run: wait for its first generation."""
        self._send(pb.FromWorker(ready=pb.Ready()))
        self._take(self._next_assignment())
        self.warming, self.outlook = False, None

    def arrive(self) -> None:
        """Out of the generation, at a commit or back at the last one: wait for the next one."""
        with self._changed:
            self._deliver = None
        arrived = pb.Arrived(generation=self.generation, commits=self.commits)
        self._send(pb.FromWorker(arrived=arrived))
        self._take(self._next_assignment())

    def enter_loop(self) -> None:
        """The script is at hvd.elastic.run, so it can be resized."""
        self._send(pb.FromWorker(elastic_loop=pb.ElasticLoop()))

    def synchronised(self) -> None:
        """The state of rank 0 has been taken over."""
        assert self._assignment is not None
        self.commits = self._assignment.commits

    def resume(self, deliver: Callable[[int], None]) -> None:
        """Training goes on: from now on interrupts reach `deliver`, with the generation they end."""
        with self._changed:
            self._deliver = deliver
            if self._interrupt == self.generation:
                deliver(self.generation)

    def committed(self) -> None:
        """A batch was committed."""
        self.commits += 1

    def finished(self) -> None:
        """The training function has returned."""
        self._send(pb.FromWorker(finished=pb.Finished()))

    # --- the stream -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Dial the leader, once. Raises grpc.RpcError if it is not there."""
        if self._channel is not None:
            return
        self._channel = grpc.insecure_channel(self._leader, options=CHANNEL_OPTIONS)
        grpc.channel_ready_future(self._channel).result(timeout=60)
        stream = rpc.LeaderServiceStub(self._channel).AttachWorker(
            self._outgoing(), metadata=((SECRET_KEY, self._secret),)
        )
        self._send(pb.FromWorker(hello=pb.WorkerHello(worker_id=self._worker_id, pid=self._pid)))
        threading.Thread(target=self._read, args=(stream,), name="flexo-session", daemon=True).start()
        threading.Thread(target=self._report_progress, name="flexo-progress", daemon=True).start()

    def _send(self, message: pb.FromWorker) -> None:
        self._outbox.put(message)

    def _outgoing(self) -> Iterator[pb.FromWorker]:
        while (message := self._outbox.get()) is not None:
            yield message

    def _read(self, stream: Iterator[pb.ToWorker]) -> None:
        try:
            for message in stream:
                self._hear(message)
        except grpc.RpcError:
            pass
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _hear(self, message: pb.ToWorker) -> None:
        kind = message.WhichOneof("body")
        with self._changed:
            if kind == "assignment":
                self._assignment = message.assignment
            elif kind == "leave":
                self._told_to_leave = message.leave.reason
            elif kind == "interrupt":
                self._interrupt = message.interrupt.generation
                if self._deliver is not None and self._interrupt == self.generation:
                    self._deliver(self.generation)
            self._changed.notify_all()

    def _report_progress(self) -> None:
        said = 0
        timer = threading.Event()
        while not timer.wait(PROGRESS_INTERVAL_S):
            if self.commits != said:
                said = self.commits
                self._send(pb.FromWorker(progress=pb.Progress(commits=said)))

    def _next_assignment(self) -> pb.Assignment:
        """Block until the leader gives a place in a later generation. SystemExit when it says to leave."""
        with self._changed:
            while True:
                if self._told_to_leave is not None:
                    sys.exit(0)
                if self._lost:
                    sys.exit("flexo: the job's leader is gone; this worker ends")
                if self._assignment is not None and self._assignment.generation > self.generation:
                    return self._assignment
                self._changed.wait()

    def _take(self, assignment: pb.Assignment) -> None:
        """Put the place into the environment, where Horovod's native core reads it."""
        self.generation = assignment.generation
        os.environ.update(
            HOROVOD_RANK=str(assignment.rank),
            HOROVOD_SIZE=str(assignment.size),
            HOROVOD_LOCAL_RANK=str(assignment.local_rank),
            HOROVOD_LOCAL_SIZE=str(assignment.local_size),
            HOROVOD_CROSS_RANK=str(assignment.cross_rank),
            HOROVOD_CROSS_SIZE=str(assignment.cross_size),
            HOROVOD_HOSTNAME=assignment.hostname,
            HOROVOD_GLOO_RENDEZVOUS_ADDR=assignment.rendezvous_address,
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(assignment.rendezvous_port),
        )


@cache
def current() -> Session:
    """The session of this training process."""
    return Session()


def _outlook(text: str) -> Outlook | None:
    """From "rank,size,local_rank,local_size,cross_rank,cross_size"."""
    numbers = [int(part) for part in text.split(",")] if text else []
    return Outlook(*numbers) if len(numbers) == 6 else None
