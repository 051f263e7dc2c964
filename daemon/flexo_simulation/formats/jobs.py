"""Makes jobs for all readers: a worker has one GPU, and an unknown speed is linear."""

from __future__ import annotations

from functools import lru_cache

from flexo.model.ranges import Range
from flexo_protos.resources import Resources
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.workload import TraceJob


@lru_cache(maxsize=256)
def one_gpu(gpu_type: str = "") -> Resources:
    """The resources of a worker in a trace, which states GPUs and nothing else. One object for all jobs."""
    return Resources(gpus=1, cpus=1, gpu_type=gpu_type)


def linear_job(
    *,
    submitted_at: float,
    gpus: int,
    duration_s: float,
    line: int,
    name: str = "",
    user: str = "",
    tenant: str = "",
    application: str = "",
    gpu_type: str = "",
) -> TraceJob:
    """A job that is not elastic and takes `duration_s` on its `gpus`."""
    return TraceJob(
        job_id=0,
        submitted_at=submitted_at,
        workers=Range(gpus, gpus),
        requested_workers=gpus,
        shape=one_gpu(gpu_type),
        training=LinearTraining(gpus * duration_s),
        user=user,
        tenant=tenant,
        application=application,
        line=line,
        name=name,
    )
