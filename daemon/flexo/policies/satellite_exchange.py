"""Takes satellites from jobs for the sake of others: satellites above targets, and one for the poorest
job."""

from __future__ import annotations

from collections.abc import Container, Sequence, Set

from flexo.policies import satellite_words as words
from flexo.policies.capacity_index import Kind
from flexo.policies.node_capacity import HeldGrant, NodeCapacity
from flexo.policies.satellite_plan import JobInPlan, PlanInMaking
from flexo_protos.resources import Resources

_REBALANCE_GAIN = 0.25
"""The part of a satellite's workers that a poorer job must gain at least, for the satellite to be taken for
it."""


def give_back_excess(plan: PlanInMaking) -> None:
    """Withdraw satellites that are wholly above their job's target: the job keeps at least its target.

    If other jobs are below their targets, only satellites leave that make room for one of these jobs. A
    policy counts GPUs, wherever they are. It would soon grant again what was given up in vain.
    """
    short = [job for job in plan.jobs.values() if plan.takes_part(job)]
    roomy = _roomy(plan, _spare(plan, plan.rooms, every=True), short) if short else plan.rooms.keys()
    spare = _spare(plan, roomy)
    if short:
        roomy = _roomy(plan, spare, short)
        spare = [standing for standing in spare if standing.grant.node in roomy]
    for standing in spare:
        job = plan.jobs[standing.job.key]
        job.workers -= standing.grant.workers
        plan.rooms[standing.grant.node].take_back(standing)
        plan.withdraw(standing, words.above_target(job))


def _spare(plan: PlanInMaking, nodes: Container[str], *, every: bool = False) -> list[HeldGrant]:
    """Satellites on `nodes` that jobs above their targets can do without.

    `every`: all that a job could give one at a time; else those that it can give together.
    """
    found = []
    for job in plan.jobs.values():
        excess = job.workers - job.target.workers
        if excess <= 0 or job.rested_at > plan.now:
            continue
        largest_first = sorted(
            plan.satellites_of(job.job), key=lambda each: (-each.grant.workers, -each.started_at)
        )
        for standing in largest_first:
            wanted = standing.grant.workers <= excess and standing.grant.node in nodes
            if wanted and plan.may_give(job, standing):
                excess -= 0 if every else standing.grant.workers
                found.append(standing)
    return found


def _roomy(plan: PlanInMaking, spare: Sequence[HeldGrant], short: Sequence[JobInPlan]) -> Set[str]:
    """The nodes on which one of the jobs in `short` finds room once the `spare` satellites have left."""
    leaving: dict[str, Resources] = {}
    for standing in spare:
        name = standing.grant.node
        leaving[name] = leaving.get(name, Resources()) + standing.resources
    return {name for name in leaving if _makes_room(plan, plan.rooms[name], leaving[name], short)}


def _makes_room(
    plan: PlanInMaking, room: NodeCapacity, leaving: Resources, short: Sequence[JobInPlan]
) -> bool:
    free = room.idle + room.coming
    gains = {
        (shape, unit): (free + leaving).holds(shape) // unit > free.holds(shape) // unit
        for shape, unit in {(job.job.shape, job.job.unit) for job in short}
    }
    name = room.node.name
    return name in plan.idle_for and any(
        gains[job.job.shape, job.job.unit] and plan.may_open(job, name) for job in short
    )


def rebalance(plan: PlanInMaking) -> None:
    """Withdraw one satellite of another job for the poorest job without room, if both end up nearer their
    targets."""
    poor = sorted(
        (job for job in plan.jobs.values() if job.may_grow_at <= plan.now and plan.takes_part(job)),
        key=lambda job: (job.workers, job.job.key),
    )
    donors = _donors(plan) if poor else []
    soon: dict[Kind, list[str]] = {}
    for job in poor:
        kind = plan.kind(job.job)
        if kind not in soon:
            soon[kind] = [name for name in plan.nodes if _fits_soon(kind, plan.rooms[name])]
        if any(plan.may_open(job, name) for name in soon[kind]):
            continue  # resources that are coming will do
        least_loss = _best_donation if plan.evenly else _least_needed
        donation = least_loss(plan, job, donors)
        if donation is not None:
            rich = plan.jobs[donation.job.key]
            plan.withdraw(donation, words.for_poorer(job, rich, donation.grant.node))
            return


def _donors(plan: PlanInMaking) -> list[tuple[JobInPlan, HeldGrant]]:
    """Satellites that may be given away, each with its job; those of the largest jobs first."""
    standing = (each for name in plan.nodes if plan.rooms[name].usable for each in plan.rooms[name].standing)
    found = [(plan.jobs[each.job.key], each) for each in standing if each.job.key in plan.jobs]
    able = [(rich, each) for rich, each in found if _may_donate(plan, rich, each)]
    if not plan.evenly:
        able = [(rich, each) for rich, each in able if rich.workers > rich.target.workers]
    return sorted(able, key=lambda donor: -donor[0].workers)


def _may_donate(plan: PlanInMaking, rich: JobInPlan, standing: HeldGrant) -> bool:
    rested = rich.rested_at <= plan.now and not rich.dealt
    return rested and plan.may_give(rich, standing)


def _fits_soon(kind: Kind, room: NodeCapacity) -> bool:
    return (room.idle + room.coming).holds(kind.shape) > 0


def _least_needed(
    plan: PlanInMaking, poor: JobInPlan, donors: Sequence[tuple[JobInPlan, HeldGrant]]
) -> HeldGrant | None:
    """The satellite whose job falls least below its target without it, by less than `poor` gains."""
    best: tuple[tuple[int, float, str], HeldGrant] | None = None
    for rich, standing in donors:
        name = standing.grant.node
        if rich is poor or not plan.may_open(poor, name):
            continue
        room = plan.rooms[name]
        free = room.idle + room.coming + standing.resources
        gain = min(poor.target.workers - poor.workers, free.holds(poor.job.shape))
        gain -= gain % poor.job.unit
        lost = standing.grant.workers - (rich.workers - rich.target.workers)
        rank = lost, standing.started_at, standing.grant.grant_id
        if gain > max(0, lost) and (best is None or rank < best[0]):
            best = rank, standing
    return best[1] if best else None


def _best_donation(
    plan: PlanInMaking, poor: JobInPlan, donors: Sequence[tuple[JobInPlan, HeldGrant]]
) -> HeldGrant | None:
    """The satellite after whose return the smaller of both jobs is largest."""
    best: tuple[tuple[int, int, float, str], HeldGrant] | None = None
    for rich, standing in donors:
        if rich.workers < poor.workers + 2:
            break  # the other jobs are not larger
        if rich is poor or not plan.may_open(poor, standing.grant.node):
            continue
        worst = _worst_after(plan, poor, rich, standing)
        if worst is None:
            continue
        rank = (-worst, standing.grant.workers, standing.started_at, standing.grant.grant_id)
        if best is None or rank < best[0]:
            best = rank, standing
    return best[1] if best else None


def _worst_after(plan: PlanInMaking, poor: JobInPlan, rich: JobInPlan, standing: HeldGrant) -> int | None:
    """The smaller of both sizes once `standing` has been shared out anew; None if not worth it."""
    room, lost = plan.rooms[standing.grant.node], standing.grant.workers
    free = room.idle + room.coming + standing.resources
    alone = not plan.satellites_left  # otherwise there would be two satellites instead of one
    poor_size, rich_size = _share_out(free, room, poor, rich, rich.workers - lost, alone=alone)
    gain = poor_size - poor.workers
    worst = min(poor_size, rich_size)
    return worst if worst > poor.workers and gain >= _REBALANCE_GAIN * lost else None


def _share_out(
    free: Resources, room: NodeCapacity, poor: JobInPlan, rich: JobInPlan, rich_workers: int, *, alone: bool
) -> tuple[int, int]:
    """The sizes of both jobs once `free` of one node has been dealt to them, a worker or a unit at a time to
    the smaller.

    `alone`: deal to the poor job only.
    """
    sizes = {True: poor.workers, False: rich_workers}
    jobs = {True: poor, False: rich}
    open_to = {True} if alone else {True, False}
    while open_to:
        is_poor = min(open_to, key=lambda who: (sizes[who], jobs[who].job.key))
        job = jobs[is_poor].job
        if sizes[is_poor] + job.unit > job.ceiling or free.holds(job.shape) < job.unit:
            open_to.discard(is_poor)
            continue
        free = free.minus(job.shape * job.unit)
        sizes[is_poor] += job.unit
    return sizes[True], sizes[False]
