"""One case of the benchmark: a seed, a mode, with or without loaning, the chooser of servers to reclaim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.loaning.diurnal import Diurnal
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim import Chooser, exact, heuristic, random_choice, smallest_jobs_first
from flexo.policies.backfill import Backfill
from flexo.policies.base import Policy
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.policies.lyra import Lyra
from flexo_bench.loaning import jobs, published
from flexo_simulation.costs import MEASURED
from flexo_simulation.demand_trace import DAY_S, made_up
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.inference import Inference
from flexo_simulation.loan_story import LoanFigures, Moment, loan_figures
from flexo_simulation.records import JobRecord
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

CHOOSERS: Mapping[str, Callable[[int], Chooser]] = {
    "heuristic": lambda seed: heuristic,
    "exact": lambda seed: exact,
    "random": random_choice,
    "smallest first": lambda seed: smallest_jobs_first,
}
CHOOSERS_IN = "basic"
"""The mode in which every chooser has simulations of its own.

In the other modes, choosers are compared on the same states only: simulations of all would take three hours
of a core.
"""
TRAINING_NODES = 443
GPUS = 8
RULES = Rules(
    headroom_share=0.05, most_per_interval=1_000_000, interval_s=600.0, rest_s=600.0, reclaim_s=300.0
)
"""Rules of lending, of which the slides print none: decisions every ten minutes, servers back within five."""
LONGEST_DAYS = 60.0


@dataclass(frozen=True)
class JobKinds:
    """Shares of jobs that are elastic, fungible and heterogeneous in a mode of the slides."""

    elastic: float
    of_large: bool
    fungible: float
    heterogeneous: float
    mixed_efficiency: float


MODES = {
    "baseline": JobKinds(0.0, True, 0.0, 0.0, 1.0),
    "basic": JobKinds(1.0, True, 0.21, 0.0, 1.0),
    "advanced": JobKinds(1.0, True, 0.21, 0.10, 0.9),
    "ideal": JobKinds(1.0, False, 1.0, 1.0, 1.0),
}
"""The modes of the slides.

Basic: 5% of jobs, the large ones, are elastic, and 21% are fungible. Advanced: in addition, 10% are
heterogeneous with "non-ideal performance", here 0.9 of the sum of speeds. Ideal: all jobs are all three.
"""


@dataclass(frozen=True)
class Servers:
    """A reading of the slides' inference cluster: they print 4,200 to 5,900 T4, each a third of a V100."""

    nodes: int
    """Number of servers at full scale."""
    gpus: int
    gpu_type: str


READINGS = {
    "three": Servers(443, 4, "3xT4"),
    "one": Servers(664, 8, "T4"),
}
"""`three`: a job has three T4 in place of each V100 that it asks for, as the slides count heterogeneous jobs
(2 V100 = 1 V100 + 3 T4). A server of 12 T4 then counts as 4 GPUs, as fast as a V100. `one`: a job has one T4
in place of each V100, as a Slurm job that asks for that many GPUs, and runs at a third of the speed there."""


@dataclass(frozen=True)
class Case:
    """The input of one simulation."""

    seed: int
    scale: float
    mode: str
    chooser: str = ""
    """A name in CHOOSERS; "": nothing is lent."""
    checkpoints: bool = True
    reading: str = "three"
    policy: str = "lyra"
    only_asked: bool = False
    """Whether no more servers are lent than jobs hold and ask for."""

    @property
    def label(self) -> str:
        """The case as a text for people."""
        which = "of what is asked for" if self.only_asked else "of all that is idle"
        loaning = f"loaning {which}, {self.chooser}" if self.chooser else "no loaning"
        saves = "checkpoints" if self.checkpoints else "no checkpoints"
        return f"seed {self.seed}, {self.mode}, {loaning}, {saves}, {self.policy}, T4: {self.reading}"


@dataclass(frozen=True)
class Measured:
    """The result of a case. Times are in seconds."""

    case: Case
    queue_s: tuple[float, float, float]
    """Mean, median, 95th percentile."""
    jct_s: tuple[float, float, float]
    preemptions: int
    resizes: int
    loans: LoanFigures
    """Figures of loans over the days in which jobs are submitted."""
    wall_s: float
    course: tuple[Moment, ...] = ()
    """Course of the inference cluster."""


def run(case: Case, chooser: Chooser | None = None) -> Measured:
    """Simulate a case. `chooser`: replaces the chooser that the case names, and must choose as it does."""
    outcome = simulate(workload_of(case), policy_of(case), scenario_of(case, chooser))
    assert outcome.loans is not None
    result = outcome.result
    return Measured(
        case,
        _three(outcome, lambda record: record.queue_s),
        _three(outcome, lambda record: record.jct_s),
        result.preemptions,
        result.resizes,
        loan_figures(outcome.loans, outcome.records, outcome.gpus, (0.0, published.DAYS * DAY_S)),
        result.wall_s,
        outcome.loans.course,
    )


def workload_of(case: Case) -> Workload:
    """The jobs of a case."""
    kinds = MODES[case.mode]
    return jobs.adapted(
        jobs.make(case.seed, case.scale),
        case.seed,
        elastic=kinds.elastic,
        of_large=kinds.of_large,
        fungible=kinds.fungible,
        heterogeneous=kinds.heterogeneous,
    )


def policy_of(case: Case) -> Policy:
    """The policy of a case: Lyra's two phases, or backfilling as a baseline."""
    if case.policy == "backfill":
        return Backfill()
    speeds = _speeds(case)
    return Lyra(gpu_speeds=speeds.speeds, mixed_efficiency=speeds.mixed_efficiency)


def _speeds(case: Case) -> GpuSpeeds:
    return GpuSpeeds(mixed_efficiency=MODES[case.mode].mixed_efficiency)


def scenario_of(case: Case, chooser: Chooser | None = None) -> Scenario:
    """The scenario of a case, with its two clusters."""
    servers = READINGS[case.reading]
    count = round(servers.nodes * case.scale)
    inference = Inference(
        servers=NodeGroup(count, servers.gpus, servers.gpu_type, "inference"),
        demand=made_up(Diurnal(servers=count, mean_use=published.INFERENCE_USE), case.seed, LONGEST_DAYS),
        lends=bool(case.chooser),
        only_asked=case.only_asked,
        rules=RULES,
        chooser=chooser or (CHOOSERS[case.chooser](case.seed) if case.chooser else heuristic),
    )
    return Scenario(
        nodes=(NodeGroup(round(TRAINING_NODES * case.scale), GPUS, jobs.TYPE),),
        costs=MEASURED,
        estimates=Estimates(Mode.ORACLE),
        gpu_speeds=_speeds(case),
        checkpoints=case.checkpoints,
        inference=inference,
    )


def _three(outcome: SimulatedRun, of: Callable[[JobRecord], float | None]) -> tuple[float, float, float]:
    values = [value for value in map(of, outcome.records) if value is not None]
    if not values:
        return math.nan, math.nan, math.nan
    return float(np.mean(values)), float(np.median(values)), float(np.percentile(values, 95))
