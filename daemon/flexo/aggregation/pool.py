"""The Aggregators of a pool, the tasks that they host, and the limits that hold on each of them.

All values are frozen: a change makes a new pool, so that a plan which does not work out is simply dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from flexo.aggregation.cyclic import load_ns, loses_less, loss
from flexo.aggregation.demand import AggregationTask, Capacity, JobDemand

SECOND: Final = 1_000_000_000
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class AssignmentLimits:
    """The limits of every assignment."""

    loss: Fraction = Fraction(1, 10)
    """LossLimit: each job loses less than this part of its speed."""
    network: Fraction = Fraction(4, 5)
    """The most of an Aggregator's bandwidth that pushes and pulls together may use."""
    probation: int = 100
    """Iterations for which a job stays where a change has put it, and within which a change is undone if a
    job loses too much."""


@dataclass(frozen=True, slots=True)
class HostedTasks:
    """The tasks of one job on one Aggregator, with their sums."""

    job: str
    duration_ns: int
    senders: int
    tasks: tuple[AggregationTask, ...]
    execution_ns: int
    size: int

    @classmethod
    def of(cls, demand: JobDemand, tasks: tuple[AggregationTask, ...]) -> HostedTasks:
        """Host these tasks of a job."""
        return cls(
            demand.job,
            demand.duration_ns,
            demand.senders,
            tasks,
            sum(task.execution_ns for task in tasks),
            sum(task.size for task in tasks),
        )

    @property
    def transfer(self) -> int:
        """Bytes that one iteration moves (2 n_j S_j): every sender pushes all tasks and pulls their sums."""
        return 2 * self.senders * self.size

    @property
    def memory(self) -> int:
        """Bytes of buffers: one for each sender, one for the sum, and one for the result on its way.

        Sizes are those of what senders send (`AggregationUse.size`).
        """
        return (self.senders + 2) * self.size


@dataclass(frozen=True, slots=True)
class Room:
    """What an Aggregator has left for one job, in the cycle that it would have with this job."""

    cycle_ns: int
    iterations: int
    """Of the job in this cycle."""
    free_ns: int
    transfer: int
    """Bytes that may still be moved in one cycle."""
    memory: int

    def fits(self, task: AggregationTask, senders: int) -> int:
        """The number of tasks like this one that fit; `senders`: nodes that push each of them."""
        fits = min(
            self.transfer // (2 * senders * task.size * self.iterations),
            self.memory // ((senders + 2) * task.size),
        )
        execution_ns = task.execution_ns * self.iterations
        return min(fits, self.free_ns // execution_ns) if execution_ns else fits

    def less(self, task: AggregationTask, senders: int, count: int) -> Room:
        """The room that `count` such tasks leave."""
        return Room(
            self.cycle_ns,
            self.iterations,
            self.free_ns - count * task.execution_ns * self.iterations,
            self.transfer - count * 2 * senders * task.size * self.iterations,
            self.memory - count * (senders + 2) * task.size,
        )


@dataclass(frozen=True, slots=True)
class Aggregator:
    """One Aggregator, with the tasks that it hosts."""

    number: int
    capacity: Capacity
    cycle_ns: int = 0
    """The execution cycle (C_n): at least the longest iteration of its jobs; 0: it has no job."""
    hosted: Mapping[str, HostedTasks] = field(default_factory=dict)
    """By job."""
    load_ns: int = 0
    """The CPU time of all tasks in one cycle (W_n)."""
    transfer: int = 0
    """Bytes that all tasks move in one cycle."""
    memory: int = 0
    """Bytes of buffers in use."""

    @property
    def free_ns(self) -> int:
        """The part of the cycle in which it has nothing to do, in nanoseconds."""
        return self.cycle_ns - self.load_ns

    @property
    def use(self) -> Fraction:
        """The part of the time in which it works, from 0 to 1."""
        return Fraction(self.load_ns, self.cycle_ns) if self.cycle_ns else Fraction(0)

    def room(self, demand: JobDemand, limits: AssignmentLimits) -> Room | None:
        """The room for tasks of a job; None if this job or a job here would lose too much."""
        cycle_ns = max(self.cycle_ns, demand.duration_ns)
        if not loses_less(limits.loss, cycle_ns, demand.duration_ns):
            return None
        load, transfer = self.load_ns, self.transfer
        if cycle_ns > self.cycle_ns:
            if not all(loses_less(limits.loss, cycle_ns, each.duration_ns) for each in self.hosted.values()):
                return None
            load = load_ns(cycle_ns, self.hosted.values())
            transfer = _transfer(cycle_ns, self.hosted.values())
        transfer_left = most_transfer(self.capacity, limits, cycle_ns) - transfer
        memory_left = self.capacity.memory - self.memory
        if load > cycle_ns or min(transfer_left, memory_left) < 0:
            return None
        return Room(
            cycle_ns,
            cycle_ns // demand.duration_ns,
            cycle_ns - load,
            transfer_left,
            memory_left,
        )

    def hosting(self, demand: JobDemand, tasks: Iterable[AggregationTask]) -> Aggregator:
        """This Aggregator with these tasks besides. Checks no limit."""
        known = self.hosted.get(demand.job)
        added = HostedTasks.of(demand, (*(known.tasks if known else ()), *tasks))
        return _made(self, max(self.cycle_ns, demand.duration_ns), {**self.hosted, demand.job: added})

    def without(self, job: str, limits: AssignmentLimits) -> Aggregator:
        """This Aggregator without the tasks of a job. No other job loses by that.

        The cycle becomes the longest remaining iteration, unless that slows a remaining job or breaks a
        limit. With jobs of 12, 11 and 6, the last one would run twice in a cycle of 12 but only once in one
        of 11. The paper does not say so; here the former cycle then stays.
        """
        if job not in self.hosted:
            return self
        rest = {name: each for name, each in self.hosted.items() if name != job}
        shorter = max((each.duration_ns for each in rest.values()), default=0)
        made = _made(self, shorter, rest)
        slows = any(
            shorter * (self.cycle_ns // each.duration_ns) > self.cycle_ns * (shorter // each.duration_ns)
            for each in rest.values()
        )
        return _made(self, self.cycle_ns, rest) if slows or made.broken_limit(limits) else made

    def keeping(self, demand: JobDemand, tasks: tuple[AggregationTask, ...]) -> Aggregator:
        """This Aggregator with these tasks of the job only, at least one, in the same cycle."""
        return _made(self, self.cycle_ns, {**self.hosted, demand.job: HostedTasks.of(demand, tasks)})

    def broken_limit(self, limits: AssignmentLimits) -> str:
        """The limit that the hosted tasks break, in words; "": none."""
        for each in self.hosted.values():
            if not loses_less(limits.loss, self.cycle_ns, each.duration_ns):
                return f"job {each.job} loses {float(loss(each.duration_ns, (self.cycle_ns,))):.1%}"
        if self.load_ns > self.cycle_ns:
            return f"a load of {self.load_ns} ns in a cycle of {self.cycle_ns} ns"
        if self.transfer > (most := most_transfer(self.capacity, limits, self.cycle_ns)):
            return f"{self.transfer} bytes moved in a cycle that allows {most}"
        if self.memory > self.capacity.memory:
            return f"{self.memory} bytes of buffers in {self.capacity.memory}"
        return ""


def most_transfer(capacity: Capacity, limits: AssignmentLimits, cycle_ns: int) -> int:
    """The most bytes that tasks may move in one cycle."""
    share = limits.network
    return share.numerator * capacity.network * cycle_ns // (share.denominator * SECOND)


def _transfer(cycle_ns: int, hosted: Iterable[HostedTasks]) -> int:
    return sum(cycle_ns // each.duration_ns * each.transfer for each in hosted)


def _made(former: Aggregator, cycle_ns: int, hosted: Mapping[str, HostedTasks]) -> Aggregator:
    return Aggregator(
        former.number,
        former.capacity,
        cycle_ns,
        hosted,
        load_ns(cycle_ns, hosted.values()),
        _transfer(cycle_ns, hosted.values()),
        sum(each.memory for each in hosted.values()),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """One task that another Aggregator hosts from now on."""

    job: str
    task: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class AggregatorPool:
    """All Aggregators that jobs share, and the jobs. A new Aggregator has the capacity `new`."""

    new: Capacity
    aggregators: Mapping[int, Aggregator] = field(default_factory=dict)
    """By number, in order of allocation. A number is never used again."""
    jobs: Mapping[str, JobDemand] = field(default_factory=dict)
    allocated: int = 0
    """The number of Aggregators that were ever allocated."""

    def hosts(self, job: str) -> tuple[int, ...]:
        """The numbers of the Aggregators with tasks of a job."""
        return tuple(number for number, each in self.aggregators.items() if job in each.hosted)

    def places(self, job: str) -> dict[str, int]:
        """Per task of a job, by key: the number of its Aggregator."""
        return {
            task.key: number
            for number, each in self.aggregators.items()
            if job in each.hosted
            for task in each.hosted[job].tasks
        }

    def loss(self, job: str) -> Fraction:
        """The part of its speed that a job loses by cyclic execution (L_j). Raises KeyError if unknown."""
        cycles = (each.cycle_ns for each in self.aggregators.values() if job in each.hosted)
        return loss(self.jobs[job].duration_ns, cycles)

    def hosting(self, demand: JobDemand, tasks: Mapping[int, Collection[AggregationTask]]) -> AggregatorPool:
        """This pool with tasks of a job on these Aggregators, by number, besides. Checks no limit.

        A number above `allocated` is a new Aggregator.
        """
        changed = {
            number: self.aggregators.get(number, Aggregator(number, self.new)).hosting(demand, here)
            for number, here in tasks.items()
            if here
        }
        return replace(
            self,
            aggregators={**self.aggregators, **changed},
            jobs={**self.jobs, demand.job: demand},
            allocated=max(self.allocated, *changed) if changed else self.allocated,
        )

    def without(self, job: str, limits: AssignmentLimits) -> AggregatorPool:
        """This pool without a job. Aggregators that are empty now stay."""
        rest = {name: each for name, each in self.jobs.items() if name != job}
        return replace(self.taking_off(job, self.hosts(job), limits), jobs=rest)

    def taking_off(self, job: str, numbers: Iterable[int], limits: AssignmentLimits) -> AggregatorPool:
        """This pool without the job's tasks on these Aggregators. The caller assigns the tasks again."""
        return self.with_aggregators(self.aggregators[number].without(job, limits) for number in numbers)

    def with_aggregators(self, changed: Iterable[Aggregator]) -> AggregatorPool:
        """This pool with these Aggregators in the place of those with the same numbers."""
        return replace(self, aggregators={**self.aggregators, **{each.number: each for each in changed}})

    def dropping(self, numbers: Collection[int]) -> AggregatorPool:
        """This pool without these Aggregators and what they host."""
        return replace(
            self, aggregators={n: each for n, each in self.aggregators.items() if n not in numbers}
        )

    def broken_limits(self, limits: AssignmentLimits) -> tuple[str, ...]:
        """Every limit that is broken, with its Aggregator, in words; empty: all assignments are sound."""
        broken = ((number, each.broken_limit(limits)) for number, each in self.aggregators.items())
        return tuple(f"Aggregator {number}: {why}" for number, why in broken if why)


def moves_between(before: AggregatorPool, after: AggregatorPool) -> tuple[Move, ...]:
    """The tasks of jobs in both pools that have another Aggregator in `after`, by job and task."""
    found: list[Move] = []
    for job in sorted(before.jobs.keys() & after.jobs.keys()):
        places = after.places(job)
        for task, source in sorted(before.places(job).items()):
            if places[task] != source:
                found.append(Move(job, task, source, places[task]))
    return tuple(found)
