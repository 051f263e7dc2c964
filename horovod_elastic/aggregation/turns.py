"""Turns at an Aggregator's core, dealt out fairly among the jobs that share it: deficit round robin.

Each job that waits is visited in turn, and may use `quantum` more bytes of sums at each visit. What it does
not use stays for its next visit, as long as it waits (Shreedhar and Varghese, SIGCOMM 1995). So a job with
large parts, or with many, gets no more of the core than another one that wants as much.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

QUANTUM = 1 << 20
"""Bytes: one part."""


@dataclass(eq=False, slots=True)
class _Ticket:
    cost: int
    granted: threading.Event = field(default_factory=threading.Event)


class FairTurns:
    """One turn at a time (see the module). Any thread may ask for one."""

    def __init__(self, quantum: int = QUANTUM) -> None:
        self._quantum = quantum
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Ticket]] = {}
        self._visits: deque[str] = deque()
        """The jobs that wait, the next one to be visited first."""
        self._deficits: dict[str, int] = {}
        self._visiting = False
        """Whether the first job of `_visits` has had its quantum at this visit."""
        self._busy = False
        self.served = 0
        """Bytes of all turns so far."""

    @contextmanager
    def turn(self, job: str, cost: int) -> Iterator[None]:
        """Wait for a turn of this job, which sums `cost` bytes."""
        ticket = _Ticket(cost)
        with self._lock:
            if job not in self._waiting:
                self._waiting[job] = deque()
                self._visits.append(job)
                self._deficits[job] = 0
            self._waiting[job].append(ticket)
            self._grant()
        ticket.granted.wait()
        try:
            yield
        finally:
            with self._lock:
                self._busy = False
                self.served += cost
                self._grant()

    def _grant(self) -> None:
        """Give the next turn, if nobody has one and somebody waits."""
        while self._visits and not self._busy:
            job = self._visits[0]
            tickets = self._waiting[job]
            if not self._visiting:
                self._deficits[job] += self._quantum
                self._visiting = True
            if tickets[0].cost > self._deficits[job]:
                self._visits.rotate(-1)
                self._visiting = False
                continue
            ticket = tickets.popleft()
            self._deficits[job] -= ticket.cost
            self._busy = True
            if not tickets:
                del self._waiting[job], self._deficits[job]
                self._visits.popleft()
                self._visiting = False
            ticket.granted.set()
