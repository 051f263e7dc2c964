"""A parameter server: it holds partitions with their momentum, and updates one once all workers have pushed.

One thread receives from each connection and another one sends to it, so that pushes and pulls never wait for
each other. Gradients are added in the order of ranks, so each run has the same bits.

A partition moves as in AutoPS (section 3.2 and appendix B). The old server updates it once more, and tells
the workers with the parameters who holds it now. When they have these, it copies parameters and momentum to
the new server, while workers compute. The new server updates it when it has the copy and all gradients.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from flexo_bench.service.resident import frames
from flexo_bench.service.resident.frames import Frame, Introduction, Kind, Move
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
    leaves: tuple[Move, Outgoing] | None = None
    """Where it goes with the next update, and who asked for it."""


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
        self._slots: dict[int, _Slot] = {}
        self._workers: dict[int, Outgoing] = {}
        self._job: Introduction | None = None
        self._neighbours: dict[int, Outgoing] = {}
        """Other servers, to which this one has copied partitions."""

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            connection, _ = self._listener.accept()
            frames.at_once(connection)
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        back, rank = Outgoing(connection), -1
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                frame = frames.receive(connection)
                if frame.kind is Kind.HELLO:
                    rank = self._greet(frames.receive_introduction(connection, frame), back)
                elif frame.kind is Kind.PUSH:
                    self._take_gradient(connection, frame, rank)
                elif frame.kind is Kind.MOVE:
                    self._plan_move(frame.key, frames.receive_move(connection, frame), back)
                else:
                    self._take_master(connection, frame)
        back.close()

    def _greet(self, job: Introduction, worker: Outgoing) -> int:
        with self._lock:
            self._job = job
            self._workers[job.rank] = worker
        return job.rank

    # --- updates --------------------------------------------------------------------------------------------

    def _take_gradient(self, connection: socket.socket, frame: Frame, rank: int) -> None:
        slot = self._slot(frame.key)
        if rank not in slot.gradients:
            slot.gradients[rank] = torch.empty(frame.size // BYTES)
        frames.receive_tensor(connection, frame, slot.gradients[rank])
        with slot.lock:
            slot.pushed.add(rank)
            self._update_if_due(frame.key, slot)

    def _take_master(self, connection: socket.socket, frame: Frame) -> None:
        """The first parameters of a partition, or one that another server has held."""
        halves = 1 if frame.kind is Kind.INIT else 2
        both = torch.zeros(2, frame.size // BYTES // halves)
        frames.receive_tensor(connection, frame, both[:halves])
        slot = self._slot(frame.key)
        with slot.lock:
            slot.master = _Master(both[0], both[1])
            self._update_if_due(frame.key, slot)

    def _update_if_due(self, key: int, slot: _Slot) -> None:
        """Update the partition if it is here with all gradients. The caller has its lock."""
        job, master = self._job, slot.master
        if job is None or master is None or len(slot.pushed) < job.ranks:
            return
        slot.pushed.clear()
        total = slot.gradients[0]
        for rank in range(1, job.ranks):
            total.add_(slot.gradients[rank])
        master.update(total.div_(job.ranks), job)
        leaves, slot.leaves = slot.leaves, None
        if leaves is None:
            self._answer(key, master, self._number, lambda: None)
        else:
            slot.master = None
            move, asked_by = leaves
            left = _Countdown(job.ranks, lambda: self._copy(key, master, move, asked_by))
            self._answer(key, master, move.server, left.one_less)

    def _answer(self, key: int, master: _Master, holder: int, then: Callable[[], None]) -> None:
        """Send all workers the parameters, and who holds them. `then`: called after each."""
        frame = Frame(Kind.PARAMETERS, key, holder)
        for worker in self._workers.values():

            def send(connection: socket.socket = worker.connection) -> None:
                frames.send(connection, frame, frames.memory_of(master.parameters))
                then()

            worker.put(send)

    # --- migration ------------------------------------------------------------------------------------------

    def _plan_move(self, key: int, move: Move, asked_by: Outgoing) -> None:
        slot = self._slot(key)
        with slot.lock:
            slot.leaves = move, asked_by

    def _copy(self, key: int, master: _Master, move: Move, asked_by: Outgoing) -> None:
        """Copy a partition to its next server, in the thread that sends to that one."""
        neighbour = self._neighbour(move)

        def send() -> None:
            both = map(frames.memory_of, (master.parameters, master.momentum))
            frames.send(neighbour.connection, Frame(Kind.COPY, key), *both)
            asked_by.put(lambda: frames.send(asked_by.connection, Frame(Kind.MOVED, key)))

        neighbour.put(send)

    def _neighbour(self, move: Move) -> Outgoing:
        with self._lock:
            if move.server not in self._neighbours:
                self._neighbours[move.server] = Outgoing(frames.dial(move.host, move.port))
            return self._neighbours[move.server]

    def _slot(self, key: int) -> _Slot:
        with self._lock:
            return self._slots.setdefault(key, _Slot())


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
