"""Elastic-Tiresias: Tiresias' queues, and two rules that resize jobs with the load of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar

from flexo.model import Snapshot, TrainingJob
from flexo.policies.demand import fewest_nodes, least, rate, requested
from flexo.policies.serving import Chosen, Serving, choose
from flexo.policies.tiresias import Tiresias


@dataclass(frozen=True, slots=True)
class ElasticTiresias(Tiresias):
    """Amoeba, section 6.2: Tiresias with the rules R1 and R2, merged into one plan.

    R1: if more than `pending_limit` jobs would wait while all run with the p workers that their users asked
    for, every job outside queue 0 runs with floor(p/2), but at least one (floor(1/2) is none).
    R2: if none waits and GPUs are idle, the job with the largest gain (t(p+1)-t(p))/t(p) gets one worker
    more, again and again; t(p) is its throughput with p workers, and p what it has by then.
    """

    name: ClassVar[str] = "elastic-tiresias"

    pending_limit: int = 0
    """N of R1. The paper does not print it: 0 lets R1 act as soon as anybody waits."""

    def choose(self, snapshot: Snapshot, order: Sequence[TrainingJob]) -> Chosen:
        """Make room if too many wait, or use what is idle."""
        chosen = choose(snapshot, order, requested)
        if len(chosen.waiting) > self.pending_limit:
            chosen = choose(snapshot, order, lambda job: self._halved(job, snapshot.at))
        if not chosen.waiting:
            _use_idle_gpus(snapshot, chosen)
        return chosen

    def _halved(self, job: TrainingJob, at: float) -> int:
        """R1."""
        asked = requested(job)
        if self.queue_of(job, at) == 0:
            return asked
        return job.workers.clamp(max(asked // 2, least(job)))


def _use_idle_gpus(snapshot: Snapshot, chosen: Chosen) -> None:
    """R2. Of equal gains the first submitted has its turn, whoever runs already: so plans come to rest."""
    gains = [
        (-gain, serving.job.key.job_id, serving)
        for serving in chosen.servings
        if (gain := _gain(snapshot, serving)) > 0
    ]
    heapify(gains)
    while gains:
        _, job_id, serving = gains[0]
        gain = _gain(snapshot, serving) if chosen.budget.grow(serving) else 0.0
        if gain > 0:
            heapreplace(gains, (-gain, job_id, serving))
        else:
            heappop(gains)


def _gain(snapshot: Snapshot, serving: Serving) -> float:
    """Throughput with one worker more, to what it is; 0 where it may not have more."""
    job, workers = serving.job, serving.workers
    if workers >= job.workers.max:
        return 0.0
    now = rate(job, workers, fewest_nodes(job, workers, snapshot.nodes))
    more = rate(job, workers + 1, fewest_nodes(job, workers + 1, snapshot.nodes))
    return (more - now) / now if now > 0 else 0.0
