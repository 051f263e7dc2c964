"""Elastic-Tiresias: Tiresias' queues, and two rules that resize jobs with the load of the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar

from flexo.model.nodes import Node
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Targets
from flexo.policies.demand import fewest_nodes, fewest_workers, rate, requested
from flexo.policies.placement import Placement
from flexo.policies.resize_benefit import pays
from flexo.policies.serving import Chosen, Serving, choose
from flexo.policies.tiresias import Tiresias


@dataclass(frozen=True, slots=True)
class ElasticTiresias(Tiresias):
    """Tiresias with the rules R1 and R2 of Amoeba, section 6.2, merged into one decision.

    R1: jobs outside queue 0 shrink if more than `pending_limit` jobs would wait while all others run with the
    p workers that their users asked for. Each then runs with floor(p/2) workers, but at least its minimum
    (floor(1/2) is none). R2: if no job waits and GPUs are idle, the job with the largest gain
    (t(p+1)-t(p))/t(p) gets one worker more, again and again. t(p) is the job's throughput with p workers, and
    p its present number. All workers that one job gets by R2 together have to pay while the GPUs are likely
    to stay (section 3.2).
    """

    name: ClassVar[str] = "elastic-tiresias"

    pending_limit: int = 0
    """N of R1, which the paper does not print. 0: R1 acts as soon as any job waits."""
    stay_s: float = math.inf
    """Seconds that workers given by R2 are likely to stay. Infinite: not known."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Serve the queues, unless all jobs run at their largest size: then there is nothing to decide."""
        if all(job.shares and job.allocated >= job.workers.max for job in jobs.training):
            return Targets()
        return Tiresias.targets(self, jobs, placement)

    def choose(self, jobs: Jobs, placement: Placement, order: Sequence[TrainingJob]) -> Chosen:
        """Choose who runs: shrink jobs if too many would wait (R1), or use idle GPUs (R2)."""
        chosen = choose(placement, order, requested)
        if len(chosen.waiting) > self.pending_limit:
            chosen = choose(placement, order, lambda job: self._halved(job, jobs.at))
        if not chosen.waiting:
            _UsingIdleGpus(placement.nodes, chosen, self.stay_s).use()
        return chosen

    def _halved(self, job: TrainingJob, at: float) -> int:
        """The workers of a job under R1."""
        asked = requested(job)
        if self.queue_of(job, at) == 0:
            return asked
        return job.workers.clamp(max(asked // 2, fewest_workers(job)))


class _UsingIdleGpus:
    """Rule R2: gives idle GPUs to jobs. Of equal gains, the job submitted first wins, even over running jobs:
    so targets come to rest."""

    def __init__(self, nodes: Sequence[Node], chosen: Chosen, stay_s: float) -> None:
        self._nodes = nodes
        self._budget = chosen.budget
        self._growing = [_Growing(serving, serving.workers) for serving in chosen.servings]
        self._stay_s = stay_s

    def use(self) -> None:
        """Give workers to the jobs for which they pay. Workers that do not pay are taken back, and others may
        have them."""
        while True:
            self._give()
            paying = [each for each in self._growing if self._pays(each.serving)]
            if len(paying) == len(self._growing):
                return
            for each in self._growing:
                if not self._pays(each.serving):
                    self._budget.shrink(each.serving, max(each.before, each.serving.job.allocated))
            self._growing = paying

    def _give(self) -> None:
        gains = [
            (-gain, each.serving.job.key.job_id, each.serving)
            for each in self._growing
            if (gain := self._gain(each.serving)) > 0
        ]
        heapify(gains)
        while gains:
            _, job_id, serving = gains[0]
            gain = self._gain(serving) if self._budget.grow(serving) else 0.0
            if gain > 0:
                heapreplace(gains, (-gain, job_id, serving))
            else:
                heappop(gains)

    def _gain(self, serving: Serving) -> float:
        """The relative gain in throughput by one more worker; 0 if the job may not have more."""
        job, workers = serving.job, serving.workers
        if workers >= job.workers.max:
            return 0.0
        now, more = self._rate(job, workers), self._rate(job, workers + 1)
        return (more - now) / now if now > 0 else 0.0

    def _pays(self, serving: Serving) -> bool:
        """Whether the new size pays, compared with the present one. A starting job pays for its start
        anyhow."""
        job = serving.job
        if self._stay_s == math.inf or not job.shares or serving.workers <= job.allocated:
            return True
        now, grown = self._rate(job, job.allocated), self._rate(job, serving.workers)
        return pays(now, grown, self._stay_s, job.change_cost_s)

    def _rate(self, job: TrainingJob, workers: int) -> float:
        if job.speed is None:  # then nodes do not matter, and counting them takes as long as there are nodes
            return float(workers)
        return rate(job, workers, fewest_nodes(job, workers, self._nodes))


@dataclass(frozen=True, slots=True)
class _Growing:
    """A job to which R2 may give more workers."""

    serving: Serving
    before: int
    """Workers that the job has without R2."""
