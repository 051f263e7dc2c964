"""The desk between the leaders' streams and the controller's thread.

The streams live in one event loop, the controller in a thread of its own. What passes between them is
immutable and lies here under one lock: what each attached leader last reported, what it gave back, and the
grants that it is to be told. A leader is told the newest grants only; states that it was too slow for are
skipped, which is right, because every message holds all grants.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from flexo.controller import GrantOffer
from flexo.model import GrantFailure, JobKey, LeaderReport


class Line:
    """One attached leader, as its stream holds it. All methods are for the event loop's thread."""

    def __init__(self, report: LeaderReport, peer: str) -> None:
        self.report = report
        self.peer = peer
        self.replaced_by = ""
        """Peer of the newer leader of the same job, once there is one."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._replaced = asyncio.Event()
        self._offers: tuple[GrantOffer, ...] | None = None

    async def next_grants(self) -> tuple[GrantOffer, ...]:
        """Wait until the grants that stand differ from those last returned; return them."""
        await self._news.wait()
        self._news.clear()
        assert self._offers is not None
        return self._offers

    async def until_replaced(self) -> None:
        """Wait for a newer leader of the same job."""
        await self._replaced.wait()

    def replace(self, peer: str) -> None:
        """A newer leader of this job has attached from `peer`."""
        self.replaced_by = peer
        self._replaced.set()

    def tell_from_thread(self, offers: tuple[GrantOffer, ...]) -> None:
        """These grants stand now. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._take, offers)

    def _take(self, offers: tuple[GrantOffer, ...]) -> None:
        if offers != self._offers:
            self._offers = offers
            self._news.set()


class LeaderDesk:
    """All attached leaders; `wake` is set when the controller should not wait for its next turn."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._lock = threading.Lock()
        self._lines: dict[JobKey, Line] = {}
        self._failures: list[GrantFailure] = []

    # For the controller's thread.

    def reports(self) -> tuple[LeaderReport, ...]:
        """What each attached leader last said."""
        with self._lock:
            return tuple(line.report for line in self._lines.values())

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants given back since the last call."""
        with self._lock:
            failures, self._failures = tuple(self._failures), []
        return failures

    def tell(self, key: JobKey, grants: Sequence[GrantOffer]) -> None:
        """These are all the grants of `key` that stand; nothing happens if its leader knows or is away."""
        with self._lock:
            line = self._lines.get(key)
        if line is not None:
            line.tell_from_thread(tuple(grants))

    # For the event loop's thread.

    def attach(self, line: Line) -> None:
        """`line` leads its job from now on; an older line of the same job is replaced."""
        with self._lock:
            older = self._lines.get(line.report.key)
            self._lines[line.report.key] = line
        if older is not None:
            older.replace(line.peer)
        self.wake.set()

    def detach(self, line: Line) -> None:
        """`line` has ended. A line that has been replaced takes nothing with it."""
        with self._lock:
            if self._lines.get(line.report.key) is not line:
                return
            del self._lines[line.report.key]
        self.wake.set()

    def update(self, line: Line, report: LeaderReport) -> None:
        """The leader of `line` has reported; only news that a policy can use wakes the controller."""
        with self._lock:
            before, line.report = line.report, report
        if _matters(before) != _matters(report):
            self.wake.set()

    def give_back(self, failure: GrantFailure) -> None:
        """A leader returns a grant."""
        with self._lock:
            self._failures.append(failure)
        self.wake.set()


def _matters(report: LeaderReport) -> tuple[object, ...]:
    return report.scalable, report.training_workers, report.satellites
