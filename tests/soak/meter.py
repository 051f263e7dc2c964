"""What flexod takes, by the kernel's accounts, and how often its loop has turned, by its own metrics."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from flexo.journal_space import used_bytes

_CYCLES = re.compile(r'^flexo_cycles_total\{outcome="[^"]*"\} (\S+)$', re.MULTILINE)
_JOBS = re.compile(r'^flexo_jobs\{state="[^"]*"\} (\S+)$', re.MULTILINE)
_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One quiet point."""

    at: float
    """Seconds since the epoch."""
    memory_mib: float
    """Resident, as `ps` shows it: nothing is trimmed or collected for the sake of it."""
    anonymous_mib: float
    """Of that, what belongs to no file."""
    descriptors: int
    threads: int
    cycle_cpu_s: float
    """CPU seconds of the process a turn of its loop, without the commands that it runs."""
    cycles: int
    """So many turns that is the mean of."""
    event_store_bytes: int


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, in nanoseconds' resolution, threads that have ended included."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process: clock_getcpuclockid(3)


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory, and the part of it that belongs to no file."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return _mib(fields["VmRSS"]), _mib(fields["RssAnon"])


def _mib(kib: str) -> float:
    return int(kib.split()[0]) * 1024 / _MIB


def total_of(pattern: re.Pattern[str], page: str) -> float:
    """The sum of a metric over its labels. Raises ValueError where it is not there."""
    found = [float(value) for value in pattern.findall(page)]
    if not found:
        raise ValueError(f"flexod's metrics have no {pattern.pattern}")
    return sum(found)


def size_of(store: Path) -> int:
    """Bytes of the event store that hold something: what [journal] max_mib bounds."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=30)) as connection:
        return used_bytes(connection)


@dataclass(frozen=True, slots=True)
class Meter:
    """Of one flexod."""

    process: psutil.Process
    metrics_port: int
    store: Path

    def elastic_jobs(self) -> int:
        """How many elastic jobs flexod knows at the moment."""
        return int(total_of(_JOBS, self._metrics()))

    def cycles(self) -> int:
        """How often its loop has turned."""
        return int(total_of(_CYCLES, self._metrics()))

    def sample(self, seconds: float, pause: Callable[[float], object] = time.sleep) -> Sample:
        """Watch it for so long; memory, descriptors and threads are the median of a look every second."""
        pid = self.process.pid
        cycles, spent = self.cycles(), cpu_s(pid)
        looks = []
        for _ in range(max(1, round(seconds))):
            pause(1.0)
            looks.append((*memory_mib(pid), self.process.num_fds(), self.process.num_threads()))
        spent, turns = cpu_s(pid) - spent, self.cycles() - cycles
        resident, anonymous, descriptors, threads = zip(*looks, strict=True)
        return Sample(
            time.time(), median(resident), median(anonymous), round(median(descriptors)),
            round(median(threads)), spent / max(1, turns), turns, size_of(self.store),
        )  # fmt: skip

    def _metrics(self) -> str:
        address = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())
