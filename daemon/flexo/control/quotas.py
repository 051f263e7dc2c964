"""Computes how much of the tenants' quotas the running jobs use ([controller] quotas).

flexod keeps no state for this. The cluster reports when jobs started, so the answer is the same after a
restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.model.training import Quota
from flexo.training_jobs import tenant_of
from flexo_protos.resources import Amount

_HOLDS: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The guaranteed jobs and the quotas, by one poll of the queue."""

    jobs: frozenset[JobKey]
    """Running jobs within their tenants' quotas."""
    quotas: tuple[Quota, ...]
    """The quotas, each with the GPUs that these jobs use of it."""


def guarantees(quotas: Mapping[str, int], queue: Iterable[QueuedJob]) -> Guarantees:
    """The running jobs that fit as a whole into their tenants' quotas, after jobs that started earlier
    (AntMan).

    Satellites use no quota, because flexod can reclaim them at any time.
    """
    used: defaultdict[str, Amount] = defaultdict(int)
    within = set()
    running = [job for job in queue if job.satellite is None and job.resources.gpus and job.state in _HOLDS]
    for job in sorted(running, key=lambda job: (job.started_at or 0.0, job.key)):
        tenant = tenant_of(job)
        if used[tenant] + job.resources.gpus <= quotas.get(tenant, 0):
            used[tenant] += job.resources.gpus
            within.add(job.key)
    return Guarantees(
        frozenset(within), tuple(Quota(tenant, gpus, used[tenant]) for tenant, gpus in quotas.items())
    )
