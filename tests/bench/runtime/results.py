"""What the benchmark has measured, and the five ratios that it is judged by. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.runtime.pauses import Pause

STOCK, RESTART, OURS = "stock", "restart", "flexo"


@dataclass(frozen=True, slots=True)
class Resize:
    """One resize of one rival."""

    rival: str
    model: str
    cost: Pause
    grant_to_useful_s: float | None = None
    """From the leader's grant to the first mini-batch of the newcomers; growing flexo jobs only."""
    warming_slows: float | None = None
    """See pauses.warming_slows; growing flexo jobs only."""


@dataclass(frozen=True, slots=True)
class Steady:
    """One run at a fixed size."""

    rival: str
    pair: int
    workers: int
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class Interval:
    """GPUs of `workers` workers were there from `start` to `end` (seconds since the run's beginning)."""

    start: float
    end: float
    workers: int


@dataclass(frozen=True, slots=True)
class Transient:
    """Training with GPUs that come and go. `intervals` is who could have trained when; see transient.py."""

    rival: str
    period_s: float
    time_scale: float
    step_seconds: float
    intervals: tuple[Interval, ...]
    samples: int
    """What was really done."""
    fixed: dict[int, float]
    """Samples/s at each size, measured with that size fixed."""

    @property
    def ideal_samples(self) -> float:
        """With resizing that costs nothing and happens at once."""
        return sum((part.end - part.start) * self.fixed[part.workers] for part in self.intervals)

    @property
    def without_borrowing(self) -> float:
        """Samples if the GPUs that come and go had been left alone."""
        least = min(self.fixed)
        return sum((part.end - part.start) * self.fixed[least] for part in self.intervals)

    @property
    def ratio(self) -> float:
        """Of the ideal."""
        return self.samples / self.ideal_samples


@dataclass(frozen=True, slots=True)
class Beside:
    """What a benchmark of its own has measured: its samples, and its table."""

    samples: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that one run of the benchmark has found out; parts that were left out are empty."""

    machine: dict[str, Any]
    command: str
    resizes: Sequence[Resize] = ()
    steady: Sequence[Steady] = ()
    transient: Sequence[Transient] = ()
    rendezvous: Beside | None = None
    leader_lookup: Beside | None = None
    seconds: float = 0.0

    def pauses(self, rival: str, model: str, *, out: bool) -> list[float]:
        """Seconds."""
        found = [each for each in self.resizes if (each.rival, each.model) == (rival, model)]
        return [each.cost.pause_s for each in found if each.cost.out is out]

    def rate(self, rival: str) -> float | None:
        """Median samples/s at the fixed size."""
        return median(run.samples_per_second for run in self.steady if run.rival == rival)

    def goals(self) -> list[Goal]:
        """The ratios, of the toy model."""
        ours_out = median(self.pauses(OURS, "toy", out=True))
        ours_in = median(self.pauses(OURS, "toy", out=False))
        ours_transient = median(run.ratio for run in self.transient if run.rival == OURS)
        stock_in = median(self.pauses(STOCK, "toy", out=False))
        stock_out, restart_out = (median(self.pauses(who, "toy", out=True)) for who in (STOCK, RESTART))
        steady = _ratio(self.rate(OURS), self.rate(STOCK))
        return [
            Goal("out_pause_ratio_vs_stock", _ratio(ours_out, stock_out), at_most=1 / 20),
            Goal("out_pause_ratio_vs_restart", _ratio(ours_out, restart_out), at_most=1 / 20),
            Goal("in_pause_ratio_vs_stock", _ratio(ours_in, stock_in), at_most=1.0),
            Goal("steady_throughput_ratio_vs_stock", steady, at_least=0.99),
            Goal("transient_ratio_vs_ideal", ours_transient, at_least=0.97),
        ]


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio, and what it is to reach. value None: not measured in this run."""

    name: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def wanted(self) -> str:
        """In words."""
        return f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"

    @property
    def verdict(self) -> str:
        """reached, missed, or not measured."""
        if self.value is None:
            return "not measured"
        low, high = self.at_least, self.at_most
        reached = (high is None or self.value <= high) and (low is None or self.value >= low)
        return "reached" if reached else "missed"


def median(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    """How much of theirs; pauses below the resolution of the logs count as 0.1 ms."""
    return None if ours is None or theirs is None else max(ours, 1e-4) / max(theirs, 1e-4)
