"""First come, first served: no job starts before an earlier one. The plainest baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexo.model.plans import Note
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import requested
from flexo.policies.placement import Placement


@dataclass(frozen=True, slots=True)
class Fifo(Policy):
    """Starts jobs in the order of submission, each with the workers that its user asked for.

    The first job that does not fit holds up all jobs behind it, unless it would not fit into the whole
    cluster either. Running jobs are left alone.
    """

    name: ClassVar[str] = "fifo"
    uses_running_times: ClassVar[bool] = False

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Start the head of the queue as long as it fits."""
        if not placement.any_idle:
            return Targets()
        free = placement.free()
        started: list[Target] = []
        for job in jobs.waiting():
            workers = requested(job)
            shares = free.place(job.shape, workers)
            if shares is not None:
                free.take(job.shape, shares)
                placement.put(job.key, shares)
                started.append(start(job, workers, "it is the first in the queue"))
            elif placement.could_ever_hold(job, workers):
                note = Note(job.key, f"first in the queue: {workers} workers do not fit yet")
                return Targets(tuple(started), notes=(note,))
        return Targets(tuple(started))


def start(job: TrainingJob, workers: int, why: str) -> Target:
    """The target that starts `job`, with its sentence for people."""
    return Target(job.key, workers, f"starts with {workers} of {job.workers} workers: {why}")
