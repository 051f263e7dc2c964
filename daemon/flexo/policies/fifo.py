"""First come, first served: nobody starts before those who came earlier. The plainest baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flexo.model import Allocate, Note, Plan, Share, Snapshot, TrainingJob
from flexo.policies.demand import requested
from flexo.policies.placement import FreeGpus


@dataclass(frozen=True, slots=True)
class Fifo:
    """Starts jobs in the order of submission, each with the workers that its user asked for.

    The first that does not fit holds up all behind it (Slurm's sched/builtin), unless it would not fit into
    the whole cluster either. Running jobs are left alone.
    """

    name: ClassVar[str] = "fifo"
    oracle: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start what is at the head of the queue as long as it fits."""
        if not any_idle(snapshot):
            return Plan()
        free = FreeGpus.of(snapshot)
        allocations: list[Allocate] = []
        for job in waiting(snapshot):
            workers = requested(job)
            shares = free.place(job.shape, workers)
            if shares is not None:
                free.take(job.shape, shares)
                allocations.append(start(job, shares, "it is the first in the queue"))
            elif could_ever_fit(snapshot, job, workers):
                note = Note(job.key, f"first in the queue: {workers} workers do not fit yet")
                return Plan(allocations=tuple(allocations), notes=(note,))
        return Plan(allocations=tuple(allocations))


def any_idle(snapshot: Snapshot) -> bool:
    """Whether any GPU can be had without taking it from anybody."""
    return any(node.gpus > node.gpus_allocated and not node.unusable for node in snapshot.nodes)


def waiting(snapshot: Snapshot) -> Iterator[TrainingJob]:
    """Pending jobs in the order of submission."""
    return (job for job in snapshot.training if not job.shares)


def start(job: TrainingJob, shares: tuple[Share, ...], why: str) -> Allocate:
    """The allocation that starts `job`, and the sentence for it."""
    workers = sum(share.workers for share in shares)
    return Allocate(job.key, shares, f"starts with {workers} of {job.workers} workers: {why}")


def could_ever_fit(snapshot: Snapshot, job: TrainingJob, workers: int) -> bool:
    """Whether the usable nodes would hold it if nobody else were there."""
    shape = job.shape
    by_type: dict[str, int] = {}
    for node in snapshot.nodes:
        if not node.unusable and shape.gpu_type in ("", node.gpu_type):
            fits = node.gpus // shape.gpus if shape.gpus else workers
            by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + fits
    return max(by_type.values(), default=0) >= workers
