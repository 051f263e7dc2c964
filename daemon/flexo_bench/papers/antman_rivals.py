"""The schedulers that AntMan's section 5.2 compares with: YARN's capacity scheduler, Gandiva's packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import requested
from flexo.policies.placement import FreeGpus, Placement
from flexo.policies.second_seats import Seated, SecondSeats


@dataclass(frozen=True, slots=True)
class CapacityScheduler(Policy):
    """Two queues, each first come, first served: jobs of tenants with a quota, and after them all others.

    The first job of a queue that does not fit has what is idle reserved, as gangs are scheduled on YARN:
    nobody after it starts there.
    """

    name: ClassVar[str] = "capacity"
    uses_running_times: ClassVar[bool] = False
    uses_quotas: ClassVar[bool] = True

    preempts: bool = False
    """Whether jobs of tenants without a quota are preempted for the others, the last that started first."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Start the jobs of both queues."""
        having = {quota.tenant for quota in jobs.quotas if quota.gpus}
        free = placement.free()
        found: list[Target] = []
        first = [job for job in jobs.waiting() if job.tenant in having]
        if self.preempts and first:
            victims = _victims(free, first, [job for job in jobs.running() if job.tenant not in having])
            found += [Target(key, 0, "preempted for a tenant with a quota") for key in victims]
        for queue in (first, [job for job in jobs.waiting() if job.tenant not in having]):
            found += _in_order(queue, free, placement)
        return Targets(tuple(found))


def _victims(free: FreeGpus, first: Sequence[TrainingJob], others: list[TrainingJob]) -> Iterator[JobKey]:
    """The jobs that have to leave so that `first` start, as far as they can; `free` gets their GPUs."""
    others.sort(key=lambda job: (job.started_at or 0.0, job.key))
    needed = 0
    for job in first:
        needed += requested(job)
        while others and free.workers(job.shape) < needed:
            victim = others.pop()
            free.give(victim.shape, victim.shares)
            yield victim.key


def _in_order(queue: Sequence[TrainingJob], free: FreeGpus, placement: Placement) -> Iterator[Target]:
    """Start the jobs of one queue, and reserve for the first that does not fit."""
    for job in queue:
        shares = free.place(job.shape, requested(job))
        if shares is None:
            rest = free.place(job.shape, min(requested(job), free.workers(job.shape)))
            free.take(job.shape, rest or ())
            return
        free.take(job.shape, shares)
        yield Target(job.key, placement.put(job.key, shares), "the next of its queue")


@dataclass(frozen=True, slots=True)
class Packing(Policy):
    """Gandiva's packing: jobs in the order of submission, on idle GPUs, else on those that are least busy.

    Nobody is guaranteed anything. A GPU takes two jobs at most.
    """

    name: ClassVar[str] = "packing"
    uses_running_times: ClassVar[bool] = False

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Start the first jobs of the queue, until one finds no place."""
        waiting = list(jobs.waiting())
        if not waiting:
            return Targets()
        free, found = placement.free(), list[Target]()
        seated = [Seated(job, job.shares, job.shared) for job in jobs.running()]
        for job in waiting:
            shares, shared = free.place(job.shape, requested(job)), False
            if shares is None:
                # the last job changes what is free, so that the seats are counted anew
                seats = SecondSeats(placement, seated, below=2.0)
                shares, shared = seats.place(job.shape, requested(job)), True
                if shares is None:
                    break
            else:
                free.take(job.shape, shares)
            seated.append(Seated(job, shares, shared))
            workers = placement.put(job.key, shares)
            found.append(Target(job.key, workers, "the least busy GPUs", shared=shared))
        return Targets(tuple(found))
