"""Figures of one simulation, from the story of each of its jobs.

Each figure's docstring defines it, because papers use the same words for different things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from flexo.model.nodes import Node
from flexo_protos.resources import Amount
from flexo_simulation.alone import alone_s
from flexo_simulation.course import span_of
from flexo_simulation.fairness import finish_time_fairness
from flexo_simulation.loan_story import LoanFigures, LoanStory, loan_figures
from flexo_simulation.records import End, JobRecord
from flexo_simulation.workload import TraceJob


@dataclass(frozen=True, slots=True)
class Result:
    """The part of `flexo simulate --json` on one policy. Times are in seconds; nan: there is nothing to
    count."""

    jobs: int
    """Jobs in the workload, whatever became of them."""
    avg_jct_s: float
    """Mean job completion time, from submission to completion, of the jobs that finished; so the next
    four."""
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    avg_queue_s: float
    """Mean time from submission until a job first had GPUs, of the jobs that ever had; so the next two."""
    median_queue_s: float
    p95_queue_s: float
    makespan_s: float
    """Time from the first submission to the last end."""
    gpu_utilization: float
    """GPU seconds held by jobs, over those of all nodes, and of servers on loan, during the makespan.

    Both seats of shared GPUs count, so that it can be above 1."""
    resizes: int
    """Number of changes of where a running job's workers were."""
    preemptions: int
    """Number of times that the whole of a running job was preempted."""
    sjs_efficiency: float
    """Scheduled jobs' sum of lengths on one worker, over the sum of GPU seconds held (IBM, section IV-A).

    Both sums are in GPU seconds, of the jobs that finished. A job that one worker cannot train counts with
    the least number that can."""
    worst_fairness: float
    """The largest finish-time fairness of a job that finished: its completion time, over that alone on its
    share of the GPUs (Themis; see `fairness`)."""
    unfair_share: float
    """The share of finished jobs whose finish-time fairness is above 1."""
    drop_ratio: float
    """The share of all jobs that the policy refused."""
    wall_s: float
    """The duration of the simulation itself."""
    events: int
    """Arrivals, ends, and other instants at which something happened to a job or a decision was due."""
    oracle: bool
    """Whether the policy used facts that no scheduler can know."""
    finished: int
    """Jobs that trained to their end."""
    never_fit: tuple[str, ...]
    """Jobs that the cluster could never hold, by number and, if it has one, name: they were left out."""
    never_started: tuple[str, ...]
    """Jobs that still waited when nothing could happen any more."""
    loans: LoanFigures | None = None
    """Figures of inference servers on loan; None: there is no inference cluster, and the JSON has no such
    key."""

    def to_json(self) -> dict[str, object]:
        """The figures for `json.dumps`; a figure of nothing is null."""
        figures = asdict(self)
        loans = figures.pop("loans")
        return _without_nan(figures) | ({} if loans is None else {"loans": _without_nan(loans)})


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One simulation: its figures, and the record of every job."""

    policy: str
    result: Result
    records: tuple[JobRecord, ...]
    """The records in the order of submission."""
    gpus: Amount
    """GPUs of the cluster, without those of inference servers."""
    loans: LoanStory | None = None
    """The story of inference servers; None: there are none."""


def _without_nan(figures: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def summarize(
    records: Sequence[JobRecord],
    gpus: Amount,
    loans: LoanStory | None = None,
    *,
    nodes: Sequence[Node] = (),
    wall_s: float = 0.0,
    events: int = 0,
    oracle: bool = False,
) -> Result:
    """The figures of a simulation on a cluster of `gpus` GPUs. Without its `nodes`, fairness is nan."""
    finished = [record for record in records if record.end is End.FINISHED]
    jct = np.array([record.jct_s for record in finished], dtype=float)
    queue = np.array([record.queue_s for record in records if record.queue_s is not None], dtype=float)
    makespan_s = _makespan(records)
    on_loan = loan_figures(loans, records, gpus, span_of(records)) if loans else None
    had_gpu_s = gpus * makespan_s
    if loans and on_loan:
        had_gpu_s += on_loan.server_hours * 3600 * loans.gpus_each
    held_gpu_s = sum(record.gpu_s for record in records)
    fairness = finish_time_fairness(records, nodes)
    dropped = sum(1 for record in records if record.end is End.DROPPED)
    return Result(
        jobs=len(records),
        avg_jct_s=_mean(jct),
        median_jct_s=_percentile(jct, 50),
        p95_jct_s=_percentile(jct, 95),
        p99_jct_s=_percentile(jct, 99),
        max_jct_s=_percentile(jct, 100),
        avg_queue_s=_mean(queue),
        median_queue_s=_percentile(queue, 50),
        p95_queue_s=_percentile(queue, 95),
        makespan_s=makespan_s,
        gpu_utilization=held_gpu_s / had_gpu_s if makespan_s > 0 and gpus else math.nan,
        resizes=sum(record.resizes for record in records),
        preemptions=sum(record.preemptions for record in records),
        sjs_efficiency=_sjs_efficiency(finished),
        worst_fairness=fairness.worst,
        unfair_share=fairness.unfair_share,
        drop_ratio=dropped / len(records) if records else math.nan,
        wall_s=wall_s,
        events=events,
        oracle=oracle,
        finished=len(finished),
        never_fit=_names(records, End.NEVER_FITS),
        never_started=_names(records, End.NEVER_STARTED),
        loans=on_loan,
    )


def _names(records: Sequence[JobRecord], end: End) -> tuple[str, ...]:
    return tuple(
        f"{record.job.job_id} ({record.job.name})" if record.job.name else str(record.job.job_id)
        for record in records
        if record.end is end
    )


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(values.mean()) if values.size else math.nan


def _percentile(values: np.ndarray[tuple[int], np.dtype[np.float64]], percent: float) -> float:
    """The percentile, linear between the two nearest values."""
    return float(np.percentile(values, percent)) if values.size else math.nan


def _makespan(records: Sequence[JobRecord]) -> float:
    taken_up = [record for record in records if record.end is not End.NEVER_FITS]
    ends = [record.ended_at for record in taken_up if record.ended_at is not None]
    if not ends:
        return math.nan
    return max(ends) - min(record.job.submitted_at for record in taken_up)


def _sjs_efficiency(finished: Sequence[JobRecord]) -> float:
    held_gpu_s = sum(record.gpu_s for record in finished)
    if held_gpu_s <= 0:
        return math.nan
    return sum(_least_gpu_s(record.job) for record in finished) / held_gpu_s


def _least_gpu_s(job: TraceJob) -> float:
    """GPU seconds that the job takes alone, undisturbed, with as few workers as can train it."""
    for workers in range(1, job.workers.max + 1):
        seconds = alone_s(job.training, workers)
        if math.isfinite(seconds):
            return seconds * workers * job.shape.gpus
    return math.nan
