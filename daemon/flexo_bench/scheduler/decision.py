"""Measures the time of one decision of `lyra`, and its growth with jobs, nodes and ranges."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, replace

from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies import allocating
from flexo.policies.lyra import Lyra
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


FULL = Size(10_000, 10_000, 64)
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


def measure(size: Size) -> Timed:
    """Decide on a cluster that is half full, with elastic jobs that run and others that wait."""
    snapshot = _snapshot(size)
    policy = Lyra()
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
        elastic = dice.random() < ELASTIC_SHARE
        least = dice.choice((1, 2, 4)) if elastic else dice.choice((1, 1, 1, 2, 4, 8))
        most = dice.randint(least, max(least, size.most_workers)) if elastic else least
        shares: tuple[NodeShare, ...] = ()
        if number % 2 and at < size.nodes:
            while at < size.nodes and free[at] < least:
                at += 1
            if at < size.nodes:
                free[at] -= least
                shares = (NodeShare(f"n{at}", least),)
        jobs.append(_job(number, Range(least, most), shares, dice))
    nodes = tuple(
        Node(
            f"n{index}",
            Resources(GPUS_PER_NODE, 64, 1),
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
