"""The figures of one run of the testbed, in either world, and how far the worlds are apart."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from flexo_bench.fidelity.calibration import Calibration
from flexo_bench.fidelity.running import Life

GOAL = 0.10
"""Largest allowed difference of the mean queueing time and of the mean completion time."""


@dataclass(frozen=True, slots=True)
class Loans:
    """The figures of loans in one run."""

    use: float
    """GPU time that jobs held on servers away, over that of those servers, until the last submission."""
    loans: int
    """How often a server was lent."""
    reclaims: int
    """Instants at which servers were reclaimed."""
    servers_reclaimed: int
    jobs_on_loan: int
    """Jobs whose bases ever ran on a lent server."""
    away_share: float
    """The part of all servers' time for which they were away from inference, until the last submission."""


@dataclass(frozen=True, slots=True)
class Course:
    """All that a run has shown."""

    lives: tuple[Life, ...]
    loans: Loans | None
    """None: there was no inference cluster."""
    load: float = 0.0
    """The mean of the machine's load averages over a minute, taken every few seconds; 0: not measured."""
    highest_load: float = 0.0

    @property
    def queue_s(self) -> tuple[float, ...]:
        """Seconds from each job's submission to its first start."""
        return tuple(life.began_at - life.submitted_at for life in self.lives)

    @property
    def jct_s(self) -> tuple[float, ...]:
        """Seconds from each job's submission to its completion."""
        return tuple(life.jct_s for life in self.lives)

    @property
    def preempted(self) -> float:
        """Preemptions of bases over jobs."""
        return sum(life.preemptions for life in self.lives) / len(self.lives)

    @property
    def scalings(self) -> int:
        """Changes of the number of workers of all jobs."""
        return sum(life.resizes for life in self.lives)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last completion."""
        return max(life.ended_at for life in self.lives)


@dataclass(frozen=True, slots=True)
class Pair:
    """One scheme on one workload, in both worlds."""

    scheme: str
    seed: int
    seconds: float
    """How long the slides' eight hours were."""
    lab: Course
    simulator: Course
    calibration: Calibration

    @property
    def queue(self) -> float:
        """Mean queueing of the simulator divided by the lab's, less 1."""
        return _off(self.simulator.queue_s, self.lab.queue_s)

    @property
    def jct(self) -> float:
        """Mean completion of the simulator divided by the lab's, less 1."""
        return _off(self.simulator.jct_s, self.lab.jct_s)

    @property
    def within(self) -> bool:
        """Whether both are within the goal."""
        return max(abs(self.queue), abs(self.jct)) <= GOAL


def _off(ours: tuple[float, ...], real: tuple[float, ...]) -> float:
    return statistics.fmean(ours) / statistics.fmean(real) - 1
