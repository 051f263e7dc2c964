"""pMaster of the benchmark: flexo.aggregation decides, and the partitions of parameter servers move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flexo.aggregation.demand import AggregationTask, JobDemand
from flexo.aggregation.pool import Aggregator, AggregatorPool
from flexo.aggregation.profiling import JobProfiler
from flexo.aggregation.scaling import (
    Change,
    Scaled,
    ScalingRules,
    on_arrival,
    on_exit,
    release_empty,
    undo_for,
)
from flexo_bench.service.philly_jobs import AGGREGATOR
from flexo_bench.service.resident.client import Address
from flexo_bench.service.resident.frames import Cycle, Work
from flexo_bench.service.resident.job import Mover, Plan, begin_cycle
from flexo_bench.service.resident.partitions import BYTES


@dataclass(slots=True)
class PoolMaster:
    """Aggregator k of the pool is server k - 1 of `addresses`. Mutable: one pool."""

    addresses: Sequence[Address]
    movers: Mapping[str, Mover]
    """By job."""
    rules: ScalingRules = field(default_factory=ScalingRules)
    pool: AggregatorPool = field(default_factory=lambda: AggregatorPool(AGGREGATOR))

    def arrive(self, demand: JobDemand) -> None:
        """Assign a profiled job, which trains on temporary servers, and move it there."""
        self._become(on_arrival(Scaled(self.pool), demand, self.rules).pool)

    def undo(self, job: str) -> bool:
        """Undo the arrival of a job that loses too much. Returns whether anything has changed."""
        change = Change(job, self.rules.limits.probation)
        after = undo_for(self.pool, job, [change], self.rules.limits)
        if after is not None:
            self._become(after)
        return after is not None

    def leave(self, job: str) -> None:
        """Release the Aggregators that only this job has used. It has ended."""
        self._become(release_empty(on_exit(Scaled(self.pool), job, self.rules).pool))

    def _become(self, pool: AggregatorPool) -> None:
        self.pool = pool
        for job in pool.jobs:
            self.movers[job].move(holders_in(pool, job))
        for number, each in pool.aggregators.items():
            begin_cycle(self.addresses[number - 1], cycle_of(each))


def holders_in(pool: AggregatorPool, job: str) -> list[int]:
    """The server of each partition of a job, by key."""
    places = pool.places(job)
    return [places[str(key)] - 1 for key in range(len(places))]


def cycle_of(each: Aggregator) -> Cycle:
    """The execution cycle of an Aggregator, as its server needs it."""
    works = {job: Work(hosted.duration_ns, hosted.execution_ns) for job, hosted in each.hosted.items()}
    return Cycle(each.cycle_ns, works)


def tasks_of(plan: Plan) -> tuple[AggregationTask, ...]:
    """The partitions of a job as tasks. The job has said how long the core of a server takes for each."""
    sizes = [BYTES * partition.count for partition in plan.partitions]
    return tuple(
        AggregationTask(str(key), size, round(plan.ns_per_byte * size)) for key, size in enumerate(sizes)
    )


def profiled(plan: Plan, senders: int, servers: int, durations_ns: Sequence[int], warm_up: int) -> JobDemand:
    """The demand of a job whose first iterations took so long. Raises ValueError without any."""
    tasks = tasks_of(plan)
    profiler = JobProfiler(
        str(plan.number),
        {task.key: task.size for task in tasks},
        senders,
        servers,
        len(durations_ns) - warm_up,
        warm_up,
    )
    for duration_ns in durations_ns:
        profiler.note(duration_ns, {task.key: task.execution_ns for task in tasks})
    return profiler.demand()
