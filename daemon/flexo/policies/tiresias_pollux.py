"""Tiresias as the authors of Pollux compared against it; it replays their published figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from flexo.model.queue import JobKey
from flexo.model.training import Held, NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.demand import requested
from flexo.policies.placement import FreeGpus, Placement
from flexo.policies.serving import Chosen, choose, movable, serve


@dataclass(frozen=True, slots=True)
class TiresiasPollux(Policy):
    """The baseline of Qiao et al., "Pollux" (OSDI 2021), section 5, as their artifact has it.

    There are two queues. A job is in the second one for good once it has had the quantum. The first is in the
    order of submission, the second in the order in which jobs came into it. Jobs get the workers that their
    users asked for. A job that does not fit waits, and later ones may start. A running job that does not fit
    any more is preempted. GPUs come from the node with the most free.
    """

    name: ClassVar[str] = "tiresias-pollux"
    uses_running_times: ClassVar[bool] = False
    orders_pending: ClassVar[bool] = True

    quantum_gpu_s: float = 57_600.0
    """The quantum: 16 GPU hours."""
    round_s: float = 60.0
    """Seconds between two checks of the queues. Jobs that have had the quantum in one round enter the second
    queue at once."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Serve both queues."""

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return choose(placement, order, requested)

        def why(job: TrainingJob) -> str:
            return f"it is in queue {int(self._is_behind(job, jobs.at))}"

        order = self._in_queues(movable(jobs, placement), jobs.at)
        _, targets = serve(placement, order, chooser, why, _widest)
        return Targets(targets)

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """Pending jobs: the first queue, then the second."""
        return tuple(job.key for job in self._in_queues(jobs.waiting(), jobs.at))

    def _in_queues(self, jobs: Iterable[TrainingJob], at: float) -> list[TrainingJob]:
        first: list[TrainingJob] = []
        second: list[TrainingJob] = []
        for job in jobs:
            (second if self._is_behind(job, at) else first).append(job)
        second.sort(key=lambda job: self._behind_since(job, at))
        return first + second

    def _is_behind(self, job: TrainingJob, now: float) -> bool:
        return job.service_at(now) >= self.quantum_gpu_s

    def _behind_since(self, job: TrainingJob, now: float) -> float:
        """The round in which the job had had the quantum; its submission if nobody recorded its history."""
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


def _widest(free: FreeGpus, job: TrainingJob, workers: int) -> tuple[NodeShare, ...] | None:
    return free.place_widest(job.shape, workers)
