"""All pool Aggregators and jobs as pMaster knows them, and what decisions ask about them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flexo.aggregation.assignment import TaskTooLarge, assign
from flexo.aggregation.demand import JobDemand
from flexo.aggregation.pool import AggregatorPool, AssignmentLimits
from flexo.aggregation.pooled_job import PooledJob, Stage, reduced
from flexo.model.aggregation import (
    AggregationView,
    AggregatorView,
    PoolAggregator,
    PooledJobView,
    UsedAggregator,
)
from flexo.model.queue import JobKey


class LinkLoad:
    """What other programs leave of an Aggregator's link, from byte counts that come every second."""

    def __init__(self, bandwidth: int) -> None:
        """`bandwidth`: of the link in each direction, in bytes a second."""
        self._bandwidth = bandwidth
        self._mark: tuple[float, int, int, int] | None = None
        self.available: int | None = None
        """Bytes a second that its tasks may push and pull together; None: not known.

        Every task is pushed and pulled, so the direction that others use more sets the limit for both.
        """

    def note(self, now: float, each: PoolAggregator) -> None:
        """Note the counts of an Aggregator's status at `now`, some seconds after the ones before."""
        if not each.interface_received and not each.interface_sent:
            self._mark = self.available = None
            return
        before, self._mark = self._mark, (now, each.interface_received, each.interface_sent, each.moved)
        if before is None or now <= before[0]:
            return
        seconds = now - before[0]
        received, sent, moved = (
            (count - earlier) / seconds for count, earlier in zip(self._mark[1:], before[1:], strict=True)
        )
        if min(received, sent, moved) < 0:  # the interface or the process is another one
            self.available = None
            return
        others = max(0.0, max(received, sent) - moved / 2)
        self.available = round(2 * max(0.0, self._bandwidth - others))


@dataclass(slots=True)
class KnownAggregator:
    """An Aggregator that is attached, or was a moment ago."""

    number: int
    attached: PoolAggregator
    came_at: float
    seen_at: float
    needed_at: float
    """The last time at which it had a job, or was wanted for one."""
    draining: bool = False
    """Whether it was told to end."""
    used_cores: float = 0.0
    """CPU cores that it has used lately."""
    cores_mark: tuple[float, float] = (-math.inf, 0.0)
    """Time, and its CPU seconds until then."""
    link: LinkLoad = field(init=False)

    def __post_init__(self) -> None:
        self.link = LinkLoad(self.attached.network)


@dataclass(slots=True)
class PoolState:
    """See the module. Mutable: pMaster alone has it."""

    limits: AssignmentLimits
    pool: AggregatorPool
    known: dict[str, KnownAggregator] = field(default_factory=dict)
    """By name."""
    jobs: dict[JobKey, PooledJob] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    """The names of all jobs that have not ended."""
    reverts: int = 0

    # --- which Aggregators ----------------------------------------------------------------------

    def numbers(self, job: PooledJob) -> set[int]:
        """The Aggregators that are assigned to a job, temporary ones too."""
        return {*job.temporary, *self.pool.hosts(job.name)}

    def open_to(self, job: PooledJob) -> set[int]:
        """The Aggregators that the job may share: no job of another tenant is there, and none is profiled."""
        profiling = {number for each in self.jobs.values() for number in each.temporary}
        return {
            known.number
            for known in self.known.values()
            if known.number not in profiling
            and not known.draining
            and not self.is_held(known.number, job.name)
            and self.of_tenant(known.number, job)
        } | set(job.temporary)

    def of_tenant(self, number: int, job: PooledJob) -> bool:
        """Whether only jobs of this job's tenant are assigned to an Aggregator."""
        tenants = {each.name: each.tenant for each in self.jobs.values()}
        return all(tenants[name] == job.tenant for name in self.pool.aggregators[number].hosted)

    def idle(self, numbers: Iterable[int]) -> list[int]:
        """Of these Aggregators, those without a job."""
        busy = {number for each in self.jobs.values() for number in self.numbers(each)}
        return sorted(set(numbers) - busy)

    @property
    def one_may_become_idle(self) -> bool:
        """Whether a job is about to leave Aggregators: it is profiled, or leaves them now."""
        profiled = any(job.stage is Stage.PROFILED for job in self.jobs.values())
        return profiled or any(self.is_held(known.number) for known in self.known.values())

    def is_held(self, number: int, but: str = "") -> bool:
        """Whether a running job is connected to an Aggregator that is not assigned to it, as after flexod's
        restart. Nobody else is assigned there until that is clear."""
        known = next(each for each in self.known.values() if each.number == number)
        return any(
            each.job != but and each.job in self.running and not self.is_assigned(each.job, number)
            for each in known.attached.jobs
        )

    def is_assigned(self, name: str, number: int) -> bool:
        """Whether an Aggregator is assigned to the job of this name."""
        job = next((each for each in self.jobs.values() if each.name == name), None)
        return job is not None and number in self.numbers(job)

    def shares(self, job: PooledJob) -> tuple[UsedAggregator, ...]:
        """The assignment of a job, as its leader is told; (): its own Aggregators."""
        names = {known.number: name for name, known in self.known.items()}
        if job.temporary:
            return tuple(UsedAggregator(name, 1) for name in sorted(names[n] for n in job.temporary))
        hosts = {number: self.pool.aggregators[number] for number in self.pool.hosts(job.name)}
        return reduced({names[number]: len(each.hosted[job.name].tasks) for number, each in hosts.items()})

    def note_link(self, known: KnownAggregator, now: float) -> None:
        """Measure an Aggregator's link. New tasks get no more of it than others leave."""
        known.link.note(now, known.attached)
        declared, measured = known.attached.network, known.link.available
        network = declared if measured is None else min(declared, measured)
        placed = self.pool.aggregators[known.number]
        limited = replace(placed, capacity=replace(placed.capacity, network=network))
        self.pool = self.pool.with_aggregators([limited])

    def available(self) -> dict[int, int]:
        """Per Aggregator whose link is measured, by number: the bytes a second that its tasks may move."""
        return {
            known.number: known.link.available
            for known in self.known.values()
            if known.link.available is not None
        }

    def cpu_s(self, job: PooledJob) -> float:
        """CPU seconds that the job's Aggregators have spent on it."""
        numbers = self.numbers(job)
        spent = (
            sums.cpu_s
            for known in self.known.values()
            if known.number in numbers and (sums := known.attached.sums_of(job.name)) is not None
        )
        return math.fsum(spent)

    def beside(self, job: PooledJob) -> list[PooledJob]:
        """The other jobs on the job's Aggregators."""
        names = {
            name for number in self.pool.hosts(job.name) for name in self.pool.aggregators[number].hosted
        }
        return [each for each in self.jobs.values() if each.name in names and each is not job]

    def may_be_adopted(self, name: str) -> bool:
        """Whether the job runs, and its leader has not attached to this flexod yet."""
        return name in self.running and all(job.name != name for job in self.jobs.values())

    # --- for people -----------------------------------------------------------------------------

    def view(self) -> AggregationView:
        """All of it for people and metrics."""
        aggregators = tuple(self.shown(known) for _, known in sorted(self.known.items()))
        jobs = tuple(
            PooledJobView(
                *(job.key, job.stage.value, job.why, self.shares(job), job.version),
                alone_s=job.demand.duration_ns / 1e9 if job.demand is not None else 0.0,
                now_s=job.use.iteration_s if job.current else 0.0,
            )
            for job in sorted(self.jobs.values(), key=lambda each: each.key)
        )
        return AggregationView(aggregators, jobs, self.wanted(), self.reverts)

    def shown(self, known: KnownAggregator) -> AggregatorView:
        """One Aggregator for people and metrics."""
        placed, attached = self.pool.aggregators[known.number], known.attached
        return AggregatorView(
            name=attached.name,
            jobs=tuple(job.key for job in self.jobs.values() if known.number in self.numbers(job)),
            planned_use=float(placed.use),
            memory=placed.memory,
            memory_limit=placed.capacity.memory,
            cpu_s=attached.cpu_s,
            longest_wait_s=max((each.longest_wait_s for each in attached.jobs), default=0.0),
            release=attached.release,
            used_cores=known.used_cores,
            gradients=sum(each.size for each in attached.jobs),
        )

    def wanted(self) -> int:
        """The Aggregators in use, and those that waiting jobs need besides."""
        in_use = {number for job in self.jobs.values() for number in self.numbers(job)}
        waiting = [job for job in self.jobs.values() if job.stage is Stage.WAITING and job.use.wants_pool]
        needed = 0
        for tenant in {job.tenant for job in waiting}:
            trial = AggregatorPool(self.pool.new)
            for job in waiting:
                if job.tenant == tenant and job.demand is not None:
                    trial = _with_new(trial, job.demand, self.limits)
            needed += len(trial.aggregators)
        profiles = max((job.servers for job in waiting if job.demand is None), default=0)
        return len(in_use) + needed + profiles


def _with_new(pool: AggregatorPool, demand: JobDemand, limits: AssignmentLimits) -> AggregatorPool:
    try:
        return assign(pool, demand, limits) or pool
    except TaskTooLarge:  # no number of Aggregators helps
        return pool
