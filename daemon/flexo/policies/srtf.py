"""Shortest remaining time first, with preemption: the result that would be possible if running times were
known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.demand import fewest_nodes, requested, seconds_left
from flexo.policies.placement import Placement
from flexo.policies.serving import Chosen, choose, consolidated, movable, serve
from flexo.words import duration


@dataclass(frozen=True, slots=True)
class Srtf(Policy):
    """An oracle: it serves the job that would end first, by running times that no scheduler can know.

    Each job runs with the workers that its user asked for, and takes the GPUs of jobs that have longer to go.
    A job of unknown running time comes last. Among equals, running jobs come first, then the first submitted.
    """

    name: ClassVar[str] = "srtf"
    oracle: ClassVar[bool] = True
    orders_pending: ClassVar[bool] = True

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Serve jobs by their remaining time, the shortest first."""

        def left_s(job: TrainingJob) -> float:
            return _left_s(job, jobs, placement)

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return choose(placement, order, requested)

        def why(job: TrainingJob) -> str:
            return f"it has {duration(left_s(job))} to go"

        order = sorted(movable(jobs, placement), key=lambda job: (left_s(job), not job.shares))
        _, targets = serve(placement, order, chooser, why, consolidated)
        return Targets(targets)

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """Pending jobs by their remaining time, the shortest first."""
        order = sorted(jobs.waiting(), key=lambda job: _left_s(job, jobs, placement))
        return tuple(job.key for job in order)


def _left_s(job: TrainingJob, jobs: Jobs, placement: Placement) -> float:
    workers = requested(job)
    return seconds_left(job, workers, fewest_nodes(job, workers, placement.nodes), jobs.at)
