"""An elastic job's base and flexible demand, and how long it would run with more or less (Lyra, slides).

"Job = base (min.) demand + flexible (max. - min.) demand."
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo.model.queue import JobKey
from flexo.model.training import Share, TrainingJob
from flexo.policies.demand import least, rate, seconds_left
from flexo.policies.gpu_speeds import Paces
from flexo_protos.resources import Amount

_LONGEST_S = 10 * 365 * 86_400.0
"""No running time is taken to be longer, so that savings are finite."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Demand:
    """One elastic job while a plan is being made. The plan changes `flexible`."""

    job: TrainingJob
    base: tuple[Share, ...]
    """What it keeps."""
    flexible: list[Share]
    """May be taken, the last first."""
    starts: bool = False
    """With this plan."""
    gave_to: JobKey | None = None
    """Whose base took some of its flexible workers."""

    @property
    def changes_anyhow(self) -> bool:
        """Whether the cost of a change has to be paid already."""
        return self.starts or self.gave_to is not None

    @property
    def changes(self) -> bool:
        """Whether it has something else now than before."""
        before = {share.node: share.workers for share in self.job.shares}
        return before != {share.node: share.workers for share in self.shares()}

    def shares(self) -> tuple[Share, ...]:
        """All that it has at this point of the plan, base first, each node once."""
        merged: dict[str, int] = {}
        for share in (*self.base, *self.flexible):
            merged[share.node] = merged.get(share.node, 0) + share.workers
        return tuple(Share(node, workers) for node, workers in merged.items())


def demand_of(job: TrainingJob, usable: Container[str]) -> Demand:
    """A running job, split. What it has on a node that is not `usable` stays: taking it would help nobody.

    Where the cluster does not say which workers are the base, they are those on the first of its shares: the
    order in which `Demand.shares` writes them.
    """
    pinned = {share.node: share.workers for share in job.base}
    missing = least(job) - count(job.base)
    base: list[Share] = list(job.base)
    flexible: list[Share] = []
    for share in job.shares:
        loose = share.workers - pinned.get(share.node, 0)
        kept = min(missing, loose) if share.node in usable else loose
        missing = max(0, missing - kept)
        if kept:
            base.append(Share(share.node, kept))
        if loose > kept:
            flexible.append(Share(share.node, loose - kept))
    return Demand(job, tuple(base), flexible)


def count(shares: Sequence[Share]) -> int:
    """Workers in all."""
    return sum(share.workers for share in shares)


def cut(shares: list[Share], workers: int, where: Callable[[Share], bool]) -> list[Share]:
    """Remove up to `workers` from `shares`, the last first, only `where` that is wanted; what was removed."""
    removed: list[Share] = []
    for index in reversed(range(len(shares))):
        share = shares[index]
        if workers <= 0:
            break
        if not where(share):
            continue
        part = min(workers, share.workers)
        workers -= part
        removed.append(Share(share.node, part))
        if part == share.workers:
            del shares[index]
        else:
            shares[index] = Share(share.node, share.workers - part)
    return removed


@dataclass(frozen=True, slots=True)
class RunningTimes:
    """How long jobs would still run: Lyra's estimates."""

    now: float
    node_gpus: Amount
    """Of the largest node: a job is taken to lie on as few nodes as it can."""
    unknown_s: float
    """Taken for the running time on the base alone where nothing is known."""
    gpus: Paces
    """What GPUs do by their type."""

    def paces(self, job: TrainingJob, gpu_type: str, most: int, others: Mapping[str, int]) -> Floats:
        """With 0, ..., `most` workers on one type beside `others` by type, how fast each worker is.

        In workers on the type that the job asks for.
        """
        asked, mixes = job.shape.gpu_type, job.heterogeneous
        if all(each == gpu_type for each in others):
            return np.full(most + 1, self.gpus.of_one(asked, gpu_type))
        there = others.get(gpu_type, 0)
        each = [self.gpus.of(asked, {**others, gpu_type: there + here}, mixes) for here in range(1, most + 1)]
        return np.array([self.gpus.of(asked, others, mixes), *each])

    def on_base(self, job: TrainingJob) -> float:
        """On its base alone; infinite where nothing is known."""
        workers = job.workers.min
        if job.speed is None and not job.shares:
            return math.inf if job.remaining_work is None else job.remaining_work / workers
        return seconds_left(job, workers, self._nodes(job, workers), self.now)

    def as_it_runs(self, job: TrainingJob) -> float:
        """With what it has; infinite where nothing is known."""
        return seconds_left(job, job.allocated, len(job.shares), self.now) / job.pace

    def rates(self, job: TrainingJob, fewest: int, most: int) -> Floats:
        """Work a second with `fewest`, ..., `most` workers on the type that it asks for."""
        if job.speed is None:
            return np.arange(fewest, most + 1, dtype=np.float64)
        return np.array([self._rate(job, workers) for workers in range(fewest, most + 1)])

    def seconds(self, job: TrainingJob, rates: Floats) -> Floats:
        """How long it would go on at these rates."""
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.where(rates > 0, self._work(job) / rates, _LONGEST_S)
        return np.minimum(seconds, _LONGEST_S)

    def last_saves_s(self, demand: Demand) -> float:
        """What the last flexible worker saves, for each of its GPUs, if on the type that it asks for."""
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
        return self.unknown_s * self._rate(job, least(job)) if left is None else max(0.0, left)
