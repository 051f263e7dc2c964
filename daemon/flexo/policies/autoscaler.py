"""IBM's autoscaler (Saxena et al., section III-D): who trains, when that is decided anew, and who is refused.

Figure 4, with its slips mended: after an arrived job has been taken in, the next one is at the same position
of the list; the position advances only past a job that does not fit; and what is sent to the platform is the
last *feasible* allocation. A set of jobs is feasible exactly if the smallest choices of all fit together, so
the optimizer need not be asked for each arrived job: it is asked once, for all that were taken in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flexo.model.plans import Drop, Note
from flexo.model.training import Share, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import least
from flexo.policies.gpu_optimizer import Choices, optimize
from flexo.policies.placement import FreeGpus, Placement, dearest_first
from flexo.policies.scaling_factors import Cluster, choices
from flexo_protos.resources import Amount


@dataclass(frozen=True, slots=True)
class Autoscaler(Policy):
    """The settings, and the figure. What differs between policies is the batch that a job trains with.

    It never preempts: a job that has begun keeps its smallest choice at least. Every GPU type is a cluster
    of its own (section II-D); a job that names none belongs to the type of which there are most GPUs. Jobs
    without GPUs are left alone, and those with workers on unusable nodes.
    """

    uses_running_times: ClassVar[bool] = False

    delta_s: float = 600.0
    """Delta: at least so long from one change to the next, unless nothing runs. 10 to 15 minutes are advised
    (section V-B); 0: whenever something happens."""
    ended_share: float = 0.05
    """The hybrid strategy (section V-B): Delta is not waited for once this part of the jobs has ended since
    the last change. 0: the plain strategy."""
    drops: bool = False
    """Whether a job that cannot be taken in at once is refused for good (after line 23) and does not wait."""
    overtaking: bool = True
    """Whether a job may start before one that was submitted earlier and does not fit (figure 4). If not, only
    the head of the queue is tried, as in their simulator (section III-E)."""

    @abstractmethod
    def batch_of(self, job: TrainingJob) -> int:
        """The aggregate batch that `job` is to have; 0: the best that it accepts, whatever its size."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """MAKESCALINGDECISIONS of figure 4, if it is time."""
        if not self._is_due(jobs):
            return Targets(again_at=jobs.decided_at + self.delta_s)
        return _Decision(self, jobs, placement).targets()

    def _is_due(self, jobs: Jobs) -> bool:
        running = sum(1 for job in jobs.training if job.shares)
        if not running or jobs.at >= jobs.decided_at + self.delta_s:
            return True
        ended = jobs.ended_since
        return self.ended_share > 0 and 0 < ended >= self.ended_share * (running + ended)


@dataclass(slots=True)
class _Pool:
    """The GPUs of one type, and the jobs on them."""

    gpu_type: str
    gpus: Amount = 0
    """Idle, or held by `taken`."""
    fewest: Amount = 0
    """What the smallest choices of `taken` take."""
    taken: list[tuple[TrainingJob, Choices]] = field(default_factory=list)

    def take(self, job: TrainingJob, found: Choices) -> None:
        """EXECUTING has one more, with these choices."""
        self.taken.append((job, found))
        self.fewest += found.fewest or 0


class _Decision:
    """One decision in the making."""

    def __init__(self, settings: Autoscaler, jobs: Jobs, placement: Placement) -> None:
        self._settings = settings
        self._jobs = jobs
        self._placement = placement
        usable = [node for node in placement.nodes if not node.unusable]
        self._usable = {node.name for node in usable}
        self._type_of = {node.name: node.gpu_type for node in placement.nodes}
        self._cluster_of = {
            gpu_type: Cluster.of([node for node in usable if node.gpu_type == gpu_type])
            for gpu_type in sorted({node.gpu_type for node in placement.nodes})
        }
        self._pools = {gpu_type: _Pool(gpu_type) for gpu_type in self._cluster_of}
        self._commonest = max(
            self._cluster_of, key=lambda gpu_type: self._cluster_of[gpu_type].gpus, default=""
        )
        for node in usable:
            self._pools[node.gpu_type].gpus += node.gpus_idle
        self._targets: list[Target] = []
        self._notes: list[Note] = []
        self._drops: list[Drop] = []

    def targets(self) -> Targets:
        jobs = [job for job in self._jobs.training if job.shape.gpus]
        for job in jobs:
            if job.shares:
                self._keep(job)
        self._take_in(job for job in jobs if not job.shares)
        free = self._placement.free()
        for pool in self._pools.values():
            self._send(pool, free)
        return Targets(tuple(self._targets), notes=tuple(self._notes), drops=tuple(self._drops))

    def _pool_of(self, job: TrainingJob) -> _Pool | None:
        """None: there is no GPU of its type."""
        if job.shares:
            return self._pools.get(self._type_of.get(job.shares[0].node, self._commonest))
        return self._pools.get(job.shape.gpu_type or self._commonest)

    def _choices(self, job: TrainingJob, pool: _Pool) -> Choices:
        return choices(job, self._cluster_of[pool.gpu_type], self._settings.batch_of(job))

    def _keep(self, job: TrainingJob) -> None:
        pool = self._pool_of(job)
        if pool is None:
            return
        pool.gpus += job.gpus
        if any(share.node not in self._usable for share in job.shares):
            pool.take(job, Choices((job.gpus,), (1.0,)))  # nobody else could have what it gave up
        else:
            pool.take(job, self._choices(job, pool))

    def _take_in(self, waiting: Iterable[TrainingJob]) -> None:
        """Lines 15 to 22."""
        blocked = False
        for job in waiting:
            pool = self._pool_of(job)
            why = "an earlier job does not fit yet" if blocked else self._try(job, pool)
            if not why:
                continue
            if self._settings.drops:
                self._drops.append(Drop(job.key, why))
            else:
                self._notes.append(Note(job.key, f"waits: {why}"))
                blocked = blocked or (not self._settings.overtaking and self._could_ever_run(job, pool))

    def _try(self, job: TrainingJob, pool: _Pool | None) -> str:
        """Take it in, or say why not."""
        if pool is None:
            return "there is no GPU of its type"
        spare = pool.gpus - pool.fewest
        if least(job) * job.shape.gpus > spare:
            needed = least(job) * job.shape.gpus  # looking up its speed would not change the answer
        else:
            found = self._choices(job, pool)
            if found.fewest is None:
                return "no size of it can train, as far as its speed is known"
            if found.fewest <= spare:
                pool.take(job, found)
                return ""
            needed = found.fewest
        return f"it needs {needed} GPUs; of {pool.gpus}, jobs can spare {spare}"

    def _could_ever_run(self, job: TrainingJob, pool: _Pool | None) -> bool:
        if pool is None:
            return False
        fewest = self._choices(job, pool).fewest
        return fewest is not None and fewest <= self._cluster_of[pool.gpu_type].gpus

    def _send(self, pool: _Pool, free: FreeGpus) -> None:
        """SENDTODLPLATFORM: first those that shrink, then the largest, which need whole nodes most."""
        sizes = optimize([found for _, found in pool.taken], pool.gpus)
        assert sizes is not None, "only what fits is taken in"
        changed = [
            (job, found, gpus)
            for (job, found), gpus in zip(pool.taken, sizes, strict=True)
            if gpus != job.gpus
        ]
        changed.sort(key=lambda change: (change[2] >= change[0].gpus, -change[2], change[0].key))
        for job, found, gpus in changed:
            shares = _place(job, pool.gpu_type, [size for size in found.gpus if size <= gpus], free)
            if shares:
                self._targets.append(self._target(job, found, shares))

    def _target(self, job: TrainingJob, found: Choices, shares: tuple[Share, ...]) -> Target:
        workers = self._placement.put(job.key, shares)
        samples = self._settings.batch_of(job)
        if not samples and job.batch is not None and job.speed is not None:
            samples = job.speed.best_batch(workers, len(shares))
        factor = found.worth_of(workers * job.shape.gpus)
        change = f"goes from {job.allocated} to {workers}" if job.shares else f"starts with {workers}"
        batch = f" and batch {samples}" if samples else ""
        why = (
            f"{change} of {job.workers} workers{batch}: so it is {factor:.2f} times as fast as on one GPU,"
            " and the sum over all jobs is largest"
        )
        return Target(job.key, workers, why, samples)


def _place(
    job: TrainingJob, gpu_type: str, sizes: Sequence[Amount], free: FreeGpus
) -> tuple[Share, ...] | None:
    """Where it goes with the largest of `sizes` (GPUs, ascending) that has a place; taken there.

    None where it stays as it is: GPUs are enough, but may lie apart where a worker has several of them.
    """
    shape = job.shape if job.shape.gpu_type == gpu_type else replace(job.shape, gpu_type=gpu_type)
    keep = dearest_first(job)
    shares: tuple[Share, ...] | None = None
    free.give(job.shape, job.shares)
    for gpus in reversed(sizes):
        if gpus == job.gpus:
            break
        shares = free.place(shape, gpus // shape.gpus, keep)
        if shares is not None:
            break
    free.take(job.shape, job.shares if shares is None else shares)
    return shares
