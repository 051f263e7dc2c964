"""AntMan's global scheduler: quotas for guaranteed jobs, and all that is idle for opportunistic ones.

Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning" (OSDI 2020), sections 3.2 and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import requested
from flexo.policies.placement import FreeGpus, Placement
from flexo.policies.second_seats import Seated, SecondSeats
from flexo_protos.resources import Amount

Shares = tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class AntMan(Policy):
    """Algorithm 1 of AntMan.

    A guaranteed job uses its tenant's quota. It may have any GPU that no other guaranteed job has:
    opportunistic jobs are preempted for it. If quota or GPUs do not suffice for the whole job, the available
    part is reserved. No other guaranteed job gets that part, but opportunistic jobs may run there meanwhile
    (lines 4 to 8). An opportunistic job uses no quota. It runs on idle GPUs, on the nodes with most of them
    (lines 9 and 10). The GPUs of an opportunistic job may be taken at any time.

    With `share_gpus` opportunistic jobs have second seats, on idle GPUs and on GPUs that guaranteed jobs keep
    busy for less than `most_utilization` of the time. The least busy GPUs come first. Then nothing is taken
    from opportunistic jobs: guaranteed jobs sit down beside them.

    A job is opportunistic if its user said so, if its tenant's quota could not hold it, or if it has waited
    for long. A job that has waited for long is upgraded, with all its GPUs at once, as soon as the quota
    suffices, before new jobs start. A job in second seats moves into the owners' seats of the same GPUs, once
    these are free. A job that is not preemptible waits for its guarantee.

    Every job runs with the workers that its user asked for.
    """

    name: ClassVar[str] = "antman"
    uses_running_times: ClassVar[bool] = False
    orders_pending: ClassVar[bool] = True
    uses_quotas: ClassVar[bool] = True

    patience_s: float = 600.0
    """Seconds after which a waiting job runs as an opportunistic one. The paper does not print the value."""
    share_gpus: bool = False
    """Whether opportunistic jobs share GPUs with guaranteed ones. Only simulated clusters can do it by a
    policy: on real ones, flexod shares GPUs by `[sharing]`."""
    most_utilization: float = 0.8
    """M in Algorithm 1: a GPU that is busy for this part of the time takes no second job."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Upgrade opportunistic jobs, start guaranteed ones, and give idle GPUs to opportunistic ones."""
        return _Decision(self, jobs, placement).targets()

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """The pending jobs that fit into their tenants' unused quotas, then the others, each in the order of
        submission.

        If a job does not fit, what is left of its quota is reserved for it, as in Algorithm 1.
        """
        waiting = list(jobs.waiting())
        quotas = {quota.tenant: quota.gpus for quota in jobs.quotas}
        unused = {quota.tenant: quota.gpus - quota.used for quota in jobs.quotas}
        within: list[JobKey] = []
        for job in waiting:
            if not _may_be_guaranteed(job, quotas):
                continue
            left = unused.get(job.tenant, 0)
            unused[job.tenant] = max(0, left - _gpus(job))
            if _gpus(job) <= left:
                within.append(job.key)
        first = frozenset(within)
        return (*within, *(job.key for job in waiting if job.key not in first))


class _Decision:
    """One decision in the making."""

    def __init__(self, rules: AntMan, jobs: Jobs, placement: Placement) -> None:
        self._rules = rules
        self._jobs = jobs
        self._placement = placement
        self._now = jobs.at
        self._waiting = list(jobs.waiting())
        self._quota = {quota.tenant: quota.gpus for quota in jobs.quotas}
        self._unused = {quota.tenant: quota.gpus - quota.used for quota in jobs.quotas}
        """Per tenant: the GPUs of its quota that are neither used nor reserved."""
        running = list(jobs.running())
        for job in running:
            if job.guaranteed:
                self._use_quota(job, job.gpus)
        self._opportunists = [job for job in running if not job.guaranteed]
        self._planned: dict[JobKey, Target] = {}
        self._idle = self._placement.free() if self._waiting or self._opportunists else FreeGpus(())
        """GPUs whose owners' seats no job has."""
        self._evicted: list[tuple[TrainingJob, TrainingJob]] = []
        """Preempted opportunistic jobs, each with the job that takes its GPUs."""

    def targets(self) -> Targets:
        """Run all steps, and return the targets."""
        upgraded = self._upgrade()
        if self._waiting:
            self._opportunists = [job for job in self._opportunists if _may_be_taken(job)]
            # GPUs that no guaranteed job has or has reserved
            self._open = self._placement.free(self._opportunists)
            for job in upgraded:
                self._open.take(job.shape, job.shares)
            self._start_guaranteed()
            if self._rules.share_gpus:
                self._share_gpus()
            else:
                self._start_opportunists()
        for job, taker in self._evicted:
            why = f"opportunistic: its GPUs are taken for job {taker.key}, which is guaranteed"
            self._planned.setdefault(job.key, Target(job.key, 0, why))
        return Targets(tuple(self._planned.values()), again_at=self._again_at())

    def _upgrade(self) -> list[TrainingJob]:
        """Give a guarantee to opportunistic jobs whose quota suffices now: whole jobs, before new ones
        start. Returns those that move into owners' seats."""
        moved: list[TrainingJob] = []
        for job in self._opportunists.copy():
            unused = self._unused.get(job.tenant, 0)
            if not _may_be_guaranteed(job, self._quota) or job.gpus > unused:
                continue
            if not job.shared or self._owners_seats_are_free(job):
                if job.shared:
                    self._idle.take(job.shape, job.shares)
                    moved.append(job)
                self._use_quota(job, job.gpus)
                self._opportunists.remove(job)
                why = f"upgraded: the quota of {job.tenant} suffices for its {job.gpus} GPUs now"
                self._plan(job, job.shares, why, job.samples, guaranteed=True)
        return moved

    def _owners_seats_are_free(self, job: TrainingJob) -> bool:
        """Whether all workers of a job in second seats could have the owners' seats of their nodes."""
        return all(self._idle.of_node(share.node) >= share.workers * job.shape.gpus for share in job.shares)

    def _start_guaranteed(self) -> None:
        """Start, or reserve for, every pending job with a quota, in the order of submission (Algorithm 1,
        lines 4 to 8)."""
        for job in self._waiting:
            unused = self._unused.get(job.tenant, 0)
            if unused <= 0 or not _may_be_guaranteed(job, self._quota):
                continue
            shares = self._find_nodes(job) if _gpus(job) <= unused else None
            if shares is None:
                self._reserve(job, unused)
                continue
            self._evict_from(shares, job)
            self._open.take(job.shape, shares)
            self._idle.take(job.shape, shares)
            self._use_quota(job, _gpus(job))
            why = f"guaranteed: it is within the quota of {job.tenant}"
            self._plan(job, shares, why, guaranteed=True)

    def _find_nodes(self, job: TrainingJob) -> Shares | None:
        """Nodes for the job among GPUs that no guaranteed job has: idle GPUs if there are enough."""
        workers = requested(job)
        shares = self._idle.place(job.shape, workers)
        if shares is not None and all(
            self._open.of_node(share.node) >= share.workers * job.shape.gpus for share in shares
        ):
            return shares
        return self._open.place(job.shape, workers)

    def _reserve(self, job: TrainingJob, unused: Amount) -> None:
        """Reserve for the job as much of its quota, and of the GPUs, as there is."""
        self._use_quota(job, min(_gpus(job), unused))
        gpus = max(1, job.shape.gpus)
        workers = min(requested(job), unused // gpus, self._open.workers(job.shape))
        if workers > 0:
            self._open.take(job.shape, self._open.place(job.shape, workers) or ())

    def _evict_from(self, shares: Shares, taker: TrainingJob) -> None:
        """Preempt opportunistic jobs where `shares` are not idle: the job that started last first."""
        for share in shares:
            need = share.workers * taker.shape.gpus
            there = [job for job in self._opportunists if any(each.node == share.node for each in job.shares)]
            there.sort(key=lambda job: job.started_at or 0.0)
            while self._idle.of_node(share.node) < need:
                victim = there.pop()
                self._opportunists.remove(victim)
                self._idle.give(victim.shape, victim.shares)
                self._evicted.append((victim, taker))

    def _start_opportunists(self) -> None:
        """Start every opportunistic job that fits, on the freest nodes (Algorithm 1, lines 9 and 10).

        Jobs are tried in the order of submission.
        """
        for job in self._waiting_opportunists():
            if not self._idle.total:
                break
            if _gpus(job) > self._idle.total:
                continue
            shares = self._idle.place_widest(job.shape, requested(job))
            if shares is not None:
                self._idle.take(job.shape, shares)
                self._plan(job, shares, "opportunistic: these GPUs are idle")

    def _share_gpus(self) -> None:
        """Start every opportunistic job for all of whose workers there are second seats, on the least busy
        GPUs (lines 9 and 10)."""
        waiting = list(self._waiting_opportunists())
        if not waiting:
            return
        below = self._rules.most_utilization
        seats = SecondSeats(self._placement, self._seated(), below)
        for job in waiting:
            shares = seats.place(job.shape, requested(job))
            if shares is not None:
                seats.take(job.shape, shares)
                why = f"opportunistic: these GPUs are busy for less than {below:.0%} of the time"
                self._plan(job, shares, why, shared=True)

    def _seated(self) -> Iterator[Seated]:
        """All jobs that run in the plan so far, each where it sits."""
        evicted = {job.key for job, _ in self._evicted}
        for job in self._jobs.training:
            planned = self._placement.of(job.key)
            if planned is not None:
                yield Seated(job, planned, second=False)
            elif job.shares and job.key not in evicted:
                yield Seated(job, job.shares, job.shared)

    def _waiting_opportunists(self) -> Iterator[TrainingJob]:
        """Jobs that may run without a guarantee and have nothing in the plan so far."""
        evicted = {job.key for job, _ in self._evicted}
        for job in self._jobs.training:
            waits = not job.shares or job.key in evicted
            if waits and job.key not in self._planned and self._is_opportunistic(job):
                yield job

    def _plan(
        self,
        job: TrainingJob,
        shares: Shares,
        why: str,
        samples: int = 0,
        *,
        guaranteed: bool = False,
        shared: bool = False,
    ) -> None:
        workers = self._placement.put(job.key, shares)
        self._planned[job.key] = Target(job.key, workers, why, samples, guaranteed, shared)

    def _is_opportunistic(self, job: TrainingJob) -> bool:
        """Whether a waiting job may run without a guarantee: it was declared so, no quota could hold it, it
        ran before, or it has waited for long."""
        if not job.preemptible:
            return False
        if job.shares or job.most_workers or not _may_be_guaranteed(job, self._quota):
            return True
        return self._now >= job.waiting_since + self._rules.patience_s

    def _again_at(self) -> float | None:
        """Time when the next waiting job will have waited for long; None: none will."""
        times = (
            job.waiting_since + self._rules.patience_s
            for job in self._waiting
            if job.preemptible and job.key not in self._planned and not self._is_opportunistic(job)
        )
        at = min(times, default=math.inf)
        return at if at < math.inf else None

    def _use_quota(self, job: TrainingJob, gpus: Amount) -> None:
        self._unused[job.tenant] = self._unused.get(job.tenant, 0) - gpus


def _gpus(job: TrainingJob) -> Amount:
    """GPUs that the job holds or, while it waits, that its user asked for."""
    return job.gpus if job.shares else requested(job) * job.shape.gpus


def _may_be_guaranteed(job: TrainingJob, quotas: Mapping[str, Amount]) -> bool:
    return not job.opportunistic and _gpus(job) <= quotas.get(job.tenant, 0)


def _may_be_taken(job: TrainingJob) -> bool:
    return job.preemptible and not job.base and not job.shared
