"""Deals idle GPUs out to jobs that are below their targets, and grants the dealt workers as satellites."""

from __future__ import annotations

import heapq
from functools import partial

from flexo.model.plans import Grow
from flexo.model.queue import JobKey
from flexo.policies import satellite_words as words
from flexo.policies.node_capacity import NodeCapacity, satellite_partition
from flexo.policies.satellite_plan import JobInPlan, PlanInMaking
from flexo_protos.resources import Resources


def deal_idle(plan: PlanInMaking) -> None:
    """Deal one worker, or one unit, at a time to the job with the fewest workers, until no job can get one.

    A job that may not grow yet takes part, so that its workers are kept for it; it gets no grant.
    """
    expected = _expected(plan)
    queue = [(job.workers, key) for key, job in plan.jobs.items() if plan.takes_part(job)]
    heapq.heapify(queue)
    while queue:
        _, key = heapq.heappop(queue)
        job = plan.jobs[key]
        if _deal_one(plan, job, expected.get(key, job.workers)):
            heapq.heappush(queue, (job.workers, key))


def grant_dealt(plan: PlanInMaking) -> None:
    """Grant the workers that were dealt, as satellites, to jobs that may grow now."""
    for job in plan.jobs.values():
        if job.may_grow_at <= plan.now:
            has = job.before
            for node, workers in plan.may_begin(job):
                plan.actions.append(_grow(plan, job, node, workers, has))
                has += workers


def _deal_one(plan: PlanInMaking, job: JobInPlan, expected: int) -> bool:
    """Deal one more worker, or one unit, to the job, on the node that it has opened or on a new one. False:
    there is no room.

    If satellites are few, deal at once all workers that the job is expected to get on a new node: other jobs
    could not open another satellite for their part of it.
    """
    shape, workers = job.job.shape, job.job.unit
    if job.workers + workers > job.target.workers:
        return False
    room = plan.rooms.get(job.open_node)
    if room is None or room.idle.holds(shape) < workers:
        wanted = max(workers, expected - job.workers)
        room = _best_room(plan, job, wanted) if plan.satellites_left else None
        if room is None:
            return False
        plan.satellites_left -= 1
        if plan.satellites_are_few:
            most = min(wanted, room.idle.holds(shape), job.target.workers - job.workers)
            workers = most - most % workers
    room.take(shape * workers)
    plan.index.changed(room.node.name)
    job.open_node = room.node.name
    job.dealt[room.node.name] = job.dealt.get(room.node.name, 0) + workers
    job.workers += workers
    return True


def _grow(plan: PlanInMaking, job: JobInPlan, node: str, workers: int, has: int) -> Grow:
    why = words.grows(job.job, node, workers, has)
    return Grow(job.job.key, node, workers, satellite_partition(plan.snapshot, node), why)


def _best_room(plan: PlanInMaking, job: JobInPlan, wanted: int) -> NodeCapacity | None:
    """The tightest node that holds all `wanted` workers, else the roomiest; a node of the base comes last."""
    own: str | None = None
    pays_there = partial(plan.pays_with, job)
    for name in plan.index.tightest_first(plan.kind(job.job), wanted, pays_there):
        if name in job.closed or name in job.dealt:
            continue
        if plan.rooms[name].idle.holds(job.job.shape) < job.job.unit:
            continue
        if name not in job.job.base_nodes:
            return plan.rooms[name]
        own = own or name
    return None if own is None else plan.rooms[own]


def _expected(plan: PlanInMaking) -> dict[JobKey, int]:
    """Estimate how many workers each job will end up with, as if all idle resources were on one node.

    The estimate decides which node a job opens, so that the job's workers are on few nodes. If satellites are
    few, it also decides how much of that node the job takes. CPUs and memory count: otherwise the job would
    take what another is to have there.
    """
    sizes = {key: job.workers for key, job in plan.jobs.items() if plan.takes_part(job)}
    left = {key: plan.room_for(plan.jobs[key]) for key in sizes}
    most = max(left.values(), default=0)
    idle = sum((plan.rooms[name].idle for name in plan.nodes if most), Resources())
    queue = [(workers, key) for key, workers in sizes.items()]
    heapq.heapify(queue)
    while queue and most > 0:
        workers, key = heapq.heappop(queue)
        worker = plan.jobs[key].job.shape.of_any_type()
        if workers < plan.jobs[key].target.workers and left[key] > 0 and idle.holds(worker):
            idle = idle.minus(worker)
            sizes[key], left[key], most = workers + 1, left[key] - 1, most - 1
            heapq.heappush(queue, (workers + 1, key))
    return sizes
