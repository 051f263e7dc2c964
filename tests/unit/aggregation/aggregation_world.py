"""Jobs and Aggregators for tests: durations in milliseconds, and random ones for hypothesis."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from flexo.aggregation.demand import AggregationTask, Capacity, JobDemand
from flexo.aggregation.pool import Aggregator, AggregatorPool, AssignmentLimits

MS = 1_000_000
LARGE = Capacity(network=12_500_000_000, memory=256 * 10**9)
LIMITS = AssignmentLimits()


def job(
    name: str,
    duration: float,
    *executions: float,
    senders: int = 1,
    servers: int = 1,
    size: int = 1_000_000,
) -> JobDemand:
    """A job with one task for each execution time; all times in milliseconds."""
    tasks = tuple(
        AggregationTask(f"t{index}", size, round(each * MS)) for index, each in enumerate(executions)
    )
    return JobDemand(name, round(duration * MS), senders, tasks, servers)


def using(
    name: str, duration: float, use: Fraction, servers: int, tasks_each: int = 8, size: int = 4_000_000
) -> JobDemand:
    """A job that would keep each of its dedicated servers busy for this part of the time."""
    many = servers * tasks_each
    return job(
        name,
        duration,
        *[float(duration * servers * use / many)] * many,
        senders=servers,
        servers=servers,
        size=size,
    )


def hosting(*jobs: JobDemand, capacity: Capacity = LARGE) -> Aggregator:
    """An Aggregator with all tasks of these jobs, whatever the limits."""
    aggregator = Aggregator(1, capacity)
    for each in jobs:
        aggregator = aggregator.hosting(each, each.tasks)
    return aggregator


def pool_of(*aggregators: tuple[JobDemand, ...], capacity: Capacity = LARGE) -> AggregatorPool:
    """A pool with all tasks of these jobs on one Aggregator for each tuple, whatever the limits."""
    pool = AggregatorPool(capacity)
    for number, jobs in enumerate(aggregators, start=1):
        for each in jobs:
            pool = pool.hosting(each, {number: each.tasks})
    return pool


def tasks_of(pool: AggregatorPool) -> dict[str, list[str]]:
    """Per job: the keys of all tasks that some Aggregator hosts."""
    return {
        name: sorted(
            task.key
            for each in pool.aggregators.values()
            if name in each.hosted
            for task in each.hosted[name].tasks
        )
        for name in pool.jobs
    }


def whole(pool: AggregatorPool) -> bool:
    """Whether every task of every job is hosted exactly once, and nothing else is."""
    strangers = {name for each in pool.aggregators.values() for name in each.hosted} - pool.jobs.keys()
    return not strangers and tasks_of(pool) == {
        name: sorted(task.key for task in demand.tasks) for name, demand in pool.jobs.items()
    }


SMALL = Capacity(network=2_000_000_000, memory=400_000_000)
"""So little that network and memory decide as well."""


@st.composite
def demands(draw: st.DrawFn, name: str = "job") -> JobDemand:
    """A job of any kind that fits on small Aggregators."""
    duration_ms = draw(st.sampled_from((100, 105, 110, 200, 300, 333, 600, 660, 1200)))
    senders = draw(st.integers(1, 4))
    tasks = tuple(
        AggregationTask(f"t{index:02}", draw(st.integers(1, 4_000_000)), draw(st.integers(0, 40)) * MS)
        for index in range(draw(st.integers(1, 12)))
    )
    return JobDemand(name, duration_ms * MS, senders, tasks, draw(st.integers(1, 3)))


def many_demands(most: int = 8) -> st.SearchStrategy[list[JobDemand]]:
    """Some jobs, each with a name of its own."""
    return st.integers(1, most).flatmap(
        lambda many: st.tuples(*(demands(f"job{index}") for index in range(many))).map(list)
    )
