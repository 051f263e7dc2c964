"""Tiresias' discretised least attained service in two dimensions: queues by the GPU seconds of jobs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.demand import requested
from flexo.policies.placement import Placement
from flexo.policies.serving import Chosen, Serving, choose, consolidated, movable, serve

_SOON_S: Final = 1.0
"""The least time between two checks of the queues, because sums of times are not exact."""


@dataclass(frozen=True, slots=True)
class Tiresias(Policy):
    """Tiresias as in Amoeba, section 6.2, after Gu et al., "Tiresias" (NSDI 2019), section 3.3.

    Jobs of a higher queue are served first, each with the workers that its user asked for, and take the GPUs
    of running jobs of lower queues. A new job is in queue 0, the highest. A job that has had the quantum of
    its queue is in the next one. Within a queue, running jobs come first, then first come, first served. A
    job that does not fit is passed over.
    """

    name: ClassVar[str] = "tiresias"
    uses_running_times: ClassVar[bool] = False
    orders_pending: ClassVar[bool] = True

    quanta_gpu_s: tuple[float, ...] = (10_000.0, 200_000.0)
    """Attained service at which a job leaves each queue but the last."""
    promote_knob: float = 8.0
    """A job that has waited this many times as long as it had run before is in queue 0; 0: never.

    Tiresias' PROMOTEKNOB; neither paper prints its value.
    """

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Serve the queues."""

        def chooser(order: Sequence[TrainingJob]) -> Chosen:
            return self.choose(jobs, placement, order)

        def why(job: TrainingJob) -> str:
            return f"it is in queue {self.queue_of(job, jobs.at)}"

        order = self._in_queues(movable(jobs, placement), jobs.at)
        chosen, targets = serve(placement, order, chooser, why, consolidated)
        return Targets(targets, again_at=self._again_at(chosen, jobs.at))

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """Pending jobs by queue, then first come, first served."""
        return tuple(job.key for job in self._in_queues(jobs.waiting(), jobs.at))

    def choose(self, jobs: Jobs, placement: Placement, order: Sequence[TrainingJob]) -> Chosen:
        """Choose the jobs that run, and their workers, by serving jobs in `order`."""
        return choose(placement, order, requested)

    def _in_queues(self, jobs: Iterable[TrainingJob], at: float) -> list[TrainingJob]:
        """Jobs in the order in which they are served."""
        queues: list[list[TrainingJob]] = [[] for _ in range(2 * len(self.quanta_gpu_s) + 2)]
        for job in jobs:
            queues[2 * self.queue_of(job, at) + (not job.shares)].append(job)
        return [job for queue in queues for job in queue]

    def queue_of(self, job: TrainingJob, at: float) -> int:
        """The job's queue: 0 is served first. A promoted job starts counting anew."""
        return bisect_right(self.quanta_gpu_s, self._counted(job, at))

    def _counted(self, job: TrainingJob, at: float) -> float:
        """GPU seconds that count: all, or, in a run to which the job was promoted, only those of this run."""
        service = job.service_at(at)
        waited_until = at if job.started_at is None else job.started_at
        if service < self.quanta_gpu_s[0] or not self.promote_knob or waited_until <= job.waiting_since:
            return service
        before = service - _service_of_run(job, at)
        return service - before if waited_until >= self._starves_at(job, before) else service

    def _starves_at(self, job: TrainingJob, service: float) -> float:
        """The time at which a job has waited too long. `service`: GPU seconds that it had had before it began
        to wait."""
        if service <= 0:
            return math.inf
        return job.waiting_since + self.promote_knob * service / (requested(job) * job.shape.gpus)

    def _again_at(self, chosen: Chosen, now: float) -> float | None:
        """The time at which the next job changes its queue without any other event; None: no job waits."""
        if not chosen.waiting:
            return None
        instants = [self._demoted_at(serving, now) for serving in chosen.servings]
        if self.promote_knob:
            instants += [
                self._starves_at(job, job.service_gpu_s)
                for job in chosen.waiting
                if job.service_gpu_s >= self.quanta_gpu_s[0] and not job.shares
            ]
        return max(now + _SOON_S, min((at for at in instants if at > now), default=math.inf))

    def _demoted_at(self, serving: Serving, now: float) -> float:
        counted = self._counted(serving.job, now)
        queue = bisect_right(self.quanta_gpu_s, counted)
        gpus = serving.workers * serving.job.shape.gpus
        if queue == len(self.quanta_gpu_s) or not gpus:
            return math.inf
        return now + (self.quanta_gpu_s[queue] - counted) / gpus


def _service_of_run(job: TrainingJob, at: float) -> float:
    """GPU seconds that the job has had since its last start; all of them if nobody recorded its history."""
    if job.started_at is None:
        return 0.0
    if not job.history:
        return job.service_at(at)
    service, until = 0.0, at
    for held in reversed(job.history):
        if held.at < job.started_at:
            break
        service += held.workers * job.shape.gpus * (until - held.at)
        until = held.at
    return service
