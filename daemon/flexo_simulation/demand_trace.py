"""The demand of a simulation's inference cluster over time, in steps: from a file, or synthetic."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from flexo.loaning.diurnal import Diurnal
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv

COLUMNS: Final = ("time", "servers")
DAY_S: Final = 86_400.0
STEP_S: Final = 300.0
"""The length of a step of synthetic demand, in seconds."""


@dataclass(frozen=True, slots=True)
class DemandTrace:
    """Demand in servers. Each value holds from its time until the next; the first one also before its
    time."""

    name: str
    times: tuple[float, ...]
    """Increasing times in seconds since the workload's beginning. Values below 0 have been seen before it."""
    servers: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.servers):
            raise ValueError(f"{self.name}: {len(self.times)} times, {len(self.servers)} numbers of servers")

    def at(self, now: float) -> float:
        """The demand at `now`."""
        return self.servers[max(0, bisect_right(self.times, now) - 1)]

    def between(self, after: float, until: float) -> tuple[tuple[float, float], ...]:
        """The changes after `after`, up to and at `until`: their times and new values."""
        begin, end = bisect_right(self.times, after), bisect_right(self.times, until)
        return tuple(zip(self.times[begin:end], self.servers[begin:end], strict=True))


def read_demand(path: Path) -> DemandTrace:
    """Read a CSV file with the columns `time` (seconds) and `servers`; `#` begins a comment. Raises
    BadTrace."""
    sieve = Sieve(path, ReadOptions())
    with opened(path) as file:
        rows = rows_of_csv(file, sieve.name, COLUMNS, comments=True)
        steps = list(sieve.sift(rows, _step))
    if not steps:
        raise BadTrace((f"{sieve.name}: holds no demand; it takes lines of {' and '.join(COLUMNS)}",))
    for (line, at, _), (_, before, _) in zip(steps[1:], steps, strict=False):
        if at <= before:
            raise BadTrace((f"{sieve.name}:{line}: time is {at:g}, not after the {before:g} before it",))
    return DemandTrace(sieve.name, tuple(at for _, at, _ in steps), tuple(each for *_, each in steps))


def _step(row: Row) -> tuple[int, float, float]:
    takes = "a number of servers from 0, as in 12 or 12.5"
    servers = row.number("servers", takes)
    if servers < 0:
        raise row.refusal("servers", takes)
    return row.line, row.number("time", "seconds since the first submission, as in 3600"), servers


def made_up(shape: Diurnal, seed: int, days: float, seen_days: float = 14.0) -> DemandTrace:
    """Synthetic demand of `days` days, and of `seen_days` before them, for forecasts."""
    times = np.arange(-seen_days * DAY_S, days * DAY_S, STEP_S)
    servers = np.round(shape.servers_at(times, seed), 3)
    name = f"made-up demand (seed {seed})"
    return DemandTrace(name, tuple(times.tolist()), tuple(servers.tolist()))
