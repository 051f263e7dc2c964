"""Moves a job's tasks away from Aggregators whose network is congested (AutoPS, appendix D)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

from flexo.aggregation.assignment import assign_what_fits
from flexo.aggregation.pool import (
    SECOND,
    Aggregator,
    AggregatorPool,
    AssignmentLimits,
    moves_between,
)


def is_congested(aggregator: Aggregator, available: int) -> bool:
    """Whether traffic of others leaves less bandwidth than the hosted tasks need.

    `available`: bytes a second that the network interface had for tasks, as measured.
    """
    return aggregator.transfer * SECOND > available * aggregator.cycle_ns


def congested_among(pool: AggregatorPool, available: Mapping[int, int]) -> frozenset[int]:
    """The numbers of congested Aggregators. `available`: bytes a second, by number; a missing one is not
    congested."""
    return frozenset(
        number
        for number, rate in available.items()
        if number in pool.aggregators and is_congested(pool.aggregators[number], rate)
    )


def move_away(
    pool: AggregatorPool,
    job: str,
    measured_loss: Fraction,
    congested: Collection[int],
    limits: AssignmentLimits,
    *,
    most_new: int | None = 0,
) -> AggregatorPool | None:
    """The pool with the job's tasks off the `congested` Aggregators; None: everything stays.

    A job that loses less than LossLimit does not move, even if an Aggregator of it is congested. `most_new`:
    the most Aggregators to allocate; None: no limit. If not all tasks fit elsewhere, the longest that do fit
    move, because a congested interface is shared by all tasks that stay. The other Aggregators may then
    carry more of the job than a dedicated server would. The caller leaves out jobs that have moved within
    the last `limits.probation` iterations.
    """
    if measured_loss < limits.loss:
        return None
    affected = [number for number in pool.hosts(job) if number in congested]
    if not affected:
        return None
    tasks = {number: pool.aggregators[number].hosted[job].tasks for number in affected}
    moved, left = assign_what_fits(
        pool.taking_off(job, affected, limits),
        pool.jobs[job],
        limits,
        [task for here in tasks.values() for task in here],
        pool.aggregators.keys() - set(congested),
        most_new,
    )
    staying = {task.key for task in left}
    stay = {n: tuple(task for task in here if task.key in staying) for n, here in tasks.items()}
    moved = moved.with_aggregators(
        pool.aggregators[number].keeping(pool.jobs[job], here) for number, here in stay.items() if here
    )
    return moved if moves_between(pool, moved) else None
