"""Puts targets on nodes where the policy has not done so itself: in their order, beside what jobs have.

Most policies put their jobs themselves, because what fits decides who runs. Nobody is moved here: a job keeps
what it has, up to its target, and whoever grows or starts gets what is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flexo.model.queue import JobKey
from flexo.model.training import Share, TrainingJob
from flexo.policies.base import Jobs, Target, Targets
from flexo.policies.demand import least
from flexo.policies.placement import FreeGpus, Placement, dearest_first
from flexo_protos.resources import Amount

_ByKey = Mapping[JobKey, TrainingJob]


def fitted(targets: Targets, jobs: Jobs, placement: Placement) -> Targets:
    """The same targets, each put into `placement`, with as many workers as found a place.

    `targets` itself where the policy has put all of them.
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
    return replace(target, workers=workers, why=target.why or f"{workers} workers are its due now")


def _allowed(target: Target, job: TrainingJob) -> Target:
    """Within what the job may have; one that cannot be preempted goes on."""
    if target.workers <= 0 and (job.preemptible or not job.shares):
        return replace(target, workers=0)
    return replace(target, workers=max(least(job), min(target.workers, job.workers.max)))


def _keep(free: FreeGpus, target: Target, job: TrainingJob, placement: Placement) -> tuple[Share, ...]:
    """What it keeps of what it has, or where the policy has put it; taken from `free`."""
    shares = placement.of(job.key)
    workers = min(target.workers, job.allocated)
    if shares is None:
        shares = (free.place(job.shape, workers, dearest_first(job)) or ()) if workers else ()
    free.take(job.shape, shares)
    return shares


def _grow(free: FreeGpus, job: TrainingJob, workers: int, kept: tuple[Share, ...]) -> tuple[Share, ...]:
    """As near to `workers` as there is room, beside `kept`; taken from `free`."""
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
    """At most the same targets, which `gpus` suffice for: workers one by one to the job that has the fewest.

    Jobs that run come before those that would start.
    """
    sizes: dict[JobKey, int] = {}
    for target in sorted(wanted, key=lambda each: not jobs[each.job].shares):
        job = jobs[target.job]
        fewest = min(target.workers, least(job))
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
