"""Measures the time of one decision: of `lyra` by jobs, nodes and ranges, of `goodput` on four GPU types."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, replace

from flexo.model.measured import Speed
from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies import allocating
from flexo.policies.base import Policy
from flexo.policies.goodput import Goodput
from flexo.policies.lyra import Lyra
from flexo.scalability.scaled import ScaledSpeed
from flexo_protos.resources import Resources

GPUS_PER_NODE = 8
ELASTIC_SHARE = 0.2
REPEATS = 3
_NOW = 100_000.0
_GPU = Resources(1, 1)


@dataclass(frozen=True)
class Size:
    """The size of a cluster and its queue."""

    jobs: int
    nodes: int
    most_workers: int
    """The largest maximum of an elastic job's workers."""
    gpu_types: int = 1
    elastic_share: float = ELASTIC_SHARE


FULL = Size(10_000, 10_000, 64)
TYPED = Size(2_000, 1_250, 64, gpu_types=4, elastic_share=1.0)
"""For `goodput`: 10,000 GPUs of four types, and 2,000 elastic jobs that know their speed on each."""
SWEEPS = {
    "jobs": [replace(FULL, jobs=jobs) for jobs in (1_000, 2_000, 5_000, 10_000, 20_000)],
    "nodes": [replace(FULL, nodes=nodes) for nodes in (1_000, 2_000, 5_000, 10_000, 20_000)],
    "range": [replace(FULL, most_workers=most) for most in (4, 8, 16, 32, 64, 128)],
}


@dataclass(frozen=True)
class Timed:
    """CPU seconds of one decision: median, least and most of `REPEATS`."""

    size: Size
    median_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class _Power:
    """A speed that is a power of the workers (implements Speed)."""

    exponent: float

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        return float(workers**self.exponent)

    def best_batch(self, workers: int, nodes: int) -> int:
        return 0


def measure_typed(size: Size = TYPED) -> Timed:
    """Decide with `goodput` on a cluster with several GPU types."""
    return measure(size, Goodput())


def measure(size: Size, policy: Policy | None = None) -> Timed:
    """Decide on a cluster that is half full, with elastic jobs that run and others that wait.

    `policy`: None for `lyra`.
    """
    snapshot = _snapshot(size)
    policy = policy or Lyra()
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        allocating.plan(policy, snapshot)
        took.append(time.process_time() - began)
    return Timed(size, statistics.median(took), min(took), max(took))


def _snapshot(size: Size) -> Snapshot:
    """A snapshot drawn with one seed. Half of the jobs run, each on one node if there is room."""
    dice = random.Random(1)
    free = [GPUS_PER_NODE] * size.nodes
    at = 0
    jobs = []
    for number in range(1, size.jobs + 1):
        elastic = dice.random() < size.elastic_share
        least = dice.choice((1, 2, 4)) if elastic else dice.choice((1, 1, 1, 2, 4, 8))
        most = dice.randint(least, max(least, size.most_workers)) if elastic else least
        shares: tuple[NodeShare, ...] = ()
        if number % 2 and at < size.nodes:
            while at < size.nodes and free[at] < least:
                at += 1
            if at < size.nodes:
                free[at] -= least
                shares = (NodeShare(f"n{at}", least),)
        job = _job(number, Range(least, most), shares, dice)
        jobs.append(job if size.gpu_types == 1 else _with_speeds(job, size.gpu_types, dice))
    nodes = tuple(
        Node(
            f"n{index}",
            Resources(GPUS_PER_NODE, 64, 1, f"type{index % size.gpu_types}" if size.gpu_types > 1 else ""),
            Resources(GPUS_PER_NODE - left),
            frozenset({"train"}),
        )
        for index, left in enumerate(free)
    )
    return Snapshot(_NOW, nodes, (), (), (), "", training=tuple(jobs))


def _job(number: int, workers: Range, shares: tuple[NodeShare, ...], dice: random.Random) -> TrainingJob:
    return TrainingJob(
        key=JobKey(number),
        user="ada",
        workers=workers,
        shape=_GPU,
        submitted_at=float(number),
        waiting_since=float(number),
        shares=shares,
        started_at=float(number) if shares else None,
        remaining_work=dice.lognormvariate(8.0, 2.0) * workers.min,
    )


def _with_speeds(job: TrainingJob, gpu_types: int, dice: random.Random) -> TrainingJob:
    """The job with a speed of its own on each GPU type."""
    speed = _Power(dice.uniform(0.5, 0.95))
    speeds: list[tuple[str, Speed]] = [
        (f"type{each}", ScaledSpeed(speed, dice.uniform(1, 5) if each else 1.0)) for each in range(gpu_types)
    ]
    return replace(job, speed=speed, speeds=tuple(speeds), most_workers=job.workers.max)
