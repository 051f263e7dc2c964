"""Reads the logs of a run's workers while the workers go on writing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from flexo_bench.workers_logs import Event, WorkersLogs


@dataclass(frozen=True, slots=True)
class Batch:
    """The end of one mini-batch in one worker. Times are seconds since the epoch, by one machine's clock."""

    worker: int
    """The worker's process id."""
    step: int
    at: float
    rank: int
    size: int
    samples: int
    cpu: float = math.nan
    """CPU seconds of the worker's process so far, if the worker logs them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Anything else that a worker logged: started, began, imported, initialised, built, enter, done."""

    worker: int
    event: str
    at: float


@dataclass
class WorkLog:
    """All logs of one folder; `read` adds what was written since."""

    folder: Path
    batches: list[Batch] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    _logs: WorkersLogs = field(init=False)

    def __post_init__(self) -> None:
        self._logs = WorkersLogs(self.folder)

    def read(self) -> WorkLog:
        """Add what is new."""
        for event in self._logs.new():
            self._take(event)
        return self

    def _take(self, line: Event) -> None:
        pid, at = int(line["pid"]), float(line["time"])
        if line["event"] == "batch":
            place, cpu = (line["rank"], line["size"]), line.get("cpu", math.nan)
            self.batches.append(Batch(pid, line["step"], at, *place, line["samples"], cpu))
        else:
            self.moments.append(Moment(pid, line["event"], at))

    def settled(self, size: int, batches: int, after: float) -> bool:
        """True if each of `size` workers has done `batches` mini-batches at this size since `after`."""
        done: dict[int, int] = {}
        for batch in self.batches:
            if batch.size == size and batch.at > after:
                done[batch.rank] = done.get(batch.rank, 0) + 1
        return len(done) == size and min(done.values()) >= batches


def batch_seconds(batches: Iterable[Batch]) -> float:
    """Median time of a mini-batch, over all workers in `batches`; NaN if no worker did two in a row."""
    gaps = [gap for each in by_worker(batches).values() for gap in _gaps(each)]
    return statistics.median(gaps) if gaps else float("nan")


def mean_seconds(batches: Iterable[Batch]) -> float | None:
    """Mean time of a mini-batch, over all workers in `batches`; None if no worker did two in a row."""
    gaps = [gap for each in by_worker(batches).values() for gap in _gaps(each)]
    return statistics.fmean(gaps) if gaps else None


def samples_per_second(batches: Sequence[Batch]) -> float:
    """Samples/s of all workers together, over the time that `batches` span.

    A worker's first mini-batch only begins the time. Raises ValueError if a worker has fewer than two.
    """
    total = 0.0
    for each in by_worker(batches).values():
        if len(each) < 2:
            raise ValueError("a throughput needs at least two mini-batches of each worker")
        total += sum(batch.samples for batch in each[1:]) / (each[-1].at - each[0].at)
    return total


def by_worker(batches: Iterable[Batch]) -> dict[int, list[Batch]]:
    """Mini-batches per worker, in order of time."""
    found: dict[int, list[Batch]] = {}
    for batch in sorted(batches, key=lambda each: each.at):
        found.setdefault(batch.worker, []).append(batch)
    return found


def _gaps(batches: Sequence[Batch]) -> list[float]:
    """Times between mini-batches that follow one another at the same size."""
    return [
        second.at - first.at
        for first, second in pairwise(batches)
        if second.step == first.step + 1 and second.size == first.size
    ]
