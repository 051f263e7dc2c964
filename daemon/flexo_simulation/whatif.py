"""The effect of elasticity on the jobs of an accounting dump: their real waits and ends, and simulated ones.

Every case is compared with a simulation of what the cluster does (Slurm: `backfill`, YARN: `fifo`; no job
elastic), so that facts that a simulation does not know are missing on both sides. The distance of that
simulation from reality is part of the findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.words import counted
from flexo_simulation.course import course_of, stretches_of
from flexo_simulation.formats.accounting import AccountedRun, Software
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.idle_gpus import IdleGpus, NotTold
from flexo_simulation.idle_intervals import Hold, peak
from flexo_simulation.records import End, JobRecord
from flexo_simulation.results import SimulatedRun

_HOUR: Final = 3600.0
_STRETCHES: Final = 5000
"""Number of stretches of time in which the use of GPUs is counted."""
_USUAL_GPUS: Final = 8
"""GPUs of a node that are assumed if the dump does not tell."""
CLOSE_S: Final = 600.0
"""A simulated wait this near to the real one counts as close."""
ENOUGH_JOBS: Final = 100
"""Among fewer jobs, a single one can decide the figures."""


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Statistics of the waits of jobs, in hours."""

    mean_h: float
    median_h: float
    p95_h: float
    total_h: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> WaitStatistics:
        """The statistics of the waits of at least one job."""
        hours = np.array(seconds) / _HOUR
        p50, p95 = (float(value) for value in np.percentile(hours, (50, 95)))
        return cls(float(hours.mean()), p50, p95, float(hours.sum()))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The simulated baseline compared with reality, job by job."""

    jobs: int
    """Number of jobs that are compared."""
    real: WaitStatistics
    simulated: WaitStatistics
    mean_difference_h: float
    """Mean of the simulated less the real wait; below 0: simulated jobs wait shorter."""
    typical_difference_h: float
    """The median of the absolute differences."""
    close_share: float
    """Share of the jobs whose waits differ by at most CLOSE_S."""
    real_utilization: float
    simulated_utilization: float


@dataclass(frozen=True, slots=True)
class Case:
    """One policy with one share of elastic jobs. GPU hours are those of the window, waits those of its
    jobs."""

    policy: str
    elastic_share: float
    """The share of elastic jobs among those that could be: jobs with two GPUs and more, or all."""
    oracle: bool
    jobs: int
    elastic_jobs: int
    """Among `jobs`."""
    elastic_in_all: int
    """Among all jobs of the dump, also those that are not counted."""
    mean_jct_h: float
    median_jct_h: float
    waited_h: float
    """Hours waited by all jobs together, also after a preemption."""
    p95_wait_h: float
    """Hours that all but a twentieth of the jobs waited at most."""
    idle_gpu_h: float
    idle_wanted_gpu_h: float
    """GPU hours that were idle while waiting jobs asked for as many."""
    utilization: float
    resizes: int
    preemptions: int
    unfinished: int
    not_counted: int
    """Jobs that came before the window. They are simulated, and no other figure has them."""
    not_counted_waited_h: float
    """Hours waited by these jobs together."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cases that are the same simulation, because their shares draw the same jobs."""

    case: Case
    """The first of them."""
    number: int
    """Its place among all cases."""
    last_share: float
    """The share of the last of them; that of the first, if there is one only."""

    def takes(self, case: Case) -> bool:
        """Whether `case` repeats the figures of this row. Shares are drawn with one seed, so that a smaller
        share has no job that a larger one has not."""
        alike = replace(case, elastic_share=self.case.elastic_share)
        return _without_nan(asdict(alike)) == _without_nan(asdict(self.case))


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """A case that was asked for, and was left out for lack of time."""

    policy: str
    elastic_share: float


@dataclass(frozen=True, slots=True)
class Size:
    """The cluster, and how its size was determined."""

    nodes: tuple[NodeGroup, ...]
    how: str

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(group.count * group.gpus for group in self.nodes)


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings from one dump."""

    software: Software
    size: Size
    window_h: float
    calibration: Calibration | None
    baseline: Case
    cases: tuple[Case, ...]
    idle: IdleGpus | NotTold
    """The idle intervals of GPUs as they really were."""
    not_simulated: tuple[NotSimulated, ...] = ()
    at_work: bool = False
    """Whether simulations were still running when these findings were gathered."""

    def rows(self) -> tuple[Row, ...]:
        """The cases, with neighbours of equal figures as one row: a small dump has few jobs to draw."""
        rows: list[Row] = []
        for number, case in enumerate(self.cases):
            if rows and rows[-1].takes(case):
                rows[-1] = replace(rows[-1], last_share=case.elastic_share)
            else:
                rows.append(Row(case, number, case.elastic_share))
        return tuple(rows)

    def to_json(self) -> dict[str, object]:
        """The findings for `json.dumps`; a figure of nothing is null."""
        calibration = None if self.calibration is None else asdict(self.calibration)
        return {
            "software": self.software.name,
            "cluster": {
                "nodes": sum(group.count for group in self.size.nodes),
                "gpus": self.size.gpus,
                "inferred": self.size.how,
            },
            "window_h": self.window_h,
            "calibration": calibration,
            "baseline": _without_nan(asdict(self.baseline)),
            "cases": [_without_nan(asdict(case)) for case in self.cases],
            "not_simulated": [asdict(each) for each in self.not_simulated],
            "idle": self.idle.to_json(),
        }


def _without_nan(figures: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in figures.items()
    }


def size_of(
    runs: Sequence[AccountedRun],
    nodes: int | None,
    gpus_per_node: int | None,
    known: tuple[NodeGroup, ...] = (),
) -> Size:
    """The size as given; if nothing is given, the `known` nodes of the dump.

    A part that nobody knows is as large as the runs show that it must have been. Raises BadTrace if the runs
    show that a node has more than `gpus_per_node`.
    """
    if known and nodes is None and gpus_per_node is None:
        return Size(known, "the nodes that the dump has")
    if gpus_per_node is not None:
        _check_gpus_per_node(gpus_per_node, runs)
    most = peak_gpus(runs)
    of_a_node, how = gpus_per_node, "as you said"
    if of_a_node is None:
        of_a_node = _gpus_of_a_node(runs)
        how = f"{counted(of_a_node, 'GPU')} a node: the most that a job had on one" if of_a_node else ""
    if not of_a_node:
        of_a_node, how = _USUAL_GPUS, f"{_USUAL_GPUS} GPUs a node: assumed, the dump does not tell"
    if nodes is None:
        nodes = max(1, math.ceil(most / of_a_node))
        were = "was" if most == 1 else "were"
        how += f"; {counted(nodes, 'node')}: for the {counted(most, 'GPU')} that {were} in use at the peak"
    return Size((NodeGroup(nodes, of_a_node),), how)


def peak_gpus(runs: Iterable[AccountedRun]) -> int:
    """The most GPUs in use at one time. A job that ends when another one begins makes room for it."""
    return peak(Hold(run.started_at, run.ended_at, run.gpus) for run in runs)


def _check_gpus_per_node(said: int, runs: Sequence[AccountedRun]) -> None:
    largest = max(runs, key=_gpus_on_a_node, default=None)
    if largest is not None and (had := _gpus_on_a_node(largest)) > said:
        raise BadTrace(
            (
                f"--gpus-per-node {said}: job {largest.job_id} had {had} GPUs on one node; "
                f"{had} and more are allowed with this dump",
            )
        )


def _gpus_of_a_node(runs: Iterable[AccountedRun]) -> int:
    return max(map(_gpus_on_a_node, runs), default=0)


def _gpus_on_a_node(run: AccountedRun) -> int:
    """The GPUs that the run had on one of its nodes at least; 0: its nodes are not stated."""
    return math.ceil(run.gpus / run.nodes) if run.nodes else 0


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the dump covers completely: jobs that could start in it are counted. Times are in
    seconds."""

    zero: float
    """Time when the first job of all could have started; simulated time begins there."""
    begin: float
    end: float

    @classmethod
    def of(cls, runs: Sequence[AccountedRun]) -> Window:
        """The window from the first end to the last job that came.

        sacct --starttime leaves out jobs that had ended before it, and YARN forgets all but the last ones:
        until the first end in the dump, other jobs may have run. After the last job has come, a cluster runs
        empty whatever the policy.
        """
        zero = min(run.ready_at for run in runs)
        begin, end = min(run.ended_at for run in runs), max(run.ready_at for run in runs)
        if begin < end:
            return cls(zero, begin, end)
        return cls(zero, zero, max(run.ended_at for run in runs))

    @property
    def simulated(self) -> tuple[float, float]:
        """The window in the simulation's time."""
        return self.begin - self.zero, self.end - self.zero

    @property
    def since(self) -> str:
        """The event at which the window begins."""
        return "the first end of a job" if self.begin > self.zero else "the first submission"

    @property
    def until(self) -> str:
        """The event at which the window ends."""
        return "the last submission" if self.begin > self.zero else "the last end of a job"

    @property
    def hours(self) -> float:
        """The length of the window in hours."""
        return (self.end - self.begin) / _HOUR

    def among(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """The records that are counted."""
        begin, _ = self.simulated
        return [record for record in records if record.job.submitted_at >= begin]

    def before(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """The records that are not counted."""
        begin, _ = self.simulated
        return [record for record in records if record.job.submitted_at < begin]


def calibrate(runs: Sequence[AccountedRun], window: Window, baseline: SimulatedRun) -> Calibration | None:
    """Compare a simulation with reality. None: no job can be compared.

    `baseline`: the simulation of the workload of `runs`, with records in their order.
    """
    pairs = [
        (run.waited_s, record.queue_s)
        for run, record in zip(runs, baseline.records, strict=True)
        if record.queue_s is not None and run.ready_at >= window.begin
    ]
    if not pairs:
        return None
    real, simulated = np.array(pairs).T
    difference = (simulated - real) / _HOUR
    used_gpu_h = sum(run.gpus * _overlap(run, window) for run in runs) / _HOUR
    return Calibration(
        jobs=len(pairs),
        real=WaitStatistics.of(real),
        simulated=WaitStatistics.of(simulated),
        mean_difference_h=float(difference.mean()),
        typical_difference_h=float(np.median(np.abs(difference))),
        close_share=float((np.abs(difference) <= CLOSE_S / _HOUR).mean()),
        real_utilization=used_gpu_h / (baseline.gpus * window.hours),
        simulated_utilization=_use(baseline, window).utilization,
    )


def _overlap(run: AccountedRun, window: Window) -> float:
    return max(0.0, min(run.ended_at, window.end) - max(run.started_at, window.begin))


def case_of(outcome: SimulatedRun, policy: str, elastic_share: float, window: Window) -> Case:
    """The figures of one simulation for the jobs that are counted."""
    use, counted = _use(outcome, window), window.among(outcome.records)
    before = window.before(outcome.records)
    waits_h = [seconds / _HOUR for seconds in waits_of(outcome, counted)]
    completion_h = [record.jct_s / _HOUR for record in counted if record.jct_s is not None]
    return Case(
        policy=policy,
        elastic_share=elastic_share,
        oracle=outcome.result.oracle,
        jobs=len(counted),
        elastic_jobs=_elastic(counted),
        elastic_in_all=_elastic(outcome.records),
        mean_jct_h=float(np.mean(completion_h)) if completion_h else math.nan,
        median_jct_h=float(np.median(completion_h)) if completion_h else math.nan,
        waited_h=sum(waits_h),
        p95_wait_h=float(np.percentile(waits_h, 95)) if waits_h else math.nan,
        idle_gpu_h=use.idle_gpu_h,
        idle_wanted_gpu_h=use.idle_wanted_gpu_h,
        utilization=use.utilization,
        resizes=outcome.result.resizes,
        preemptions=outcome.result.preemptions,
        unfinished=sum(1 for record in counted if record.end is not End.FINISHED),
        not_counted=len(before),
        not_counted_waited_h=sum(waits_of(outcome, before)) / _HOUR,
    )


def _elastic(records: Sequence[JobRecord]) -> int:
    return sum(1 for record in records if record.job.workers.min < record.job.workers.max)


def waits_of(outcome: SimulatedRun, records: Sequence[JobRecord]) -> list[float]:
    """The seconds that each of these jobs waited, also after a preemption."""
    return [_waited_s(record, outcome.result.makespan_s) for record in records]


def _waited_s(record: JobRecord, until: float) -> float:
    return sum(each.end - each.begin for each in stretches_of(record, until) if not each.workers)


@dataclass(frozen=True, slots=True)
class _Use:
    utilization: float
    idle_gpu_h: float
    idle_wanted_gpu_h: float


def _use(outcome: SimulatedRun, window: Window) -> _Use:
    course = course_of(outcome.records, _STRETCHES, window.simulated)
    hours = np.diff(course.edges) / _HOUR
    gpus = float(outcome.gpus)
    idle = np.maximum(0.0, gpus - course.used)
    return _Use(
        utilization=float((course.used * hours).sum() / (gpus * hours.sum())),
        idle_gpu_h=float((idle * hours).sum()),
        idle_wanted_gpu_h=float((np.minimum(idle, course.wanted) * hours).sum()),
    )
