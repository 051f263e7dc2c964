"""The desk between the leaders' streams and the controller's thread.

The streams live in one event loop, the controller in a thread of its own. What passes between them is
immutable and lies here under one lock: what each attached leader last reported, what it gave back, which
GPUs it found slow, and the orders that it is to be told. A leader is told the newest orders only; states
that it was too slow for are skipped, which is right, because every message holds all grants. Commands are
told each, once.
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
from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey
from flexo.service.errands import (
    CancelOrder,
    CheckpointOrder,
    Command,
    Errand,
    Order,
    Outcome,
    Progress,
    Result,
)

_Waiting = TypeVar("_Waiting")


MOST_WAITING = 1000
"""Grants given back, and likewise slow GPUs, that one job may have waiting for the controller: while the
cluster is away nobody takes them, and a leader can say anything."""


MOST_FENCES = 10_000
"""Jobs whose highest fencing term is remembered, those heard last; a job that has ended needs none."""


class NoLeader(Exception):
    """A job has no leader attached, so it can be told nothing; the message says so."""


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


class Line:
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
        self._commands: deque[Command] = deque()
        self._errand: Errand | None = None
        self._saving: asyncio.Task[None] | None = None

    async def next_to_tell(self) -> Orders | Command:
        """Wait for a command, or until the orders differ from those last returned; return that."""
        while True:
            if self._commands:
                return self._commands.popleft()
            if not self._orders_told:
                self._orders_told = True
                assert self._orders is not None
                return self._orders
            self._news.clear()
            await self._news.wait()

    async def until_replaced(self) -> None:
        """Wait for a newer leader of the same job."""
        await self._replaced.wait()

    def replace(self, peer: str) -> None:
        """A newer leader of this job has attached from `peer`."""
        self.replaced_by = peer
        self._replaced.set()

    def tell_from_thread(self, orders: Orders) -> None:
        """These are the orders now. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._take, orders)

    def _take(self, orders: Orders) -> None:
        if orders != self._orders:
            self._orders, self._orders_told = orders, False
            self._news.set()

    def save_from_thread(self, path: str, tell: Callable[[Saved], None]) -> None:
        """Have the leader write a checkpoint; `tell` hears how that ended. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._save, path, tell)

    def _save(self, path: str, tell: Callable[[Saved], None]) -> None:
        try:
            errand = self.begin(CheckpointOrder(path))
        except LeaderBusy as error:
            tell(Saved(self.report.key, f"writes no checkpoint: {error}"))
            return
        self._saving = self._loop.create_task(self._tell_end(errand, tell))

    async def _tell_end(self, errand: Errand, tell: Callable[[Saved], None]) -> None:
        text = "has written no checkpoint: flexod has stopped waiting for it"
        try:
            while not isinstance(word := await errand.next_word(), Outcome):
                pass
            text = word.text if word.result is Result.DONE else f"has written no checkpoint: {word.text}"
        finally:  # whatever ends the waiting: lending waits for this word
            tell(Saved(self.report.key, text))

    def begin(self, order: Order) -> Errand:
        """Have the leader do something. Raises LeaderBusy."""
        if self._errand is not None:
            raise LeaderBusy(
                f"the leader of job {self.report.key} has something to do already: try again later"
            )
        self._errand = Errand(order)
        self._send(self._errand.command)
        return self._errand

    def hear(self, command_id: int, word: Progress | Outcome) -> Errand | None:
        """The leader has said something of a command; None if nobody waits for it."""
        errand = self._errand
        if errand is None or errand.command.command_id != command_id:
            return None
        if isinstance(word, Outcome):
            self._errand = None
        errand.hear(word)
        return errand

    def give_up(self, errand: Errand) -> None:
        """Whoever asked for `errand` waits for it no longer."""
        if self._errand is errand:
            self._errand = None
            self._send(Command(errand.command.command_id, CancelOrder()))

    def end(self) -> None:
        """The stream is over."""
        if self._errand is not None:
            text = f"the leader of job {self.report.key} has gone before it was done: try again"
            self.hear(self._errand.command.command_id, Outcome(Result.LOST, text))

    def _send(self, command: Command) -> None:
        self._commands.append(command)
        self._news.set()


class LeaderDesk:
    """All attached leaders; `wake` is set when the controller should not wait for its next turn."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._lines: dict[JobKey, Line] = {}
        self._fences: dict[JobKey, Fence] = {}
        """By job, the highest term heard in its present run; in order of when it was heard last."""
        self._failures: dict[JobKey, list[GrantFailure]] = {}
        self._slow: dict[JobKey, list[SlowGpuReport]] = {}
        self._saved: list[Saved] = []

    # For the controller's thread.

    def reports(self) -> tuple[LeaderReport, ...]:
        """What each attached leader last said."""
        with self._lock:
            return tuple(line.report for line in self._lines.values())

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants given back since the last call."""
        with self._lock:
            failures, self._failures = self._failures, {}
        return tuple(chain.from_iterable(failures.values()))

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """The GPUs found slow since the last call."""
        with self._lock:
            slow, self._slow = self._slow, {}
        return tuple(chain.from_iterable(slow.values()))

    def tell(self, key: JobKey, orders: Orders) -> None:
        """These are the orders of `key` now; nothing happens if its leader knows them or is away."""
        with self._lock:
            line = self._lines.get(key)
        if line is not None:
            line.tell_from_thread(orders)

    def save(self, key: JobKey, path: str) -> None:
        """Have `key` write a checkpoint to `path`. Whatever comes of it, `take_saved` tells."""
        with self._lock:
            line = self._lines.get(key)
        if line is None:
            self._hear_saved(Saved(key, "writes no checkpoint: it has no leader attached to flexod"))
        else:
            line.save_from_thread(path, self._hear_saved)

    def take_saved(self) -> tuple[Saved, ...]:
        """What came of such checkpoints since the last call."""
        with self._lock:
            saved, self._saved = tuple(self._saved), []
        return saved

    def _hear_saved(self, saved: Saved) -> None:
        with self._lock:
            self._saved.append(saved)
        self.wake.set()

    # For the event loop's thread.

    def attach(self, line: Line) -> None:
        """`line` leads its job from now on; an older line of the same job is replaced.

        Raises StaleLeader if a leader of a higher term has attached before, whether it is still there or not.
        """
        with self._lock:
            self._check_fence(line)
            older = self._lines.get(line.report.key)
            self._lines[line.report.key] = line
        if older is not None:
            older.replace(line.peer)
        self.wake.set()

    def _check_fence(self, line: Line) -> None:
        """With the lock held. A leader of another run, or of a release without terms, counts as later."""
        key, fence = line.report.key, line.fence
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

    def detach(self, line: Line) -> None:
        """`line` has ended. A line that has been replaced takes nothing with it."""
        line.end()
        with self._lock:
            if self._lines.get(line.report.key) is not line:
                return
            del self._lines[line.report.key]
        self.wake.set()

    def line_of(self, key: JobKey) -> Line:
        """The attached leader of `key`. Raises NoLeader."""
        with self._lock:
            line = self._lines.get(key)
        if line is None:
            raise NoLeader(f"job {key} has no leader attached to flexod, which could do it")
        return line

    def update(self, line: Line, report: LeaderReport) -> None:
        """The leader of `line` has reported; only news that a policy can use wakes the controller."""
        with self._lock:
            before, line.report = line.report, report
        if _matters(before) != _matters(report):
            self.wake.set()

    def give_back(self, failure: GrantFailure) -> None:
        """A leader returns a grant."""
        with self._lock:
            _add(self._failures.setdefault(failure.job, []), failure)
        self.wake.set()

    def note_slow_gpu(self, slow: SlowGpuReport) -> None:
        """A leader has found a slow GPU."""
        with self._lock:
            _add(self._slow.setdefault(slow.job, []), slow)
        self.wake.set()


def _add(waiting: list[_Waiting], news: _Waiting) -> None:
    if len(waiting) < MOST_WAITING:
        waiting.append(news)


def _matters(report: LeaderReport) -> tuple[object, ...]:
    return report.scalable, report.training_workers, report.satellites, report.changing, report.errand
