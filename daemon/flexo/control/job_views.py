"""Builds the public view of each elastic job from its cluster, its leader and its profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from flexo.clusters.base import ClusterState
from flexo.control.slow_gpus import nodes_of
from flexo.control.views import JobView, TimeLeft
from flexo.model.elastic import ElasticJob, LeaderReport
from flexo.model.measured import ScalingPoint, Source, Speed
from flexo.model.plans import Plan, Snapshot
from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.demand import seconds_left
from flexo.scalability.run_time import RunTimes


def job_views(
    jobs: Iterable[ElasticJob],
    state: ClusterState,
    snapshot: Snapshot,
    plan: Plan,
    reports: Mapping[JobKey, LeaderReport],
    scaling: Mapping[JobKey, tuple[ScalingPoint, ...]],
    analyzed: Mapping[JobKey, Speed],
    silent: Mapping[JobKey, float],
) -> tuple[JobView, ...]:
    """The views of `jobs`, which are given as they are once `plan` is carried out.

    `analyzed`: the speeds that the job scalability analyzer expects. `silent`: since when silent jobs have
    committed no batch.
    """
    known = {job.key: job for job in snapshot.training}
    bases = {job.key: job for job in state.jobs}
    batches = {batch.job: batch.samples for batch in plan.batches}
    return tuple(
        JobView(
            job,
            (base := bases[job.key]).owner,
            attached=(report := reports.get(job.key)) is not None,
            batches_committed=report.batches_committed if report else 0,
            scaling=scaling.get(job.key, ()),
            batch=batches.get(job.key, 0),
            progress=report.progress if report else 0.0,
            left=_time_left(job, known.get(job.key), base.time_limit_s),
            by_batch=_by_batch(job, known.get(job.key), analyzed.get(job.key)),
            name=base.name,
            partition=",".join(base.partitions),
            started_at=base.started_at or 0.0,
            silent_since=silent.get(job.key, 0.0),
        )
        for job in jobs
    )


def _time_left(job: ElasticJob, known: TrainingJob | None, limit_s: int | None) -> TimeLeft | None:
    """An estimate of the time that the job still takes with its present workers; None: not known.

    `limit_s`: its time limit. What goes by that alone says nothing once the job has had more than its base
    could have had in all of it.
    """
    if known is None or not job.training_workers:
        return None
    base_gpu_s = (limit_s or 0) * job.base_workers * float(job.shape.gpus or 1)
    if known.source is Source.TIME_LIMIT and known.service_gpu_s >= base_gpu_s:
        return None
    seconds = seconds_left(known, job.training_workers, len(nodes_of(job)), 0.0)
    return TimeLeft(seconds, known.source) if math.isfinite(seconds) else None


def _by_batch(job: ElasticJob, known: TrainingJob | None, speed: Speed | None) -> RunTimes | None:
    """The time that the job still takes by batch; None: not known."""
    if known is None or known.remaining_work is None or speed is None or job.batch is None:
        return None
    return RunTimes(speed, known.remaining_work, job.batch, known.source)
