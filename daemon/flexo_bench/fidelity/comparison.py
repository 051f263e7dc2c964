"""Compares the lab with the simulator: how far the simulator's figures are from the real cluster's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies import registry
from flexo_bench.fidelity.calibration import Calibration
from flexo_bench.fidelity.running import GPUS_PER_NODE, NODES, Life
from flexo_bench.fidelity.workload import Job, simulated
from flexo_simulation.engine import simulate
from flexo_simulation.records import JobRecord
from flexo_simulation.scenario import Scenario

GOAL = 0.05
"""Largest allowed difference of mean JCT and of makespan."""


@dataclass(frozen=True, slots=True)
class Side:
    """The figures of one world, in seconds."""

    mean_jct_s: float
    makespan_s: float
    mean_wait_s: float
    """Mean time from a job's submission until it began."""
    resizes: int
    jct_s: tuple[float, ...]
    """JCT of each job."""
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One policy on one workload, in both worlds."""

    policy: str
    seed: int
    load: float
    """The machine's load average when the lab's run began: other work slows the lab's processes."""
    lab: Side
    simulator: Side
    calibration: Calibration
    """Calibration from shortly before and after the lab's run."""

    @property
    def mean_jct(self) -> float:
        """Mean JCT of the simulator divided by the lab's, less 1."""
        return self.simulator.mean_jct_s / self.lab.mean_jct_s - 1

    @property
    def makespan(self) -> float:
        """Makespan of the simulator divided by the lab's, less 1."""
        return self.simulator.makespan_s / self.lab.makespan_s - 1

    @property
    def each_jct(self) -> tuple[float, ...]:
        """Per job: JCT in the simulator divided by the lab's, less 1."""
        return tuple(ours / real - 1 for ours, real in zip(self.simulator.jct_s, self.lab.jct_s, strict=True))

    @property
    def median_of_each(self) -> float:
        """Median over the jobs of the absolute value of `each_jct`."""
        return statistics.median(abs(each) for each in self.each_jct)


def side(lives: Sequence[Life]) -> Side:
    """The figures of jobs that have all ended, in the order of submission."""
    return Side(
        statistics.fmean(life.jct_s for life in lives),
        max(life.ended_at for life in lives) - min(life.submitted_at for life in lives),
        statistics.fmean(life.began_at - life.submitted_at for life in lives),
        sum(life.resizes for life in lives),
        tuple(life.jct_s for life in lives),
        tuple(lives),
    )


def simulated_side(jobs: tuple[Job, ...], policy: str, calibration: Calibration) -> Side:
    """The workload in the simulator, with the lab's nodes and the measured delays and speeds."""
    scenario = Scenario((NodeGroup(NODES, GPUS_PER_NODE),), on_slurm=calibration.times)
    outcome = simulate(simulated(jobs, calibration.speed), registry.make(policy), scenario)
    return side([_life(job, record) for job, record in zip(jobs, outcome.records, strict=True)])


def _life(job: Job, record: JobRecord) -> Life:
    assert record.first_start_at is not None
    assert record.ended_at is not None
    sizes = tuple((held.at, held.workers) for held in record.timeline)
    return Life(job, job.at_s, record.first_start_at, record.ended_at, sizes)


def spread(pairs: Sequence[Pair], of: Callable[[Pair], float]) -> tuple[float, float, float]:
    """Median, least and greatest over the repeats."""
    values = [of(pair) for pair in pairs]
    return statistics.median(values), min(values), max(values)
