"""Tiresias as the authors of Pollux compared against it: what their published figures are replayed with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from flexo.model import Held, Plan, Share, Snapshot, TrainingJob
from flexo.policies.demand import requested
from flexo.policies.placement import FreeGpus
from flexo.policies.serving import Chosen, choose, movable, serve


@dataclass(frozen=True, slots=True)
class TiresiasPollux:
    """Qiao et al., "Pollux" (OSDI 2021), section 5, as their artifact has it.

    Two queues; a job is in the second one for good once it has had the quantum. The first is in the order of
    submission, the second in the order in which jobs came into it. They are served with what users asked
    for; a job that does not fit waits, later ones may start, and a running job that does not fit any more is
    preempted. GPUs come from the node with the most free.
    """

    name: ClassVar[str] = "tiresias-pollux"
    oracle: ClassVar[bool] = False

    quantum_gpu_s: float = 57_600.0
    """16 GPU hours."""
    round_s: float = 60.0
    """How often queues are looked at: who comes into the second one in the same round comes at once."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve both queues."""

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return choose(snapshot, order, requested)

        def why(job: TrainingJob) -> str:
            return f"it is in queue {int(self._is_behind(job, snapshot.at))}"

        chosen, allocations = serve(snapshot, self._order(snapshot), chooser, why, _widest)
        return Plan(allocations=allocations, order=tuple(job.key for job in chosen.waiting))

    def _order(self, snapshot: Snapshot) -> list[TrainingJob]:
        first: list[TrainingJob] = []
        second: list[TrainingJob] = []
        for job in movable(snapshot):
            (second if self._is_behind(job, snapshot.at) else first).append(job)
        second.sort(key=lambda job: self._behind_since(job, snapshot.at))
        return first + second

    def _is_behind(self, job: TrainingJob, now: float) -> bool:
        return job.service_at(now) >= self.quantum_gpu_s

    def _behind_since(self, job: TrainingJob, now: float) -> float:
        """The round in which it had had the quantum; of one whose history nobody kept, its submission."""
        if not job.history:
            return job.submitted_at
        left = self.quantum_gpu_s
        for held, then in pairwise((*job.history, Held(now, 0, 0))):
            gpus = held.workers * job.shape.gpus
            if gpus * (then.at - held.at) >= left:
                return self._round(held.at + left / gpus)
            left -= gpus * (then.at - held.at)
        return self._round(now)

    def _round(self, at: float) -> float:
        return math.ceil(at / self.round_s) * self.round_s


def _widest(free: FreeGpus, job: TrainingJob, workers: int) -> tuple[Share, ...] | None:
    return free.place_widest(job.shape, workers)
