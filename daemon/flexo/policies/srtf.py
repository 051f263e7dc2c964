"""Shortest remaining time first, with preemption: what could be reached if running times were known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flexo.model import Plan, Snapshot, TrainingJob
from flexo.policies.demand import fewest_nodes, requested, seconds_left
from flexo.policies.serving import Chosen, choose, consolidated, movable, serve


@dataclass(frozen=True, slots=True)
class Srtf:
    """An oracle: it serves whoever would end first, by running times that no scheduler can know.

    Each runs with the workers that its user asked for, and takes the GPUs of those that have longer to go.
    One whose running time is unknown comes last. Of equals, those that run come first, then the first come.
    """

    name: ClassVar[str] = "srtf"
    oracle: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve jobs by what they have left to do."""

        def left_s(job: TrainingJob) -> float:
            workers = requested(job)
            return seconds_left(job, workers, fewest_nodes(job, workers, snapshot.nodes), snapshot.at)

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return choose(snapshot, order, requested)

        def why(job: TrainingJob) -> str:
            return f"it has {left_s(job):.0f} s to go"

        order = sorted(movable(snapshot), key=lambda job: (left_s(job), not job.shares))
        chosen, allocations = serve(snapshot, order, chooser, why, consolidated)
        return Plan(allocations=allocations, order=tuple(job.key for job in chosen.waiting))
