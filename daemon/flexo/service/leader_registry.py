"""Passes messages between the leaders' streams and the controller's thread.

The streams live in one event loop, the controller in a thread of its own. The messages between them are
immutable and are kept here under one lock. For each attached leader these are its last report, the grants
that it gave back, the GPUs that it found slow, and its orders. A leader receives the newest orders only.
Skipped orders are no loss, because all orders hold all grants. Each command is sent once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from flexo.control.leaders import Orders, Saved
from flexo.model.aggregation import AggregatorOffers
from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import FailedWorkers, SlowGpuReport
from flexo.model.queue import JobKey
from flexo.service.pending_commands import (
    CancelOrder,
    CheckpointOrder,
    Command,
    CommandOutcome,
    Order,
    PendingCommand,
    Progress,
    Result,
)

_Waiting = TypeVar("_Waiting")


MOST_WAITING = 1000
"""The most grants given back, and likewise slow GPUs, that wait for the controller for one job. While the
cluster is away nobody takes them, and a leader can send any number."""


MOST_FENCES = 10_000
"""The most jobs whose highest fencing term is remembered: those heard last. An ended job needs none."""


class NoLeader(Exception):
    """A job has no leader attached, so flexod can tell it nothing; the message says so."""


class LeaderBusy(Exception):
    """A leader has a command under way already; the message says to come again."""


class StaleLeader(Exception):
    """Another agent leads the job under a higher fencing term; the message names both terms."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The fencing term of a leader, and the `flexo run` whose lease it belongs to. Term 0: not fenced."""

    run: str = ""
    term: int = 0


UNFENCED = Fence()


class LeaderConnection:
    """One attached leader, as its stream holds it. All methods are for the event loop's thread."""

    def __init__(self, report: LeaderReport, peer: str, fence: Fence = UNFENCED) -> None:
        self.report = report
        self.peer = peer
        self.fence = fence
        self.replaced_by = ""
        """Peer of the newer leader of the same job, once there is one."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._replaced = asyncio.Event()
        self._orders: Orders | None = None
        self._orders_told = True
        self._offers: AggregatorOffers | None = None
        self._offers_told = True
        self._commands: deque[Command] = deque()
        self._pending: PendingCommand | None = None
        self._saving: asyncio.Task[None] | None = None

    async def next_to_tell(self) -> Orders | Command | AggregatorOffers:
        """Wait for a command, or for orders or Aggregators that differ from those last returned. Returns one
        of them."""
        while True:
            if self._commands:
                return self._commands.popleft()
            if not self._orders_told:
                self._orders_told = True
                assert self._orders is not None
                return self._orders
            if not self._offers_told:
                self._offers_told = True
                assert self._offers is not None
                return self._offers
            self._news.clear()
            await self._news.wait()

    async def until_replaced(self) -> None:
        """Wait for a newer leader of the same job."""
        await self._replaced.wait()

    def replace(self, peer: str) -> None:
        """Note that a newer leader of this job has attached from `peer`."""
        self.replaced_by = peer
        self._replaced.set()

    def tell_from_thread(self, orders: Orders) -> None:
        """Set the orders. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._take, orders)

    def _take(self, orders: Orders) -> None:
        if orders != self._orders:
            self._orders, self._orders_told = orders, False
            self._news.set()

    def assign_from_thread(self, offers: AggregatorOffers) -> None:
        """Set the Aggregators. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._assign, offers)

    def _assign(self, offers: AggregatorOffers) -> None:
        if offers != self._offers:
            self._offers, self._offers_told = offers, False
            self._news.set()

    def save_from_thread(self, path: str, tell: Callable[[Saved], None]) -> None:
        """Have the leader write a checkpoint; `tell` receives the result. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._save, path, tell)

    def _save(self, path: str, tell: Callable[[Saved], None]) -> None:
        try:
            pending = self.begin(CheckpointOrder(path))
        except LeaderBusy as error:
            tell(Saved(self.report.key, f"writes no checkpoint: {error}"))
            return
        self._saving = self._loop.create_task(self._tell_end(pending, tell))

    async def _tell_end(self, pending: PendingCommand, tell: Callable[[Saved], None]) -> None:
        text = "has written no checkpoint: flexod has stopped waiting for it"
        try:
            while not isinstance(word := await pending.next_word(), CommandOutcome):
                pass
            text = word.text if word.result is Result.DONE else f"has written no checkpoint: {word.text}"
        finally:  # in any case: lending waits for this result
            tell(Saved(self.report.key, text))

    def begin(self, order: Order) -> PendingCommand:
        """Send the leader a command for `order`. Raises LeaderBusy."""
        if self._pending is not None:
            raise LeaderBusy(
                f"the leader of job {self.report.key} has something to do already: try again later"
            )
        self._pending = PendingCommand(order)
        self._send(self._pending.command)
        return self._pending

    def hear(self, command_id: int, word: Progress | CommandOutcome) -> PendingCommand | None:
        """Note a message of the leader about a command. Returns the command; None if nobody waits for it."""
        pending = self._pending
        if pending is None or pending.command.command_id != command_id:
            return None
        if isinstance(word, CommandOutcome):
            self._pending = None
        pending.hear(word)
        return pending

    def give_up(self, pending: PendingCommand) -> None:
        """Cancel `pending`, because its caller waits for it no longer."""
        if self._pending is pending:
            self._pending = None
            self._send(Command(pending.command.command_id, CancelOrder()))

    def end(self) -> None:
        """Note that the stream is over."""
        if self._pending is not None:
            text = f"the leader of job {self.report.key} has gone before it was done: try again"
            self.hear(self._pending.command.command_id, CommandOutcome(Result.LOST, text))

    def _send(self, command: Command) -> None:
        self._commands.append(command)
        self._news.set()


class LeaderRegistry:
    """All attached leaders. `wake` is set when the controller should not wait for its next cycle."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[JobKey, LeaderConnection] = {}
        self._fences: dict[JobKey, Fence] = {}
        """The highest term that was heard in each job's present run. The job heard last is the last."""
        self._failures: dict[JobKey, list[GrantFailure]] = {}
        self._slow: dict[JobKey, list[SlowGpuReport]] = {}
        self._failed: dict[JobKey, list[FailedWorkers]] = {}
        self._saved: list[Saved] = []

    # For the controller's thread.

    def reports(self) -> tuple[LeaderReport, ...]:
        """The last report of each attached leader."""
        with self._lock:
            return tuple(connection.report for connection in self._connections.values())

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants that leaders have given back since the last call."""
        with self._lock:
            failures, self._failures = self._failures, {}
        return tuple(chain.from_iterable(failures.values()))

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """The GPUs that leaders have found slow since the last call."""
        with self._lock:
            slow, self._slow = self._slow, {}
        return tuple(chain.from_iterable(slow.values()))

    def take_failed_workers(self) -> tuple[FailedWorkers, ...]:
        """The workers that have failed and were started again since the last call."""
        with self._lock:
            failed, self._failed = self._failed, {}
        return tuple(chain.from_iterable(failed.values()))

    def tell(self, key: JobKey, orders: Orders) -> None:
        """Set the orders of `key`. Nothing happens if its leader knows them or is away."""
        with self._lock:
            connection = self._connections.get(key)
        if connection is not None:
            connection.tell_from_thread(orders)

    def assign(self, key: JobKey, offers: AggregatorOffers) -> None:
        """Set the Aggregators of `key`. Nothing happens if its leader knows them or is away."""
        with self._lock:
            connection = self._connections.get(key)
        if connection is not None:
            connection.assign_from_thread(offers)

    def save(self, key: JobKey, path: str) -> None:
        """Have the leader of `key` write a checkpoint to `path`. `take_saved` returns the result, good or
        bad."""
        with self._lock:
            connection = self._connections.get(key)
        if connection is None:
            self._hear_saved(Saved(key, "writes no checkpoint: it has no leader attached to flexod"))
        else:
            connection.save_from_thread(path, self._hear_saved)

    def take_saved(self) -> tuple[Saved, ...]:
        """The results of these checkpoints since the last call."""
        with self._lock:
            saved, self._saved = tuple(self._saved), []
        return saved

    def _hear_saved(self, saved: Saved) -> None:
        with self._lock:
            self._saved.append(saved)
        self.wake.set()

    # For the event loop's thread.

    def attach(self, connection: LeaderConnection) -> None:
        """Make `connection` the leader of its job. It replaces an older connection of the same job.

        Raises StaleLeader if a leader of a higher term has attached before, whether it is still there or not.
        """
        with self._lock:
            self._check_fence(connection)
            older = self._connections.get(connection.report.key)
            self._connections[connection.report.key] = connection
        if older is not None:
            older.replace(connection.peer)
        self.wake.set()

    def _check_fence(self, connection: LeaderConnection) -> None:
        """Check the term of a leader, and remember it. The caller holds the lock.

        A leader of another run, or of a release without terms, counts as later.
        """
        key, fence = connection.report.key, connection.fence
        if not fence.term:
            return
        highest = self._fences.get(key, fence)
        if highest.run == fence.run and fence.term < highest.term:
            text = f"job {key} has a leader of term {highest.term}; this one has term {fence.term}"
            raise StaleLeader(text)
        self._fences.pop(key, None)
        self._fences[key] = fence
        if len(self._fences) > MOST_FENCES:
            del self._fences[next(iter(self._fences))]

    def detach(self, connection: LeaderConnection) -> None:
        """Note that `connection` has ended. The end of a replaced connection changes nothing else."""
        connection.end()
        with self._lock:
            if self._connections.get(connection.report.key) is not connection:
                return
            del self._connections[connection.report.key]
        self.wake.set()

    def connection_of(self, key: JobKey) -> LeaderConnection:
        """The attached leader of `key`. Raises NoLeader."""
        with self._lock:
            connection = self._connections.get(key)
        if connection is None:
            raise NoLeader(f"job {key} has no leader attached to flexod, which could do it")
        return connection

    def update(self, connection: LeaderConnection, report: LeaderReport) -> None:
        """Note a report of the leader of `connection`. Only news for policies wakes the controller."""
        with self._lock:
            before, connection.report = connection.report, report
        if _matters(before) != _matters(report):
            self.wake.set()

    def give_back(self, failure: GrantFailure) -> None:
        """Note that a leader returns a grant."""
        with self._lock:
            _add(self._failures.setdefault(failure.job, []), failure)
        self.wake.set()

    def note_slow_gpu(self, slow: SlowGpuReport) -> None:
        """Note that a leader has found a slow GPU."""
        with self._lock:
            _add(self._slow.setdefault(slow.job, []), slow)
        self.wake.set()

    def note_failed_workers(self, failed: FailedWorkers) -> None:
        """Note that workers have failed and were started again. It does not wake the controller."""
        with self._lock:
            _add(self._failed.setdefault(failed.job, []), failed)


def _add(waiting: list[_Waiting], news: _Waiting) -> None:
    if len(waiting) < MOST_WAITING:
        waiting.append(news)


def _matters(report: LeaderReport) -> tuple[object, ...]:
    return (
        report.scalable,
        report.training_workers,
        report.satellites,
        report.changing,
        report.pending_command,
    )
