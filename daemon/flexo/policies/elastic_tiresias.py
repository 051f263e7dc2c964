"""Elastic-Tiresias: Tiresias' queues, and two rules that resize jobs with the load of the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar

from flexo.model.nodes import Node
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs
from flexo.policies.demand import fewest_nodes, least, rate, requested
from flexo.policies.payoff import pays
from flexo.policies.placement import Placement
from flexo.policies.serving import Chosen, Serving, choose
from flexo.policies.tiresias import Tiresias


@dataclass(frozen=True, slots=True)
class ElasticTiresias(Tiresias):
    """Amoeba, section 6.2: Tiresias with the rules R1 and R2, merged into one decision.

    R1: if more than `pending_limit` jobs would wait while all run with the p workers that their users asked
    for, every job outside queue 0 runs with floor(p/2), but at least one (floor(1/2) is none).
    R2: if none waits and GPUs are idle, the job with the largest gain (t(p+1)-t(p))/t(p) gets one worker
    more, again and again; t(p) is its throughput with p workers, and p what it has by then. What all that
    comes to for one job has to pay while the GPUs are likely to stay (section 3.2).
    """

    name: ClassVar[str] = "elastic-tiresias"

    pending_limit: int = 0
    """N of R1. The paper does not print it: 0 lets R1 act as soon as anybody waits."""
    stay_s: float = math.inf
    """How long what R2 gives is likely to stay. Infinite: not known."""

    def choose(self, jobs: Jobs, placement: Placement, order: Sequence[TrainingJob]) -> Chosen:
        """Make room if too many wait, or use what is idle."""
        chosen = choose(placement, order, requested)
        if len(chosen.waiting) > self.pending_limit:
            chosen = choose(placement, order, lambda job: self._halved(job, jobs.at))
        if not chosen.waiting:
            _UsingIdleGpus(placement.nodes, chosen, self.stay_s).use()
        return chosen

    def _halved(self, job: TrainingJob, at: float) -> int:
        """R1."""
        asked = requested(job)
        if self.queue_of(job, at) == 0:
            return asked
        return job.workers.clamp(max(asked // 2, least(job)))


class _UsingIdleGpus:
    """R2. Of equal gains the first submitted has its turn, whoever runs already: so targets come to rest."""

    def __init__(self, nodes: Sequence[Node], chosen: Chosen, stay_s: float) -> None:
        self._nodes = nodes
        self._budget = chosen.budget
        self._growing = [_Growing(serving, serving.workers) for serving in chosen.servings]
        self._stay_s = stay_s

    def use(self) -> None:
        """Give all that pays; what a job gives back because it does not, others may have."""
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
        """Throughput with one worker more, to what it is; 0 where it may not have more."""
        job, workers = serving.job, serving.workers
        if workers >= job.workers.max:
            return 0.0
        now, more = self._rate(job, workers), self._rate(job, workers + 1)
        return (more - now) / now if now > 0 else 0.0

    def _pays(self, serving: Serving) -> bool:
        """What it is to have, against what it has; a job that starts pays for its start anyhow."""
        job = serving.job
        if self._stay_s == math.inf or not job.shares or serving.workers <= job.allocated:
            return True
        now, grown = self._rate(job, job.allocated), self._rate(job, serving.workers)
        return pays(now, grown, self._stay_s, job.change_cost_s)

    def _rate(self, job: TrainingJob, workers: int) -> float:
        return rate(job, workers, fewest_nodes(job, workers, self._nodes))


@dataclass(frozen=True, slots=True)
class _Growing:
    """A job that R2 may give more."""

    serving: Serving
    before: int
    """Workers that it has without R2."""
