"""The base and flexible demand of elastic jobs, and their running times with more or fewer workers (Lyra,
slides).

"Job = base (min.) demand + flexible (max. - min.) demand."
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.demand import fewest_workers, rate, seconds_left
from flexo.policies.gpu_speeds import Paces
from flexo_protos.resources import Amount

_LONGEST_S = 10 * 365 * 86_400.0
"""The longest running time that is assumed, so that savings are finite."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Demand:
    """One elastic job while a plan is being made. The plan changes `flexible`."""

    job: TrainingJob
    base: tuple[NodeShare, ...]
    """The workers that the job keeps."""
    flexible: list[NodeShare]
    """Workers that may be taken, the last first."""
    starts: bool = False
    """Whether the job starts with this plan."""
    gave_to: JobKey | None = None
    """The job whose base took some of its flexible workers."""

    @property
    def changes_anyhow(self) -> bool:
        """Whether the job has to pay the cost of a change already."""
        return self.starts or self.gave_to is not None

    @property
    def changes(self) -> bool:
        """Whether the job has other shares now than before the plan."""
        before = {share.node: share.workers for share in self.job.shares}
        return before != self._by_node()

    def shares(self) -> tuple[NodeShare, ...]:
        """All workers of the job at this point of the plan, base first, each node once."""
        return tuple(NodeShare(node, workers) for node, workers in self._by_node().items())

    def _by_node(self) -> dict[str, int]:
        merged: dict[str, int] = {}
        for share in (*self.base, *self.flexible):
            merged[share.node] = merged.get(share.node, 0) + share.workers
        return merged


def demand_of(job: TrainingJob, usable: Container[str]) -> Demand:
    """Split a running job into base and flexible workers. Workers on a node that is not `usable` stay in the
    base: taking them would help no job.

    If the cluster does not say which workers are the base, it is the workers on the first shares.
    `Demand.shares` writes shares in this order.
    """
    pinned = {share.node: share.workers for share in job.base}
    missing = fewest_workers(job) - count(job.base)
    base: list[NodeShare] = list(job.base)
    flexible: list[NodeShare] = []
    for share in job.shares:
        loose = share.workers - pinned.get(share.node, 0)
        kept = min(missing, loose) if share.node in usable else loose
        missing = max(0, missing - kept)
        if kept:
            base.append(NodeShare(share.node, kept))
        if loose > kept:
            flexible.append(NodeShare(share.node, loose - kept))
    return Demand(job, tuple(base), flexible)


def count(shares: Sequence[NodeShare]) -> int:
    """Number of workers in `shares`."""
    workers = 0
    for share in shares:  # as `TrainingJob.allocated`: asked often, and half as long as sum()
        workers += share.workers
    return workers


def cut(shares: list[NodeShare], workers: int, where: Callable[[NodeShare], bool]) -> list[NodeShare]:
    """Remove up to `workers` from `shares`, the last first, only from shares for which `where` is true.

    Returns the removed shares.
    """
    removed: list[NodeShare] = []
    for index in reversed(range(len(shares))):
        share = shares[index]
        if workers <= 0:
            break
        if not where(share):
            continue
        part = min(workers, share.workers)
        workers -= part
        removed.append(NodeShare(share.node, part))
        if part == share.workers:
            del shares[index]
        else:
            shares[index] = NodeShare(share.node, share.workers - part)
    return removed


@dataclass(frozen=True, slots=True)
class RunningTimes:
    """Lyra's estimates: how long jobs would still run."""

    now: float
    node_gpus: Amount
    """GPUs of the largest node: a job is assumed to be on as few nodes as it can."""
    unknown_s: float
    """The running time on the base alone that is assumed where nothing is known."""
    gpus: Paces
    """The speeds of GPUs, by type."""

    def paces(self, job: TrainingJob, gpu_type: str, most: int, others: Mapping[str, int]) -> Floats:
        """The pace of each worker, with 0, ..., `most` workers on one type beside `others` (workers by type).

        A pace is relative to a worker on the type that the job asks for.
        """
        if all(each == gpu_type for each in others):
            return np.full(most + 1, self.gpus.of_one(job.shape.gpu_type, gpu_type))
        return self.paces_beside(job, gpu_type, [others] * (most + 1))

    def paces_beside(self, job: TrainingJob, gpu_type: str, beside: Sequence[Mapping[str, int]]) -> Floats:
        """The same, where the workers beside 0, 1, ... workers on the type differ."""
        asked, mixes = job.shape.gpu_type, job.heterogeneous
        there = (
            {**others, gpu_type: others.get(gpu_type, 0) + here} if here else others
            for here, others in enumerate(beside)
        )
        return np.array([self.gpus.of(asked, types, mixes) for types in there])

    def on_base(self, job: TrainingJob) -> float:
        """Seconds that the job would run on its base alone; infinite where nothing is known."""
        workers = job.workers.min
        if job.speed is None and not job.shares:
            return math.inf if job.remaining_work is None else job.remaining_work / workers
        return seconds_left(job, workers, self._nodes(job, workers), self.now)

    def as_it_runs(self, job: TrainingJob) -> float:
        """Seconds that the job would still run with its present workers; infinite where nothing is known."""
        return seconds_left(job, job.allocated, len(job.shares), self.now) / job.pace

    def rates(self, job: TrainingJob, fewest: int, most: int) -> Floats:
        """Work per second with `fewest`, ..., `most` workers on the type that the job asks for."""
        if job.speed is None:
            return np.arange(fewest, most + 1, dtype=np.float64)
        return np.array([self._rate(job, workers) for workers in range(fewest, most + 1)])

    def seconds(self, job: TrainingJob, rates: Floats) -> Floats:
        """Seconds that the job would still run at these rates."""
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.where(rates > 0, self._work(job) / rates, _LONGEST_S)
        return np.minimum(seconds, _LONGEST_S)

    def last_saves_s(self, demand: Demand) -> float:
        """Weighted seconds that the last flexible worker saves, per GPU, as if it were on the type that the
        job asks for."""
        job = demand.job
        workers = count(demand.base) + count(demand.flexible)
        saved = self._seconds(job, workers - 1) - self._seconds(job, workers)
        return saved * job.weight / max(1, job.shape.gpus)

    def _seconds(self, job: TrainingJob, workers: int) -> float:
        speed = self._rate(job, workers)
        return min(_LONGEST_S, self._work(job) / speed) if speed > 0 else _LONGEST_S

    def _rate(self, job: TrainingJob, workers: int) -> float:
        return rate(job, workers, self._nodes(job, workers))

    def _nodes(self, job: TrainingJob, workers: int) -> int:
        return max(1, -(-workers * job.shape.gpus // max(1, self.node_gpus)))

    def _work(self, job: TrainingJob) -> float:
        left = job.remaining_at(self.now)
        return self.unknown_s * self._rate(job, fewest_workers(job)) if left is None else max(0.0, left)
