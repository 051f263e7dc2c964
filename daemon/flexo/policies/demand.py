"""The request of a job, and its remaining time with it: calculations that all policies share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo.model.nodes import Node
from flexo.model.training import TrainingJob


def requested(job: TrainingJob) -> int:
    """Workers of a job that no policy resizes: what its user asked for, within the job's range."""
    wanted, allowed = job.requested_workers, job.workers
    return wanted if allowed.min <= wanted <= allowed.max else allowed.clamp(wanted or allowed.min)


def fewest_workers(job: TrainingJob) -> int:
    """The fewest workers to which the job can shrink: its minimum, or its base if that is larger."""
    if not job.base:  # as in all simulations but those on Slurm, which ask for every job at every event
        return job.workers.min
    return max(job.workers.min, sum(share.workers for share in job.base))


def rate(job: TrainingJob, workers: int, nodes: int, gpu_type: str = "") -> float:
    """Work per second by `workers` on `nodes` nodes; linear in the workers where nothing is known.

    `gpu_type`: "" for the type of the job's latest step.
    """
    speed = job.speed_on(gpu_type) if gpu_type else job.speed
    return float(workers) if speed is None else speed.rate(workers, nodes)


def seconds_left(job: TrainingJob, workers: int, nodes: int, now: float) -> float:
    """Seconds that the job would go on from `now` with `workers`; infinite: not known, or it cannot run
    so."""
    left = job.remaining_at(now) if job.shares else job.remaining_work
    if left is None:
        return math.inf
    pace = float(workers) if job.speed is None else job.speed.rate(workers, nodes)
    return left / pace if pace > 0 else math.inf


def fewest_nodes(job: TrainingJob, workers: int, nodes: Sequence[Node]) -> int:
    """The fewest nodes for `workers`, if all nodes are as large as the largest that the job may use."""
    wanted = job.shape.gpu_type
    largest = max((node.gpus for node in nodes if not wanted or node.gpu_type == wanted), default=0)
    each = largest // max(1, job.shape.gpus)
    return -(-workers // each) if each else 1
