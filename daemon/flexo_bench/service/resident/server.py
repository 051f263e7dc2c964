"""A parameter server: it holds partitions with their momentum, and updates one once all workers have pushed.

One thread receives from each connection and another one sends to it, so that pushes and pulls never wait for
each other. Gradients are added in the order of ranks, so each run has the same bits. Several jobs may share
the server. Each has workers, partitions and momentum of its own. One thread makes the updates of all jobs,
in the slots of the server's execution cycle.

A partition moves as in AutoPS (section 3.2 and appendix B). The old server updates it once more, and tells
the workers with the parameters who holds it now. When they have these, it copies parameters and momentum to
the new server, while workers compute. The new server updates it when it has the copy and all gradients.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from flexo_bench.service.resident import frames
from flexo_bench.service.resident.core import Core
from flexo_bench.service.resident.cyclic_execution import CyclicExecution
from flexo_bench.service.resident.frames import Cycle, Frame, Introduction, Kind, Move
from flexo_bench.service.resident.partitions import BYTES


@dataclass(slots=True)
class _Master:
    """The master copy of a partition, float32 of shape (n,) each."""

    parameters: torch.Tensor
    momentum: torch.Tensor

    def update(self, gradient: torch.Tensor, job: Introduction) -> None:
        """Make one step of SGD with momentum, by torch.optim.SGD's operations in their order."""
        self.momentum.mul_(job.momentum).add_(gradient)
        self.parameters.add_(self.momentum, alpha=-job.rate)


@dataclass(slots=True)
class _Slot:
    """What a server has of one partition. It may not hold it, or not yet."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    master: _Master | None = None
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    """By rank."""
    pushed: set[int] = field(default_factory=set)
    """The ranks whose gradients for the next update are there."""
    step: int = 0
    """The step of these gradients."""
    leaves: tuple[Move, Outgoing] | None = None
    """Where it goes with the next update, and who asked for it."""


@dataclass(slots=True)
class _Job:
    """What a server has of one job. Its workers may not have said HELLO yet."""

    words: Introduction | None = None
    workers: dict[int, Outgoing] = field(default_factory=dict)
    """By rank."""
    slots: dict[int, _Slot] = field(default_factory=dict)
    """By key."""


class Outgoing:
    """One end of a connection, with a thread that sends."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def put(self, what: Callable[[], None]) -> None:
        """Have the thread call `what`, which sends."""
        self._waiting.put(what)

    def close(self) -> None:
        """End the thread after what it has to send."""
        self._waiting.put(None)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (what := self._waiting.get()) is not None:
                what()


class Server:
    """See the module. `number`: its own, as workers count servers."""

    def __init__(self, number: int, listener: socket.socket) -> None:
        self._number = number
        self._listener = listener
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._core = Core()
        self._cycle = CyclicExecution(Cycle(1, {}), 0)
        self._neighbours: dict[int, Outgoing] = {}
        """Other servers, to which this one has copied partitions."""

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            connection, _ = self._listener.accept()
            frames.at_once(connection)
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        back = Outgoing(connection)
        worker: Introduction | None = None
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                frame = frames.receive(connection)
                if frame.kind is Kind.HELLO:
                    worker = frames.receive_introduction(connection, frame)
                    self._greet(worker, back)
                elif frame.kind is Kind.PUSH:
                    assert worker is not None, "a worker introduces itself before it pushes"
                    self._take_gradient(connection, frame, worker.rank)
                elif frame.kind is Kind.MOVE:
                    self._plan_move(frame, frames.receive_move(connection, frame), back)
                elif frame.kind is Kind.CYCLE:
                    self._begin_cycle(frames.receive_cycle(connection, frame))
                else:
                    self._take_master(connection, frame)
        back.close()
        if worker is not None:
            self._forget(worker, back)

    def _greet(self, words: Introduction, worker: Outgoing) -> None:
        with self._lock:
            job = self._jobs.setdefault(words.job, _Job())
            job.words = words
            job.workers[words.rank] = worker

    def _forget(self, words: Introduction, worker: Outgoing) -> None:
        """Drop a worker that has left, unless its rank is taken by now; with the last one, drop the job."""
        with self._lock:
            job = self._jobs.get(words.job)
            if job is None or job.workers.get(words.rank) is not worker:
                return
            del job.workers[words.rank]
            if not job.workers:
                del self._jobs[words.job]

    # --- updates --------------------------------------------------------------------------------------------

    def _take_gradient(self, connection: socket.socket, frame: Frame, rank: int) -> None:
        slot = self._slot(frame)
        if rank not in slot.gradients:
            slot.gradients[rank] = torch.empty(frame.size // BYTES)
        frames.receive_tensor(connection, frame, slot.gradients[rank])
        with slot.lock:
            slot.pushed.add(rank)
            slot.step = frame.step
            self._update_if_due(frame, slot)

    def _take_master(self, connection: socket.socket, frame: Frame) -> None:
        """The first parameters of a partition, or one that another server has held."""
        halves = 1 if frame.kind is Kind.INIT else 2
        both = torch.zeros(2, frame.size // BYTES // halves)
        frames.receive_tensor(connection, frame, both[:halves])
        slot = self._slot(frame)
        with slot.lock:
            slot.master = _Master(both[0], both[1])
            self._update_if_due(frame, slot)

    def _update_if_due(self, frame: Frame, slot: _Slot) -> None:
        """Have the core update the partition if it is here with all gradients. The caller has its lock."""
        job, master = self._jobs[frame.job], slot.master
        if job.words is None or master is None or len(slot.pushed) < job.words.ranks:
            return
        slot.pushed.clear()
        words, now = job.words, time.monotonic_ns()
        with self._lock:
            at = self._cycle.runs_at(str(frame.job), slot.step, now)
            slower = words.contention if self._cycle.is_shared else 1.0
        takes = round(words.ns_per_byte * master.parameters.nbytes * slower)
        self._core.put(at, takes, lambda: self._update(frame, job, words, slot, master))

    def _update(self, frame: Frame, job: _Job, words: Introduction, slot: _Slot, master: _Master) -> None:
        with slot.lock:
            total = slot.gradients[0]
            for rank in range(1, words.ranks):
                total.add_(slot.gradients[rank])
            master.update(total.div_(words.ranks), words)
            leaves, slot.leaves = slot.leaves, None
            if leaves is None:
                self._answer(frame, job, master, self._number, lambda: None)
            else:
                slot.master = None
                move, asked_by = leaves
                left = _Countdown(words.ranks, lambda: self._copy(frame, master, move, asked_by))
                self._answer(frame, job, master, move.server, left.one_less)

    def _answer(
        self, pushed: Frame, job: _Job, master: _Master, holder: int, then: Callable[[], None]
    ) -> None:
        """Send all workers the parameters, and who holds them. `then`: called after each."""
        frame = Frame(Kind.PARAMETERS, pushed.job, pushed.key, holder)
        for worker in tuple(job.workers.values()):

            def send(connection: socket.socket = worker.connection) -> None:
                frames.send(connection, frame, frames.memory_of(master.parameters))
                then()

            worker.put(send)

    def _begin_cycle(self, cycle: Cycle) -> None:
        with self._lock:
            self._cycle = CyclicExecution(cycle, time.monotonic_ns())

    # --- migration ------------------------------------------------------------------------------------------

    def _plan_move(self, frame: Frame, move: Move, asked_by: Outgoing) -> None:
        slot = self._slot(frame)
        with slot.lock:
            slot.leaves = move, asked_by

    def _copy(self, pushed: Frame, master: _Master, move: Move, asked_by: Outgoing) -> None:
        """Copy a partition to its next server, in the thread that sends to that one."""
        neighbour = self._neighbour(move)

        def send() -> None:
            both = map(frames.memory_of, (master.parameters, master.momentum))
            frames.send(neighbour.connection, Frame(Kind.COPY, pushed.job, pushed.key), *both)
            moved = Frame(Kind.MOVED, pushed.job, pushed.key)
            asked_by.put(lambda: frames.send(asked_by.connection, moved))

        neighbour.put(send)

    def _neighbour(self, move: Move) -> Outgoing:
        with self._lock:
            if move.server not in self._neighbours:
                self._neighbours[move.server] = Outgoing(frames.dial(move.host, move.port))
            return self._neighbours[move.server]

    def _slot(self, frame: Frame) -> _Slot:
        with self._lock:
            return self._jobs.setdefault(frame.job, _Job()).slots.setdefault(frame.key, _Slot())


class _Countdown:
    """Calls `then` in the thread that makes the last of `count` calls."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._then = then
        self._lock = threading.Lock()

    def one_less(self) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._then()
