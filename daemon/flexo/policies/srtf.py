"""Shortest remaining time first, with preemption: what could be reached if running times were known."""

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


@dataclass(frozen=True, slots=True)
class Srtf(Policy):
    """An oracle: it serves whoever would end first, by running times that no scheduler can know.

    Each runs with the workers that its user asked for, and takes the GPUs of those that have longer to go.
    One whose running time is unknown comes last. Of equals, those that run come first, then the first come.
    """

    name: ClassVar[str] = "srtf"
    oracle: ClassVar[bool] = True
    orders_pending: ClassVar[bool] = True

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Serve jobs by what they have left to do."""

        def left_s(job: TrainingJob) -> float:
            return _left_s(job, jobs, placement)

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return choose(placement, order, requested)

        def why(job: TrainingJob) -> str:
            return f"it has {left_s(job):.0f} s to go"

        order = sorted(movable(jobs, placement), key=lambda job: (left_s(job), not job.shares))
        _, targets = serve(placement, order, chooser, why, consolidated)
        return Targets(targets)

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """By what they have left to do."""
        order = sorted(jobs.waiting(), key=lambda job: _left_s(job, jobs, placement))
        return tuple(job.key for job in order)


def _left_s(job: TrainingJob, jobs: Jobs, placement: Placement) -> float:
    workers = requested(job)
    return seconds_left(job, workers, fewest_nodes(job, workers, placement.nodes), jobs.at)
