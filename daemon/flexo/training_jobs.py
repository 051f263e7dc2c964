"""Describes training jobs to policies, for clusters where jobs grow by satellites.

The cluster reports what a job requests and holds. The job's leader reports how fast it trains and how far it
is. Earlier jobs of its user show how long such jobs take. Each running time comes with its source, because it
is only an estimate.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flexo.issued_grants import shape_within
from flexo.model.elastic import ElasticJob, LeaderReport, SatelliteState
from flexo.model.measured import RunningTime, ScalingPoint, Source, Speed
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.scalability.measured import speed_of
from flexo_protos.resources import Amount

_LIKE_JOBS: Final = 10
"""The number of recent jobs of a kind that count."""
_LEAST_LEFT_S: Final = 60.0
"""The least time left that is assumed, also for a job that should be over."""
_NO_LIMIT_S: Final = 365 * 86400
"""A time limit from here on counts as none: a cluster may report it for a job without a limit."""
_CHANGE_COST_S: Final = 1.0
"""The training time that a change of its satellites costs a job, in seconds. The job stands still for less
(docs/evidence/resize-cost.md), but estimates waver, and GPUs train nobody while a satellite starts."""


class History:
    """The running times of the last jobs of each user and size. For the controller's thread alone."""

    def __init__(self, times: Iterable[RunningTime]) -> None:
        self._times: dict[tuple[str, Amount], deque[float]] = {}
        self._whole_s: dict[tuple[str, Amount], float] = {}
        """The median times, as far as they were asked for: thousands of pending jobs ask in each cycle."""
        self._running: dict[JobKey, QueuedJob] = {}
        self._missed_at: dict[JobKey, float] = {}
        """Running jobs that the last poll did not show, with the time of that poll."""
        for time in times:
            self._add(time)

    def _add(self, time: RunningTime) -> None:
        kind = time.user, time.gpus
        self._times.setdefault(kind, deque(maxlen=_LIKE_JOBS)).append(time.seconds)
        self._whole_s.pop(kind, None)

    def see(self, jobs: Iterable[QueuedJob], now: float) -> tuple[RunningTime, ...]:
        """Process one poll of the queue. Returns the running times of GPU jobs that two polls have not shown.

        A job that one poll does not show may be there in the next, as when the cluster's controller restarts.
        """
        running = {
            job.key: job
            for job in jobs
            if job.resources.gpus
            and job.satellite is None
            and job.state in (JobState.RUNNING, JobState.SUSPENDED)
        }
        ended = tuple(
            RunningTime(
                job.user, job.resources.gpus, self._missed_at[key] - job.started_at, self._missed_at[key]
            )
            for key, job in self._running.items()
            if key in self._missed_at and key not in running
            if job.started_at is not None and job.started_at <= self._missed_at[key]
        )
        for time in ended:
            self._add(time)
        missed = {key: job for key, job in self._running.items() if key not in running}
        self._running = running | {key: job for key, job in missed.items() if key not in self._missed_at}
        self._missed_at = {key: now for key in self._running if key not in running}
        return ended

    def left_s(self, job: QueuedJob, ran_s: float) -> float | None:
        """Estimate how long `job`, which has run for `ran_s`, runs on; None: its user had no like jobs.

        The estimate is the median of the like jobs that took longer. A job that has outrun them all counts as
        half done. If it counted as nearly done, it would lose all satellites for the rest of its life.
        """
        kind = job.user, job.resources.gpus
        if kind not in self._times:
            return None
        if ran_s:
            return self._longer_s(kind, ran_s)
        if kind not in self._whole_s:
            self._whole_s[kind] = self._longer_s(kind, 0.0)
        return self._whole_s[kind]

    def _longer_s(self, kind: tuple[str, Amount], ran_s: float) -> float:
        longer = [seconds - ran_s for seconds in self._times[kind] if seconds > ran_s]
        return statistics.median(longer) if longer else ran_s


@dataclass(frozen=True, slots=True)
class Known:
    """The inputs of all estimates."""

    history: History
    scaling: Mapping[JobKey, tuple[ScalingPoint, ...]]
    reports: Mapping[JobKey, LeaderReport]
    now: float
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of users' flexible demand; 1 for users that are not listed."""
    guaranteed: Container[JobKey] = ()
    """Running jobs within their tenants' quotas (AntMan)."""
    analyzed: Mapping[JobKey, Speed] = field(default_factory=dict)
    """Expected speeds by the job scalability analyzer. They count before `scaling`."""


class TrainingJobs:
    """The jobs of each poll that train, or wait to. For the controller's thread alone.

    A pending job that has not changed is not made again: most jobs of a long queue have not.
    """

    def __init__(self) -> None:
        self._made: dict[JobKey, tuple[tuple[QueuedJob, float | None, Source], TrainingJob]] = {}
        """The pending jobs of the last poll, each after the inputs from which it was made."""

    def of(
        self, queue: Iterable[QueuedJob], elastic: Iterable[ElasticJob], known: Known
    ) -> tuple[TrainingJob, ...]:
        """The elastic jobs that run, and every pending job that requests GPUs, in the order of submission."""
        running = {job.key: job for job in elastic}
        shown = []
        made, self._made = self._made, {}
        for job in queue:
            if job.satellite is not None or not job.resources.gpus:
                continue
            if job.key in running:
                shown.append(_running(job, running[job.key], known))
            elif job.state is JobState.PENDING:
                said = job, *_time_left(job, known, 0.0)
                before, pending = made.get(job.key, (None, None))
                if pending is None or before != said:
                    pending = _pending(*said)
                self._made[job.key] = said, pending
                shown.append(pending)
        return tuple(sorted(shown, key=lambda job: (job.submitted_at, job.key.job_id, job.key.restart_count)))


def tenant_of(job: QueuedJob) -> str:
    """The job's account; its user if the cluster keeps no accounts."""
    return job.account or job.user


def _running(base: QueuedJob, job: ElasticJob, known: Known) -> TrainingJob:
    speed = known.analyzed.get(job.key) or speed_of(known.scaling.get(job.key, ()))
    service_gpu_s = _service(base, job, known.now)
    done_s = service_gpu_s / float(job.shape.gpus or 1) / job.base_workers
    left_s, source = _time_left(base, known, done_s)
    return TrainingJob(
        key=job.key,
        user=job.user,
        workers=job.workers,
        shape=job.shape,
        submitted_at=base.submitted_at,
        requested_workers=job.base_workers,
        preemptible=False,
        started_at=base.started_at,
        service_gpu_s=service_gpu_s,
        speed=speed,
        remaining_work=_work(left_s, speed, job.base_workers, len(job.base_nodes)),
        source=source,
        batch=job.batch,
        last_change_at=job.last_resize_at,
        change_cost_s=_CHANGE_COST_S,
        most_workers=job.granted_workers,
        tenant=tenant_of(base),
        guaranteed=base.key in known.guaranteed,
        fungible=base.elastic.fungible if base.elastic else False,
        heterogeneous=job.heterogeneous,
        weight=known.weights.get(base.user, 1.0),
    )


def opportunist(base: QueuedJob, job: ElasticJob) -> TrainingJob:
    """An opportunistic job whose base runs, as policies see it: it waits while it has no satellites."""
    standing = [grant for grant in job.grants if grant.state is not SatelliteState.LEAVING]
    return TrainingJob(
        key=job.key,
        user=job.user,
        workers=job.workers,
        shape=job.shape,
        submitted_at=base.submitted_at,
        requested_workers=job.workers.min,
        shares=tuple(NodeShare(grant.node, grant.workers) for grant in standing),
        started_at=base.started_at,
        waiting_since=base.started_at or base.submitted_at,
        last_change_at=job.last_resize_at,
        tenant=tenant_of(base),
        opportunistic=True,
        heterogeneous=job.heterogeneous,
    )


def _pending(job: QueuedJob, left_s: float | None, source: Source) -> TrainingJob:
    """A pending job as policies see it. Its whole request is one worker or, for an elastic job, the minimum
    number of workers."""
    asked = job.elastic
    workers = asked.workers.min if asked else 1
    return TrainingJob(
        key=job.key,
        user=job.user,
        workers=asked.workers if asked else Range(1, 1),
        shape=shape_within(job, None),
        submitted_at=job.submitted_at,
        requested_workers=workers,
        waiting_since=job.submitted_at,
        remaining_work=_work(left_s, None, workers, 1),
        source=source,
        batch=asked.batch if asked else None,
        tenant=tenant_of(job),
        fungible=asked.fungible if asked else False,
        heterogeneous=asked.heterogeneous if asked else False,
    )


def _time_left(job: QueuedJob, known: Known, done_s: float) -> tuple[float | None, Source]:
    """The seconds that the job would still run on its base alone, and the source of that estimate.

    `done_s`: the time that its base alone would have taken for the work done so far, if satellites train as
    well. A job with only its time limit to go by is taken to need its base for all of that time.
    """
    begun = job.started_at is not None and bool(job.nodes)
    ran_s = max(0.0, known.now - (job.started_at or 0.0)) if begun else 0.0
    report = known.reports.get(job.key)
    if report is not None and 0.0 < report.progress < 1.0:
        return done_s * (1.0 - report.progress) / report.progress, Source.PROGRESS
    limit_s = None
    if job.time_limit_s is not None and job.time_limit_s < _NO_LIMIT_S:
        outran = done_s >= job.time_limit_s  # the estimate is wrong: all that is known is when it has to end
        limit_s = max(_LEAST_LEFT_S, job.time_limit_s - (ran_s if outran else max(ran_s, done_s)))
    like_s = known.history.left_s(job, ran_s)
    if like_s is None:
        return limit_s, Source.TIME_LIMIT
    left_s = max(_LEAST_LEFT_S, like_s)
    return left_s if limit_s is None else min(left_s, limit_s), Source.HISTORY


def _work(left_s: float | None, speed: Speed | None, workers: int, nodes: int) -> float | None:
    if left_s is None:
        return None
    rate = speed.rate(workers, max(1, nodes)) if speed is not None else float(workers)
    return left_s * rate


def _service(base: QueuedJob, job: ElasticJob, now: float) -> float:
    """The GPU seconds of the base job so far, and of the present satellites. Not negative, even if the clock
    was set."""
    started = base.started_at if base.started_at is not None else now
    satellites = sum((now - grant.since_at) * grant.workers for grant in job.grants)
    return max(0.0, (now - started) * job.base_workers + satellites) * float(job.shape.gpus)
