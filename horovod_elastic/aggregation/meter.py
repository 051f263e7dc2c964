"""What one job uses of an Aggregator that several jobs share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from horovod_elastic.aggregation.turns import FairTurns


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job has used so far."""

    bytes: int
    """Bytes of one step's gradients that are registered now."""
    sums: int
    """Parts that were summed."""
    cpu_s: float
    longest_wait_s: float
    """Seconds for which a part waited for its turn, at most, since the last look."""


class JobMeter:
    """Counts for one job, and gives it its turns. Any thread may call it."""

    def __init__(self, job: str, turns: FairTurns) -> None:
        self.job = job
        self._turns = turns
        self._lock = threading.Lock()
        self._bytes = 0
        self._memory = 0
        self._keys = 0
        self._sums = 0
        self._cpu_s = 0.0
        self._longest_wait_s = 0.0

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for a turn in which `size` bytes are summed."""
        asked = time.monotonic()
        with self._turns.turn(self.job, size):
            waited = time.monotonic() - asked
            yield
        with self._lock:
            self._sums += 1
            self._longest_wait_s = max(self._longest_wait_s, waited)

    def register(self, gradients: int, memory: int, keys: int) -> tuple[int, int]:
        """Count so many bytes of gradients more, of memory for their sums, and keys; less, if negative.

        Returns how many bytes of memory, and keys, are registered now.
        """
        with self._lock:
            self._bytes += gradients
            self._memory += memory
            self._keys += keys
            return self._memory, self._keys

    def spent(self, cpu_s: float) -> None:
        """Count CPU seconds of a thread that works for this job."""
        with self._lock:
            self._cpu_s += cpu_s

    def look(self) -> JobUse:
        """What the job has used. The longest wait begins anew."""
        with self._lock:
            used = JobUse(self._bytes, self._sums, self._cpu_s, self._longest_wait_s)
            self._longest_wait_s = 0.0
            return used


class ThreadClock:
    """Tells `spent` how much CPU time this thread has used since it told last. None: it tells nobody."""

    def __init__(self, spent: Callable[[float], None] | None) -> None:
        self._spent = spent
        self._told = time.thread_time()

    def tick(self) -> None:
        """Tell it."""
        if self._spent is not None:
            now = time.thread_time()
            self._spent(now - self._told)
            self._told = now


@contextmanager
def no_turn(size: int) -> Iterator[None]:
    """The turn of a job that has its Aggregator for itself."""
    yield
