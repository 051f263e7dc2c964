"""Decides when Aggregators are allocated, emptied and released, and how a change that hurts a job is undone.

The events are those of AutoPS, sections 3.3.2 and 3.3.3: a job arrives, a job ends, a period ends, and a job
measures more loss than the limit. Every function takes a pool and returns a pool; `moves_between` says which
tasks move.

The paper reverts a change in one place and assigns anew in another. Here the job decides that the change was
about. A job that moved goes back. A job that arrived has no former place. If it loses too much itself, it is
spread over one more Aggregator. If it hurts another job, it leaves that job's Aggregators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flexo.aggregation.assignment import assign, assign_evenly
from flexo.aggregation.demand import AggregationTask, JobDemand
from flexo.aggregation.pool import AggregatorPool, AssignmentLimits


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """The limits of assignments, and when Aggregators are allocated between two periods."""

    limits: AssignmentLimits = field(default_factory=AssignmentLimits)
    on_demand: int = 1
    """Between two periods, Aggregators are allocated once arrived jobs need so many. 1: at once. Until then,
    these jobs stay on their temporary Aggregators. The paper has such a threshold and prints no value."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A pool, and the jobs that are not part of it yet, in the order in which they arrived."""

    pool: AggregatorPool
    waiting: tuple[JobDemand, ...] = ()
    """Profiled jobs that stay on their temporary Aggregators, because the pool is too full."""


def on_arrival(state: Scaled, demand: JobDemand, rules: ScalingRules) -> Scaled:
    """Assign a profiled job. New Aggregators are allocated if waiting jobs need `rules.on_demand` of them.

    Raises TaskTooLarge if a task does not fit on an empty Aggregator.
    """
    fits = assign(state.pool, demand, rules.limits, most_new=0)
    if fits is not None:
        return Scaled(fits, state.waiting)
    waiting = (*state.waiting, demand)
    grown = _assign_all(state.pool, waiting, rules.limits)
    if grown.allocated - state.pool.allocated >= rules.on_demand:
        return Scaled(grown)
    return Scaled(state.pool, waiting)


def on_exit(state: Scaled, job: str, rules: ScalingRules) -> Scaled:
    """Remove a job that has ended. Its Aggregators stay until they are released."""
    waiting = tuple(each for each in state.waiting if each.job != job)
    return Scaled(state.pool.without(job, rules.limits), waiting)


def at_period_end(state: Scaled, rules: ScalingRules, resting: Collection[str] = ()) -> Scaled:
    """Assign the waiting jobs, release empty Aggregators, and recycle those with the least load.

    `resting`: jobs that have moved within the last `rules.limits.probation` iterations. Each stays where it
    is.
    """
    pool = _assign_all(state.pool, state.waiting, rules.limits)
    return Scaled(recycle(release_empty(pool), rules.limits, resting))


def release_empty(pool: AggregatorPool) -> AggregatorPool:
    """The pool without Aggregators that have no task."""
    return pool.dropping({number for number, each in pool.aggregators.items() if not each.hosted})


def recycle(pool: AggregatorPool, limits: AssignmentLimits, resting: Collection[str] = ()) -> AggregatorPool:
    """Empty and release the least used Aggregator if all its tasks fit elsewhere, then the next one.

    Nothing is allocated. Aggregators with tasks of `resting` jobs stay. The first one that cannot be emptied
    ends the search, as in section 3.3.2.
    """
    while True:
        emptied = _without_least_used(pool, limits, resting)
        if emptied is None:
            return pool
        pool = emptied


def _without_least_used(
    pool: AggregatorPool, limits: AssignmentLimits, resting: Collection[str]
) -> AggregatorPool | None:
    movable = [each for each in pool.aggregators.values() if not any(job in resting for job in each.hosted)]
    if not movable or len(pool.aggregators) < 2:
        return None
    least = min(movable, key=lambda each: (each.use, -each.number))
    rest: AggregatorPool | None = pool.dropping({least.number})
    # the job with most to place goes first, while there is most room
    for hosted in sorted(least.hosted.values(), key=lambda each: (-each.execution_ns, each.job)):
        if rest is None:
            return None
        rest = assign(rest, pool.jobs[hosted.job], limits, tasks=hosted.tasks, most_new=0)
    return rest


def _assign_all(
    pool: AggregatorPool, waiting: Sequence[JobDemand], limits: AssignmentLimits
) -> AggregatorPool:
    for demand in waiting:
        grown = assign(pool, demand, limits)
        assert grown is not None, "without a limit of new Aggregators, every job is assigned"
        pool = grown
    return pool


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one job's assignment: it arrived, or tasks of it moved."""

    job: str
    iterations: int
    """Iterations that the job has run since the change."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Per task that moved, by key: the number of its former Aggregator. Empty: the job arrived."""


def undo_for(
    pool: AggregatorPool, losing: str, changes: Sequence[Change], limits: AssignmentLimits
) -> AggregatorPool | None:
    """The pool after the answer to a measured breach; None: no recent change explains the breach.

    `losing`: a job whose measured loss is LossLimit or more, over `limits.probation` iterations. `changes`:
    the last change of each job, the latest last. The latest change of this job, or of a job beside it, counts
    if it is not older than the probation. Undoing is exempt from the rule that a job moves at most once in
    `limits.probation` iterations.
    """
    nearby = set(pool.hosts(losing))
    for change in reversed(changes):
        if change.iterations > limits.probation or change.job not in pool.jobs:
            continue
        if change.job != losing and not nearby.intersection(pool.hosts(change.job)):
            continue
        if change.before:
            return _moved_back(pool, change, limits)
        if change.job != losing:
            return _apart(pool, change.job, nearby, limits)
        return _with_one_more(pool, losing, limits)
    return None


def _moved_back(pool: AggregatorPool, change: Change, limits: AssignmentLimits) -> AggregatorPool:
    """Put the tasks that moved back to where they were.

    A new Aggregator stands in for each one that was released. Tasks for which there is no room any more go
    where best fit puts them.
    """
    demand = pool.jobs[change.job]
    places = {**pool.places(change.job), **change.before}
    pool = pool.without(change.job, limits)
    numbers: dict[int, int] = {}
    back: dict[int, list[AggregationTask]] = {}
    for task in demand.tasks:
        place = places[task.key]
        if place not in pool.aggregators and place not in numbers:
            numbers[place] = pool.allocated + 1 + len(numbers)
        back.setdefault(numbers.get(place, place), []).append(task)
    homeless: list[AggregationTask] = []
    for number, tasks in back.items():
        tried = pool.hosting(demand, {number: tasks})
        if tried.aggregators[number].broken_limit(limits):
            homeless += tasks
        else:
            pool = tried
    placed = assign(pool, demand, limits, tasks=homeless)
    assert placed is not None, "without a limit of new Aggregators, every job is assigned"
    return placed


def _apart(
    pool: AggregatorPool, job: str, nearby: Collection[int], limits: AssignmentLimits
) -> AggregatorPool | None:
    """Assign a job anew, to Aggregators that are not `nearby`."""
    demand = pool.jobs[job]
    pool = pool.without(job, limits)
    return assign(pool, demand, limits, among=pool.aggregators.keys() - set(nearby))


def _with_one_more(pool: AggregatorPool, job: str, limits: AssignmentLimits) -> AggregatorPool | None:
    """Spread a job evenly over its Aggregators and a new one; None if it shares none of them with any job.

    A job that has as many Aggregators to itself as it would have dedicated servers leaves those that it
    shares. So this ends after so many steps.
    """
    demand, hosts, own = pool.jobs[job], pool.hosts(job), _own(pool, job)
    if len(own) == len(hosts):
        return None
    without = pool.without(job, limits)
    if len(own) < demand.servers:
        spread = assign_evenly(without, demand, limits, (*hosts, pool.allocated + 1))
        if spread is not None and len(_own(spread, job)) > len(own):
            return spread
    return assign(without, demand, limits, among=own)


def _own(pool: AggregatorPool, job: str) -> tuple[int, ...]:
    """The Aggregators that host this job and no other one."""
    return tuple(number for number in pool.hosts(job) if len(pool.aggregators[number].hosted) == 1)
