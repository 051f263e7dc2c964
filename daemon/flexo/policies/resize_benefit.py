"""The benefit of a resize: whether it pays, how long GPUs stay, and how long faster ones take to come.

Wu et al., "Elastic deep learning in multi-tenant GPU cluster" (Amoeba), section 3.2. Example: a job on 4 GPUs
gets 2 more for 120 s, and stands still for 30 s each way. It does 6 * 60 = 360 GPU s of work instead of 480.
The change pays from 180 s on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from flexo.model.elastic import ElasticJob
from flexo.model.plans import Snapshot
from flexo.model.queue import QueuedJob
from flexo.policies.pending import waiting_jobs
from flexo_protos.resources import Amount

PAUSE_S: Final = 0.09
"""Seconds that a job stands still at a resize, as `make bench-runtime` measured with 11.8 million parameters
(docs/evidence/resize-cost.md). The pause grows with the model."""
START_S: Final = 6.3
"""Seconds until new workers can train, by the same measurement."""


def work_if_grown(grown: float, stay_s: float, change_s: float) -> float:
    """Work done in `stay_s` at rate `grown`, if growing and shrinking back each stop it for `change_s`."""
    return grown * max(0.0, stay_s - 2 * change_s)


def pays(now: float, grown: float, stay_s: float, change_s: float) -> bool:
    """Whether a job does more in `stay_s` by growing from rate `now` to `grown`, and back, than by staying as
    it is.

    GPUs that stay for ever (infinite) pay for every job that they make faster.
    """
    if stay_s == math.inf:
        return grown > now
    return work_if_grown(grown, stay_s, change_s) > now * stay_s


def idle_for(snapshot: Snapshot, nodes: Iterable[str]) -> Mapping[str, float]:
    """Per node: seconds that idle GPUs are likely to stay with the job that gets them beyond its base.

    Infinite: nothing is known. Nodes that the cluster has planned for a pending job are not idle, and
    resources on which a pending job could start are kept for it. Two facts remain: how long satellites lately
    stayed, and the planned start of a job that has no choice of nodes.
    """
    wanted_at: dict[str, float] = {}
    for job in waiting_jobs(snapshot):
        if job.started_at is not None and job.started_at > snapshot.at:
            for name in _needed(job, snapshot):
                wanted_at[name] = min(job.started_at, wanted_at.get(name, job.started_at))
    return {
        name: min(snapshot.stay_s, wanted_at[name] - snapshot.at) if name in wanted_at else snapshot.stay_s
        for name in nodes
    }


def _needed(job: QueuedJob, snapshot: Snapshot) -> frozenset[str]:
    """Nodes that the job requires, by name or because it has no others to choose from; none if it has a
    choice."""
    if job.required_nodes:
        return job.required_nodes
    allowed = frozenset[str]().union(
        *(partition.nodes for partition in snapshot.partitions if partition.name in job.partitions)
    )
    allowed -= job.excluded_nodes
    return allowed if len(allowed) <= job.num_nodes else frozenset()


class WaitModel:
    """Estimates how long a base would wait for GPUs of some types that are all equally good for it: faster
    ones (Lyra).

    A run keeps its GPUs to its end, so that on slower ones it loses time for as long as it runs. Lyra's
    slides do not say when that is worth it. Here it is worth it if the wait for faster GPUs would take at
    least as long. The wait is calculated as if all pending jobs started in order, each as soon as it fits,
    and no other job came. Mutable: belongs to one plan in the making.
    """

    def __init__(self, now: float, room: Amount, ends: Iterable[tuple[float, Amount]]) -> None:
        """`room`: GPUs that are free; `ends`: the ends of runs, and the GPUs that they give back."""
        self._now = self._at = now
        self._room = room
        self._ends = list(ends)
        heapify(self._ends)

    def starts(self, gpus: Amount, ends_at: float) -> None:
        """Record that a base starts now on `gpus` of these GPUs and ends at `ends_at`."""
        self._room -= gpus
        heappush(self._ends, (ends_at, gpus))

    def waits(self, gpus: Amount, seconds: float) -> None:
        """Record that a base waits for `gpus` and then runs for `seconds`. All later questions come after
        it."""
        self._at, self._room = _until(gpus, self._at, self._room, self._ends)
        if self._at < math.inf:
            self._room -= gpus
            heappush(self._ends, (self._at + seconds, gpus))

    def for_s(self, gpus: Amount) -> float:
        """Seconds that a base that needs `gpus` would wait after the recorded ones; infinite: there are never
        enough."""
        return _until(gpus, self._at, self._room, self._ends.copy())[0] - self._now


def _until(gpus: Amount, at: float, room: Amount, ends: list[tuple[float, Amount]]) -> tuple[float, Amount]:
    """The first instant from `at` on when `gpus` are free, and how many are free then. Removes the `ends`
    until then."""
    while room < gpus:
        if not ends:
            return math.inf, room
        ends_at, given = heappop(ends)
        at, room = max(at, ends_at), room + given
    return at, room


def batch_of(job: ElasticJob, workers: int) -> int | None:
    """Samples of all `workers` in a step; None: the job accepts no other batch than its script's.

    The batch per worker stays what it is at the job's minimum: the smallest batch on the fewest workers, and
    in proportion up to the largest batch. So a step takes about as long at any size, while more samples pay
    for its communication. (IBM, section III, reads `b` in the same way: the batch of the whole job, within
    [min, max].)
    """
    if job.batch is None:
        return None
    return job.batch.clamp(job.batch.min * workers // job.workers.min)
