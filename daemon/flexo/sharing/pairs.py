"""Pairs of jobs on one GPU, and what that costs: reports of guarantee jobs joined with grants. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flexo.model.elastic import ElasticJob
from flexo.model.queue import JobKey
from flexo.model.sharing import GpuUse
from flexo.sharing.hosts import Gpu, gpus_of, stands


@dataclass(frozen=True, slots=True)
class Pair:
    """A GPU that its holder lets others use, with the opportunistic job that does, if any."""

    use: GpuUse
    holder: JobKey
    guest: JobKey | None = None


def pairs_of(jobs: Iterable[ElasticJob]) -> tuple[Pair, ...]:
    """All GPUs on whose use a holder reports, by node and number."""
    jobs = tuple(jobs)
    guests: dict[Gpu, JobKey] = {}
    for job in jobs:
        for grant in filter(stands, job.grants):
            guests.update(dict.fromkeys(gpus_of(grant), job.key))
    found = {
        (use.node, use.gpu): Pair(use, job.key, guests.get((use.node, use.gpu)))
        for job in jobs
        for use in job.gpu_uses
    }
    return tuple(pair for _, pair in sorted(found.items()))
