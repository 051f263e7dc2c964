"""IBM's autoscaler: every Delta seconds, it admits waiting jobs and shares the GPUs among all jobs anew.

First it admits the waiting jobs that fit: a job fits if its smallest size has room beside the smallest sizes
of the running and the admitted jobs. Then it shares the remaining GPUs so that the sum of all speed-ups is
largest. A job's speed-up is how many times faster it trains than on one GPU (`scaling_factors`).

The algorithm is figure 4 of Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads" (section
III-D). docs/evidence/papers-ibm.md compares results. Differences from the figure (1 and 2 correct errors of
the paper):

1. After a job has been admitted, the next waiting job is at the same position of the list. The position
   advances only past a job that does not fit.
2. The last *feasible* allocation is carried out. The figure carries out the last one that was tried.
3. The optimizer runs once, for all admitted jobs, and not for each waiting job. A set of jobs is feasible
   exactly if the smallest sizes of all fit together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flexo.model.plans import Drop, Note
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import fewest_workers
from flexo.policies.gpu_optimizer import Choices, optimize
from flexo.policies.placement import FreeGpus, Placement, shares_to_keep
from flexo.policies.scaling_factors import GpuTypeSize, choices
from flexo_protos.resources import Amount


@dataclass(frozen=True, slots=True)
class Autoscaler(Policy):
    """Decides at most every `delta_s` seconds which jobs run, and with how many GPUs each.

    The policies that extend this class differ in the batch that a job trains with (`batch_of`). The
    autoscaler never preempts: a running job keeps at least its smallest size. The GPUs of each type are
    shared for themselves (section II-D). A job that names no type belongs to the type with the most GPUs. The
    autoscaler leaves alone jobs without GPUs, and jobs with workers on unusable nodes.
    """

    uses_running_times: ClassVar[bool] = False
    tries_batches: ClassVar[bool] = True

    delta_s: float = 600.0
    """Delta: the least time from one change to the next, unless nothing runs. The paper advises 10 to 15
    minutes (section V-B). 0: decide at every event."""
    ended_share: float = 0.05
    """The hybrid strategy (section V-B): a decision does not wait for Delta once this part of all jobs that
    ran has ended since the last change. 0: the plain strategy, which always waits for Delta."""
    drops: bool = False
    """Whether a waiting job that cannot be admitted is dropped: refused for good (after line 23 of figure 4).
    Otherwise it keeps waiting."""
    overtaking: bool = True
    """Whether a job may start before an earlier one that does not fit (figure 4). If not, only the head of
    the queue is tried, as in the paper's simulator (section III-E)."""

    @abstractmethod
    def batch_of(self, job: TrainingJob) -> int:
        """The aggregate batch with which `job` is to train; 0: the best that it accepts, at whatever size."""

    def samples_of(self, job: TrainingJob, workers: int, nodes: int) -> int:
        """The fixed batch, else the best one for this size as far as the job's speed is known."""
        samples = self.batch_of(job)
        if samples or job.batch is None or job.speed is None:
            return samples
        return job.speed.best_batch(workers, nodes)

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Make a decision if it is time, else say when to ask again (MAKESCALINGDECISIONS of figure 4)."""
        if not self._is_due(jobs):
            return Targets(again_at=jobs.decided_at + self.delta_s)
        return _Decision(self, jobs, placement).targets()

    def _is_due(self, jobs: Jobs) -> bool:
        running = sum(1 for job in jobs.training if job.shares)
        if not running or jobs.at >= jobs.decided_at + self.delta_s:
            return True
        ended = jobs.ended_count
        return self.ended_share > 0 and ended > 0 and ended >= self.ended_share * (running + ended)


@dataclass(slots=True)
class _Pool:
    """The GPUs of one type, and the jobs on them."""

    gpu_type: str
    gpus: Amount = 0
    """GPUs that are idle, or that the jobs in `admitted` hold."""
    reserved: Amount = 0
    """GPUs of the smallest sizes of all jobs in `admitted`."""
    admitted: list[tuple[TrainingJob, Choices]] = field(default_factory=list)

    def take(self, job: TrainingJob, sizes: Choices) -> None:
        """Add a job with its possible sizes to the jobs that run (EXECUTING of figure 4)."""
        self.admitted.append((job, sizes))
        self.reserved += sizes.fewest or 0


class _Decision:
    """One decision while it is made: it keeps running jobs, admits waiting ones, and shares the GPUs."""

    def __init__(self, policy: Autoscaler, jobs: Jobs, placement: Placement) -> None:
        self._policy = policy
        self._jobs = jobs
        self._placement = placement
        usable = [node for node in placement.nodes if not node.unusable]
        self._usable = {node.name for node in usable}
        self._type_of = {node.name: node.gpu_type for node in placement.nodes}
        self._size_of_type = {
            gpu_type: GpuTypeSize.of([node for node in usable if node.gpu_type == gpu_type])
            for gpu_type in sorted({node.gpu_type for node in placement.nodes})
        }
        self._pools = {gpu_type: _Pool(gpu_type) for gpu_type in self._size_of_type}
        self._default_gpu_type = max(
            self._size_of_type, key=lambda gpu_type: self._size_of_type[gpu_type].gpus, default=""
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
                self._admit_running(job)
        self._admit_waiting(job for job in jobs if not job.shares)
        free = self._placement.free()
        for pool in self._pools.values():
            self._share_gpus(pool, free)
        return Targets(tuple(self._targets), notes=tuple(self._notes), drops=tuple(self._drops))

    def _pool_of(self, job: TrainingJob) -> _Pool | None:
        """The pool of the job's GPU type; None: there is no GPU of this type."""
        if job.shares:
            return self._pools.get(self._type_of.get(job.shares[0].node, self._default_gpu_type))
        return self._pools.get(job.shape.gpu_type or self._default_gpu_type)

    def _choices(self, job: TrainingJob, pool: _Pool) -> Choices:
        return choices(job, self._size_of_type[pool.gpu_type], self._policy.batch_of(job))

    def _admit_running(self, job: TrainingJob) -> None:
        pool = self._pool_of(job)
        if pool is None:
            return
        pool.gpus += job.gpus
        if any(share.node not in self._usable for share in job.shares):
            only_present_size = Choices((job.gpus,), (1.0,))
            pool.take(job, only_present_size)  # no other job could use GPUs of an unusable node
        else:
            pool.take(job, self._choices(job, pool))

    def _admit_waiting(self, waiting: Iterable[TrainingJob]) -> None:
        """Admit the waiting jobs that fit, in their order, and refuse or note the others (lines 15 to 22)."""
        blocked = False
        for job in waiting:
            pool = self._pool_of(job)
            why = "an earlier job does not fit yet" if blocked else self._try_to_admit(job, pool)
            if not why:
                continue
            if self._policy.drops:
                self._drops.append(Drop(job.key, why))
            else:
                self._notes.append(Note(job.key, f"waits: {why}"))
                blocked = blocked or (not self._policy.overtaking and self._could_ever_run(job, pool))

    def _try_to_admit(self, job: TrainingJob, pool: _Pool | None) -> str:
        """Admit the job if it fits. Returns the reason if it does not, else ""."""
        if pool is None:
            return "there is no GPU of its type"
        spare = pool.gpus - pool.reserved
        needed = fewest_workers(job) * job.shape.gpus
        if needed <= spare:  # otherwise its speed, which is costly to look up, would not change the answer
            sizes = self._choices(job, pool)
            if sizes.fewest is None:
                return "at its measured speed, it can train with none of its sizes"
            if sizes.fewest <= spare:
                pool.take(job, sizes)
                return ""
            needed = sizes.fewest
        return f"it needs {needed} GPUs, and {spare} of {pool.gpus} are free or can be freed"

    def _could_ever_run(self, job: TrainingJob, pool: _Pool | None) -> bool:
        if pool is None:
            return False
        fewest = self._choices(job, pool).fewest
        return fewest is not None and fewest <= self._size_of_type[pool.gpu_type].gpus

    def _share_gpus(self, pool: _Pool, free: FreeGpus) -> None:
        """Share the GPUs of `pool`, and set the target of each job whose size changes (SENDTODLPLATFORM).

        Jobs that shrink come first, because they free GPUs. The others follow, the largest first: they need
        whole nodes most.
        """
        best = optimize([sizes for _, sizes in pool.admitted], pool.gpus)
        assert best is not None, "only what fits is taken in"
        changed = [
            (gpus > job.gpus, -gpus, job.key, job, sizes)
            for (job, sizes), gpus in zip(pool.admitted, best, strict=True)
            if gpus != job.gpus
        ]
        for _, minus_gpus, _, job, sizes in sorted(changed, key=lambda change: change[:3]):
            possible = [size for size in sizes.gpus if size <= -minus_gpus]
            if shares := _place(job, pool.gpu_type, possible, free):
                self._targets.append(self._target(job, sizes, shares))

    def _target(self, job: TrainingJob, sizes: Choices, shares: tuple[NodeShare, ...]) -> Target:
        workers = self._placement.put(job.key, shares)
        samples = self._policy.samples_of(job, workers, len(shares))
        speedup = sizes.worth_of(workers * job.shape.gpus)
        change = f"goes from {job.allocated} to {workers}" if job.shares else f"starts with {workers}"
        batch = f" and batch {samples}" if samples else ""
        why = (
            f"{change} of {job.workers} workers{batch}: so it is {speedup:.2f} times as fast as on one GPU,"
            " and the sum over all jobs is largest"
        )
        return Target(job.key, workers, why, samples)


def _place(
    job: TrainingJob, gpu_type: str, sizes: Sequence[Amount], free: FreeGpus
) -> tuple[NodeShare, ...] | None:
    """Place the job with the largest of `sizes` (GPUs, ascending) that has a place, and take the GPUs from
    `free`.

    None: the job stays as it is. The GPUs suffice in sum, but a worker of several GPUs needs them on one
    node.
    """
    shape = job.shape if job.shape.gpu_type == gpu_type else replace(job.shape, gpu_type=gpu_type)
    keep = shares_to_keep(job)
    shares: tuple[NodeShare, ...] | None = None
    free.give(job.shape, job.shares)  # only the GPUs of a worker count here, which `shape` has too
    for gpus in reversed(sizes):
        if gpus == job.gpus:  # its present size: it stays where it is
            break
        shares = free.place(shape, gpus // shape.gpus, keep)
        if shares is not None:
            break
    free.take(job.shape, job.shares if shares is None else shares)
    return shares
