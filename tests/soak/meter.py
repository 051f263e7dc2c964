"""What flexod takes, by the kernel's accounts, and how often its loop has turned, by its own metrics."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from flexo.event_store.space import used_bytes
from soak import reference_work

_CYCLES = re.compile(r'^flexo_cycles_total\{outcome="[^"]*"\} (\S+)$', re.MULTILINE)
_JOBS = re.compile(r'^flexo_jobs\{state="[^"]*"\} (\S+)$', re.MULTILINE)
_MIB = 2.0**20


STRETCH_S = 5
"""Seconds from one reading of flexod's metrics to the next: to answer costs flexod CPU time, too."""


@dataclass(frozen=True, slots=True)
class _Look:
    memory_mib: float
    anonymous_mib: float
    descriptors: int
    threads: int
    reference_cpu_s: float


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
    """CPU seconds of the process for a cycle of its loop, without the commands that it runs: the median of
    stretches of STRETCH_S."""
    cycles: int
    """The number of cycles in the sample."""
    reference_cpu_s: float
    """CPU seconds of a piece of fixed work in the same minute, median: how fast the machine was."""
    event_store_bytes: int
    holds: tuple[str, ...]
    """Its descriptors, its threads by name and the commands that it ran, of at least half of the looks."""

    @property
    def cycle_cost(self) -> float:
        """CPU time of a cycle, in pieces of the fixed work: the same on a machine that is slower today."""
        return self.cycle_cpu_s / self.reference_cpu_s


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
    """Bytes of the event store that hold something: what [event_store] max_mib bounds."""
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
        """Watch it for so long, with a look every second. Everything is the median of its looks or stretches.

        A mean would tell of the machine: one cycle in which another process took the core weighs more than a
        slope of an hour.
        """
        first = self.cycles()
        looks: list[_Look] = []
        stretches: list[float] = []
        held: Counter[str] = Counter()
        for _ in range(max(1, round(seconds / STRETCH_S))):
            cycles, spent = self.cycles(), cpu_s(self.process.pid)
            for _ in range(STRETCH_S):
                pause(1.0)
                looks.append(self._look())
                held.update(self._holds())
            stretches.append((cpu_s(self.process.pid) - spent) / max(1, self.cycles() - cycles))
        return Sample(
            at=time.time(),
            memory_mib=median(look.memory_mib for look in looks),
            anonymous_mib=median(look.anonymous_mib for look in looks),
            descriptors=round(median(look.descriptors for look in looks)),
            threads=round(median(look.threads for look in looks)),
            cycle_cpu_s=median(stretches),
            cycles=self.cycles() - first,
            reference_cpu_s=median(look.reference_cpu_s for look in looks),
            event_store_bytes=size_of(self.store),
            holds=tuple(sorted(what for what, times in held.items() if 2 * times >= len(looks))),
        )

    def _look(self) -> _Look:
        resident, anonymous = memory_mib(self.process.pid)
        return _Look(
            resident, anonymous, self.process.num_fds(), self.process.num_threads(), reference_work.spent_s()
        )

    def _holds(self) -> set[str]:
        pid, found = self.process.pid, []
        connections = {
            each.fd: _ends(each.status, each.laddr, each.raddr)
            for each in self.process.net_connections(kind="all")
        }
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(connections.get(int(entry.name)) or str(entry.readlink()))
        found += [f"{count} threads named {name}" for name, count in self._thread_names().items()]
        for child in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # ended meanwhile
                found.append(f"runs {' '.join(child.cmdline())}")
        return set(found)

    def _thread_names(self) -> Counter[str]:
        """Those that a library starts have names of their own; Python's have the program's."""
        names: Counter[str] = Counter()
        for entry in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # ended meanwhile
                names[(entry / "comm").read_text().strip()] += 1
        return names

    def _metrics(self) -> str:
        address = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())


def _ends(state: str, *ends: object) -> str:
    """In words: the state of a connection, and who is on its two ends."""
    told = [":".join(map(str, end)) if isinstance(end, tuple) else str(end) for end in ends if end]
    return f"socket {state} {' to '.join(told)}"
