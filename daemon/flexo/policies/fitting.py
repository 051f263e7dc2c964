"""Puts targets on nodes if the policy has not done so itself: in their order, beside the workers that jobs
have.

Most policies put their jobs themselves, because what fits decides which jobs run. This module moves no
worker: a job keeps its workers, up to its target. Jobs that grow or start get the remaining GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Target, Targets
from flexo.policies.demand import fewest_workers
from flexo.policies.placement import FreeGpus, Placement, shares_to_keep
from flexo_protos.resources import Amount

_ByKey = Mapping[JobKey, TrainingJob]


def fitted(targets: Targets, jobs: Jobs, placement: Placement) -> Targets:
    """The same targets, each put into `placement`, with as many workers as found a place.

    If the policy has put all of them, or the others only preempt, returns `targets` itself.
    """
    left = [target for target in targets.jobs if placement.of(target.job) is None]
    if not left:
        return targets
    by_key = {job.key: job for job in jobs.training}
    if all(_is_preemption(target, by_key.get(target.job)) for target in left):
        return targets
    wanted = [_allowed(target, by_key[target.job]) for target in targets.jobs if target.job in by_key]
    free = placement.free(by_key[target.job] for target in wanted)
    if targets.evenly:
        wanted = _evenly(wanted, by_key, free.total)
    kept = [_keep(free, target, by_key[target.job], placement) for target in wanted]
    for target, shares in zip(wanted, kept, strict=True):
        if placement.of(target.job) is None:
            placement.put(target.job, _grow(free, by_key[target.job], target.workers, shares))
    return replace(targets, jobs=tuple(_as_put(target, placement) for target in wanted))


def _is_preemption(target: Target, job: TrainingJob | None) -> bool:
    return job is not None and bool(job.shares) and not _allowed(target, job).workers


def _as_put(target: Target, placement: Placement) -> Target:
    workers = sum(share.workers for share in placement.of(target.job) or ())
    why = target.why or f"the policy gives it {workers} workers for now"
    return replace(target, workers=workers, why=why)


def _allowed(target: Target, job: TrainingJob) -> Target:
    """The target within the limits of the job; a running job that cannot be preempted keeps its least."""
    if target.workers <= 0 and (job.preemptible or not job.shares):
        return replace(target, workers=0)
    return replace(target, workers=max(fewest_workers(job), min(target.workers, job.workers.max)))


def _keep(free: FreeGpus, target: Target, job: TrainingJob, placement: Placement) -> tuple[NodeShare, ...]:
    """The workers that the job keeps, or the nodes on which the policy has put it; takes them from `free`."""
    shares = placement.of(job.key)
    workers = min(target.workers, job.allocated)
    if shares is None:
        shares = (free.place(job.shape, workers, shares_to_keep(job)) or ()) if workers else ()
    free.take(job.shape, shares)
    return shares


def _grow(
    free: FreeGpus, job: TrainingJob, workers: int, kept: tuple[NodeShare, ...]
) -> tuple[NodeShare, ...]:
    """Grow a job from `kept` as near to `workers` as there is room; takes the new shares from `free`."""
    had = sum(share.workers for share in kept)
    free.give(job.shape, kept)
    shares = kept
    for size in range(workers, max(had, job.workers.min - 1), -1):
        found = free.place(job.shape, size, kept)
        if found is not None:
            shares = found
            break
    free.take(job.shape, shares)
    return shares


def _evenly(wanted: Sequence[Target], jobs: _ByKey, gpus: Amount) -> list[Target]:
    """The targets, reduced until `gpus` suffice: workers go one by one to the job that has the fewest.

    Running jobs come before jobs that would start.
    """
    sizes: dict[JobKey, int] = {}
    for target in sorted(wanted, key=lambda each: not jobs[each.job].shares):
        job = jobs[target.job]
        fewest = min(target.workers, fewest_workers(job))
        sizes[job.key] = fewest if job.shares or fewest * job.shape.gpus <= gpus else 0
        gpus -= sizes[job.key] * job.shape.gpus
    most = {target.job: target.workers for target in wanted if sizes[target.job]}
    queue = [(sizes[key], key) for key in most]
    heapq.heapify(queue)
    while queue:
        size, key = heapq.heappop(queue)
        if size < most[key] and jobs[key].shape.gpus <= gpus:
            gpus -= jobs[key].shape.gpus
            sizes[key] = size + 1
            heapq.heappush(queue, (size + 1, key))
    return [replace(target, workers=sizes[target.job]) for target in wanted]
