"""AntMan's section 5.2 and table 5: `antman` with shared GPUs beside a capacity scheduler and packing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import Quota
from flexo.policies.antman import AntMan
from flexo.policies.base import Policy
from flexo_bench.papers.antman_rivals import CapacityScheduler, Packing
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import MEASURED
from flexo_simulation.generate import Recipe, generate
from flexo_simulation.pairs import Control
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.seats import GpuSharing
from flexo_simulation.workload import Workload

PAPER = 'Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning" (OSDI 2020)'
NODES = NodeGroup(8, 8)
GPUS = NODES.count * NODES.gpus
QUOTAS = (Quota("a", GPUS),)
LONGEST_S = 4 * 3600.0


@dataclass(frozen=True)
class Assumed:
    """What the paper does not print of the workload."""

    jobs: int = 500
    load: float = 2.0
    """GPU time of the jobs over that of the cluster while jobs arrive."""
    utilization: float | None = None
    """The utilization of every job; None: that of its model."""

    @property
    def title(self) -> str:
        """The title of its tables."""
        alike = (
            "" if self.utilization is None else f", every job with a utilization of {self.utilization:.0%}"
        )
        return f"section 5.2, {self.jobs} jobs at a load of {self.load:g}{alike}"


CHOSEN = Assumed()
OTHERS = (
    Assumed(load=1.0),
    Assumed(load=4.0),
    Assumed(jobs=2000),
    *(Assumed(utilization=utilization) for utilization in (0.2, 0.4, 0.6)),
)
"""The other readings, each in tables of its own."""
DOMAINS = (
    ("ResNet-50", "VGG16", "SuperResolution"),
    ("Bert",),
    ("ESPnet",),
    ("GraphSAGE", "GCN"),
    ("DIN", "Wide & Deep"),
)
"""The models of table 3: a fifth of the jobs for each domain, evenly among its models."""
STEP_S = 0.6
"""80% of production tasks take less than this for a step (section 2.3)."""
NOTICED_S = 0.01
"""Table 5 counts a longer step as interference from this on (section 5.3)."""
TABLE_5 = (9895, 26, 30, 20, 29, 0)
BANDS = (0.0, 0.01, 0.02, 0.03, 0.04, math.inf)
"""Upper ends of the bands of table 5."""
DIFFERENCES = (
    f"Not printed, and chosen once: {CHOSEN.jobs} jobs, arrivals as a Poisson process at a load of"
    f" {CHOSEN.load:g} (others below), sizes and durations of Philly's jobs, none longer than"
    f" {LONGEST_S / 3600:g} h. Their durations follow the distribution of Gandiva's authors, which is not"
    " published.",
    "Speeds of pairs are ours (flexo_simulation/pairs.py). They give the figures that are printed of two"
    " pairs; the utilization of six of the nine models is a guess. GPU memory never decides, which favours"
    " packing.",
    "A GPU has two seats; AntMan lets several opportunistic jobs onto one GPU. Second jobs change the GPU"
    " on their node at no cost.",
    f"A start costs {MEASURED.start_s:g} s, as measured with flexo; theirs is not printed. A preempted job"
    " begins anew, because preemption fails jobs there (section 3.3).",
    "The capacity scheduler reserves what is idle for the first job of each queue that does not fit. Packing"
    " is first come, first served.",
    f"Waiting rule: a job of tenant A runs as an opportunistic one after {AntMan().patience_s:g} s, which is"
    " not printed. A row without the rule stands beside.",
    "Ratios are of the same jobs, by seed: median (lowest to highest).",
)


@dataclass(frozen=True)
class Case:
    """A scheduler, and what two jobs on one GPU do to each other under it."""

    label: str
    policy: Policy
    control: Control = Control.GATED


ANTMAN = Case("antman", AntMan(share_gpus=True))
PLAIN = Case("capacity scheduler", CapacityScheduler())
PREEMPTING = Case("capacity scheduler, preempting", CapacityScheduler(preempts=True))
PACKING = Case("packing", Packing(), Control.PACKED)
PATIENT = Case("antman, A waits for its guarantee", AntMan(share_gpus=True, patience_s=math.inf))
ALONE = Case("antman, no GPU shared", AntMan())
CASES = (ANTMAN, PLAIN, PREEMPTING, PACKING, PATIENT, ALONE)
JCT_RATIOS = {PLAIN.label: 2.05, PACKING.label: 1.84}
MAKESPAN_RATIOS = {PLAIN.label: 1.76, PACKING.label: 1.67}
PREEMPTED_PERCENT = 46.0

Outcomes = Mapping[str, Sequence[SimulatedRun]]
"""By case: the outcome of each seed."""
Measure = Callable[[SimulatedRun], float]


def compare(run: Run, seeds: Sequence[int]) -> Comparison:
    """Simulate all cases under all assumptions, for each seed."""
    outcomes = _simulate(run, CHOSEN, seeds)
    tables = [_ratios(CHOSEN, outcomes), _each(CHOSEN, outcomes), _interference(outcomes)]
    for assumed in OTHERS:
        outcomes = _simulate(run, assumed, seeds)
        tables += [_ratios(assumed, outcomes), _each(assumed, outcomes)]
    return Comparison("antman", PAPER, DIFFERENCES, tuple(tables))


def workload(seed: int, assumed: Assumed) -> Workload:
    """The jobs of one seed. Equal arguments make equal jobs."""
    made = generate(Recipe(assumed.jobs, GPUS, seed, load=assumed.load, longest_s=LONGEST_S))
    draws = np.random.Generator(np.random.PCG64((seed, 1))).random((3, assumed.jobs))
    jobs = []
    for job, domain, model, tenant in zip(made.jobs, *draws, strict=True):
        names = DOMAINS[int(domain * len(DOMAINS))]
        name = names[int(model * len(names))] if assumed.utilization is None else ""
        jobs.append(replace(job, model=name, tenant="a" if tenant < 0.5 else "b"))
    return replace(made, jobs=tuple(jobs))


def _simulate(run: Run, assumed: Assumed, seeds: Sequence[int]) -> Outcomes:
    trials = []
    for case in CASES:
        sharing = GpuSharing(case.control)
        if assumed.utilization is not None:
            sharing = replace(sharing, utilization=assumed.utilization)
        scenario = Scenario((NODES,), MEASURED, quotas=QUOTAS, checkpoints=False, sharing=sharing)
        for seed in seeds:
            label = f"{case.label}, {assumed.title}, seed {seed}"
            trials.append(Trial(label, case.policy, workload(seed, assumed), scenario))
    found = run(trials)
    return {
        case.label: found[place * len(seeds) : (place + 1) * len(seeds)] for place, case in enumerate(CASES)
    }


def _ratios(assumed: Assumed, outcomes: Outcomes) -> Table:
    """All cases but AntMan's own, to AntMan."""
    ours = outcomes[ANTMAN.label]
    rows = []
    for case in CASES[1:]:
        theirs = outcomes[case.label]
        figures = (
            _ratio(theirs, ours, _jct_s, JCT_RATIOS.get(case.label, math.nan)),
            _ratio(theirs, ours, _makespan_s, MAKESPAN_RATIOS.get(case.label, math.nan)),
            _ratio(theirs, ours, _jct_of_a_s),
            _ratio(theirs, ours, _jct_of_b_s),
        )
        rows.append(Row(case.label, figures))
    columns = ("completion time", "makespan", "completion time of A", "of B")
    return Table(f"{assumed.title}: ratios to antman, medians", columns, tuple(rows))


def _each(assumed: Assumed, outcomes: Outcomes) -> Table:
    """Each case by itself."""
    rows = []
    for case in CASES:
        printed = PREEMPTED_PERCENT if case is PREEMPTING else math.nan
        figures = (
            *(_medians(map(each, outcomes[case.label])) for each in (_jct_s, _jct_of_a_s, _jct_of_b_s)),
            _medians(map(_makespan_s, outcomes[case.label])),
            _medians(map(_preempted_percent, outcomes[case.label]), printed),
            _medians(map(_preempted_percent_of_b, outcomes[case.label]), printed),
        )
        rows.append(Row(case.label, figures))
    columns = ("completion, s", "of A", "of B", "makespan, s", "preempted, % of all jobs", "% of B's jobs")
    return Table(f"{assumed.title}, medians", columns, tuple(rows), digits=0)


def _interference(outcomes: Outcomes) -> Table:
    """Table 5: jobs that shared GPUs as owners, by how much longer their steps took."""
    printed = tuple(100 * jobs / sum(TABLE_5) for jobs in TABLE_5)
    rows = []
    for label, least in (
        ("every gap counts", 0.0),
        (f"gaps below {1000 * NOTICED_S:g} ms of a step of {STEP_S:g} s do not count", NOTICED_S / STEP_S),
    ):
        each = [_percents(outcome, least) for outcome in outcomes[ANTMAN.label]]
        bands = zip(printed, zip(*each, strict=True), strict=True)
        rows.append(Row(label, tuple(_medians(ours, paper) for paper, ours in bands)))
    columns = ("0%", "0 to 1%", "1 to 2%", "2 to 3%", "3 to 4%", "above 4%")
    return Table("table 5: % of guaranteed jobs that shared GPUs, by interference", columns, tuple(rows))


def _percents(outcome: SimulatedRun, least: float) -> tuple[float, ...]:
    """Percent of the jobs in each band; a slowdown below `least` is none."""
    found = [record.slowdown for record in outcome.records if record.slowdown is not None]
    bands = [0] * len(BANDS)
    for slowdown in found:
        noticed = slowdown if slowdown >= least else 0.0
        bands[next(place for place, end in enumerate(BANDS) if noticed <= end)] += 1
    return tuple(100 * jobs / len(found) if found else math.nan for jobs in bands)


def _ratio(
    over: Sequence[SimulatedRun], under: Sequence[SimulatedRun], measure: Measure, paper: float = math.nan
) -> Figure:
    return _medians((measure(a) / measure(b) for a, b in zip(over, under, strict=True)), paper)


def _medians(values: Iterable[float], paper: float = math.nan) -> Figure:
    each = tuple(values)
    return Figure(paper, each, statistics.median(each))


def _jct_s(outcome: SimulatedRun) -> float:
    return outcome.result.avg_jct_s


def _makespan_s(outcome: SimulatedRun) -> float:
    return outcome.result.makespan_s


def _jct_of_a_s(outcome: SimulatedRun) -> float:
    return _jct_of_tenant_s(outcome, "a")


def _jct_of_b_s(outcome: SimulatedRun) -> float:
    return _jct_of_tenant_s(outcome, "b")


def _jct_of_tenant_s(outcome: SimulatedRun, tenant: str) -> float:
    times = [record.jct_s for record in outcome.records if record.job.tenant == tenant]
    return statistics.fmean(time for time in times if time is not None)


def _preempted_percent(outcome: SimulatedRun) -> float:
    return 100 * statistics.fmean(record.preemptions > 0 for record in outcome.records)


def _preempted_percent_of_b(outcome: SimulatedRun) -> float:
    return 100 * statistics.fmean(
        record.preemptions > 0 for record in outcome.records if record.job.tenant == "b"
    )
