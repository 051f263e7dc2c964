"""Chooses the jobs of a workload that are elastic, fungible or heterogeneous, where its file does not say.

The choice depends only on the seed and the job's number. With the same seed, a job that is elastic at a share
of 5% is elastic at 20% as well, so that shares can be compared.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from flexo.model.ranges import Range
from flexo_simulation.workload import TraceJob, Workload


class Of(enum.Enum):
    """The jobs among which the share of elastic ones is counted."""

    MULTI = "multi"
    """Jobs of two GPUs and more."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Elasticity:
    """The elasticity that is assumed of a workload's jobs. Shares are probabilities of each job, 0 to 1."""

    share: float | None = None
    """The share of elastic jobs; None: as in the workload itself. Other jobs have their requested size."""
    of: Of = Of.MULTI
    min_factor: float = 0.5
    """An elastic job's least workers: its requested ones times this, rounded down, at least 1."""
    max_factor: float = 2.0
    """An elastic job's most workers: its requested ones times this, rounded down."""
    min_workers: int | None = None
    """An elastic job's least workers, instead of `min_factor`."""
    max_workers: int | None = None
    """An elastic job's most workers, instead of `max_factor`."""
    fungible_share: float | None = None
    heterogeneous_share: float | None = None


def made_elastic(workload: Workload, wish: Elasticity, seed: int) -> Workload:
    """`workload` with the elasticity in `wish`. The requested size always stays within a job's range."""
    steps: list[Callable[[TraceJob], TraceJob]] = []
    if wish.share is not None:
        share = wish.share
        steps.append(
            lambda job: replace(job, workers=_range(job, wish, _chosen(job, share, seed, "elastic")))
        )
    if wish.fungible_share is not None:
        fungible = wish.fungible_share
        steps.append(lambda job: replace(job, fungible=_chosen(job, fungible, seed, "fungible")))
    if wish.heterogeneous_share is not None:
        mixed = wish.heterogeneous_share
        steps.append(lambda job: replace(job, heterogeneous=_chosen(job, mixed, seed, "heterogeneous")))
    jobs = workload.jobs
    for step in steps:
        jobs = tuple(map(step, jobs))
    return replace(workload, jobs=jobs)


def drawn(job_id: int, seed: int, what: str) -> float:
    """A number from 0 to below 1 that looks random, and is the same for the same arguments."""
    digest = blake2b(f"{seed} {what} {job_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _chosen(job: TraceJob, share: float, seed: int, what: str) -> bool:
    return drawn(job.job_id, seed, what) < share


def _range(job: TraceJob, wish: Elasticity, chosen: bool) -> Range:
    asked = job.requested_workers
    if not chosen or (wish.of is Of.MULTI and asked * job.shape.gpus < 2):
        return Range(asked, asked)
    low = wish.min_workers or max(1, math.floor(asked * wish.min_factor))
    high = wish.max_workers or math.floor(asked * wish.max_factor)
    return Range(min(low, asked), max(high, asked))
