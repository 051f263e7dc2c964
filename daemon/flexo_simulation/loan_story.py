"""The story of an inference cluster's servers in one simulation, and its figures.

Each figure's docstring defines it. Times are seconds since the workload's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo.model.loans import PastLoan
from flexo_protos.resources import Amount
from flexo_simulation.records import JobRecord

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the inference cluster from an instant on, until the next."""

    at: float
    needed: float
    """Servers that it needs; not necessarily a whole number."""
    used: int
    """Servers that it uses."""
    away: int
    """Servers lent to training, or not yet left by it."""
    held: Amount
    """GPUs of the servers away that jobs hold."""

    @property
    def state(self) -> tuple[float, int, int, Amount]:
        """All numbers but the time."""
        return self.needed, self.used, self.away, self.held


@dataclass(frozen=True, slots=True)
class LoanStory:
    """All that happened to the servers of one inference cluster."""

    servers: int
    gpus_each: int
    """GPUs of each server."""
    course: tuple[Moment, ...]
    lent: int
    """Number of times that a server was lent."""
    past: tuple[PastLoan, ...]
    """Loans that have ended, in the order of their ends."""
    preempted: tuple[int, ...]
    """Numbers of the jobs whose bases were preempted to reclaim servers, once for each time."""
    emptied_aside: int
    """Lent servers that were not under reclaim, and that these preemptions emptied."""
    missed: int
    """Servers that the inference cluster took at their deadline although jobs were still there."""


@dataclass(frozen=True, slots=True)
class LoanFigures:
    """Figures of loans, for `flexo simulate --json`. nan where there is nothing to count."""

    loans: int
    """Number of times that a server was lent."""
    reclaims: int
    """Instants at which reclaims began."""
    servers_reclaimed: int
    """Servers that were reclaimed and returned."""
    servers_emptied_aside: int
    """Lent servers that were not under reclaim, emptied because their jobs were preempted for others."""
    deadlines_missed: int
    """Servers taken by force at their deadline."""
    longest_reclaim_s: float
    """The longest time from the start of a reclaim to the empty server."""
    bases_preempted: int
    """Number of times that a job was preempted to reclaim a server."""
    workers_scaled_in: int
    """Workers beyond their jobs' bases that left because servers were reclaimed."""
    jobs_on_loan: int
    """Jobs that ever had GPUs on lent servers."""
    preemptions_per_job: float
    """`bases_preempted` over all jobs of the workload."""
    preempted_of_on_loan: float
    """Jobs ever preempted to reclaim a server, over `jobs_on_loan`."""
    preempted_of_jobs: float
    """Jobs ever preempted to reclaim a server, over all jobs of the workload."""
    server_hours: float
    """Hours for which servers were away from the inference cluster."""
    on_loan_use: float
    """GPU time that jobs held on servers away, over that of those servers."""
    training_use: float
    """GPU time that jobs held on training nodes, over that of those nodes."""
    inference_use: float
    """Servers that the inference cluster needed and used, over all of its servers."""
    overall_use: float
    """GPU time held by jobs anywhere and used by inference, over that of both clusters."""
    inference_short_server_hours: float
    """Server hours that the inference cluster needed and could not use, because its servers were away."""
    on_loan_avg_queue_s: float
    """Mean waiting time of the jobs of `jobs_on_loan`."""
    on_loan_avg_jct_s: float
    """Mean completion time of those of `jobs_on_loan` that finished."""


def loan_figures(
    story: LoanStory, records: Sequence[JobRecord], training_gpus: Amount, span: tuple[float, float]
) -> LoanFigures:
    """The figures of a story; figures over time are over `span`. `training_gpus`: GPUs besides the
    servers'."""
    on_loan = [record for record in records if record.on_loan]
    back = [loan for loan in story.past if loan.called_back_at is not None]
    preempted = len(set(story.preempted))
    use = _use(story, records, span)
    return LoanFigures(
        loans=story.lent,
        reclaims=len({loan.called_back_at for loan in back}),
        servers_reclaimed=len(back),
        servers_emptied_aside=story.emptied_aside,
        deadlines_missed=story.missed,
        longest_reclaim_s=max((loan.reclaim_s or 0.0 for loan in back), default=math.nan),
        bases_preempted=len(story.preempted),
        workers_scaled_in=sum(loan.workers_scaled_in for loan in story.past),
        jobs_on_loan=len(on_loan),
        preemptions_per_job=_over(len(story.preempted), len(records)),
        preempted_of_on_loan=_over(preempted, len(on_loan)),
        preempted_of_jobs=_over(preempted, len(records)),
        server_hours=use.away_s / 3600,
        on_loan_use=_over(use.held_gpu_s, use.away_s * story.gpus_each),
        training_use=_over(use.training_gpu_s, training_gpus * use.seconds),
        inference_use=_over(use.inference_s, story.servers * use.seconds),
        overall_use=_over(
            use.training_gpu_s + use.held_gpu_s + use.inference_s * story.gpus_each,
            (training_gpus + story.servers * story.gpus_each) * use.seconds,
        ),
        inference_short_server_hours=use.short_s / 3600,
        on_loan_avg_queue_s=_mean([record.queue_s for record in on_loan]),
        on_loan_avg_jct_s=_mean([record.jct_s for record in on_loan]),
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """Integrals over time, in GPU seconds or server seconds."""

    seconds: float
    training_gpu_s: float
    held_gpu_s: float
    away_s: float
    inference_s: float
    short_s: float


def _use(story: LoanStory, records: Sequence[JobRecord], span: tuple[float, float]) -> _Use:
    begin, end = span
    course = story.course
    times = np.array([moment.at for moment in course] + [end])
    lengths = np.diff(np.clip(times, begin, end))
    needed = np.minimum([moment.needed for moment in course], story.servers)
    used = np.array([float(moment.used) for moment in course])
    held_gpu_s = float(lengths @ np.array([float(moment.held) for moment in course]))
    return _Use(
        seconds=end - begin,
        training_gpu_s=_held_gpu_s(records, span) - held_gpu_s,
        held_gpu_s=held_gpu_s,
        away_s=float(lengths @ np.array([float(moment.away) for moment in course])),
        inference_s=float(lengths @ np.minimum(needed, used)),
        short_s=float(lengths @ np.maximum(0.0, needed - used)),
    )


def _held_gpu_s(records: Sequence[JobRecord], span: tuple[float, float]) -> float:
    begin, end = span
    total = 0.0
    for record in records:
        if not record.timeline:
            continue
        until = end if record.ended_at is None else min(end, record.ended_at)
        ends = [held.at for held in record.timeline[1:]] + [until]
        for held, held_until in zip(record.timeline, ends, strict=True):
            seconds = min(until, held_until) - max(begin, held.at)
            if seconds > 0:
                total += seconds * held.workers * record.job.shape.gpus
    return total


def _over(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def means(story: LoanStory, kind: str, edges: Numbers) -> Numbers:
    """The mean, between each two edges, of one of the numbers of the story's moments. `kind`: the number's
    name."""
    times = np.array([moment.at for moment in story.course])
    levels = np.array([float(getattr(moment, kind)) for moment in story.course])
    last = max(float(edges[-1]), float(times[-1])) + 1.0
    area = np.concatenate([[0.0], np.cumsum(levels * np.diff(np.append(times, last)))])
    found: Numbers = np.diff(np.interp(edges, np.append(times, last), area)) / np.diff(edges)
    return found
