"""Assigns the tasks of a job to Aggregators by best fit (AutoPS, pseudocode 1, corrected).

An Aggregator is eligible if no job there and not the new job itself would lose LossLimit or more. Its load,
its traffic and its buffers must hold the task. Of the eligible ones, the task goes to the one with the least
free time in its cycle, and to a new Aggregator if there is none.

The corrections: the paper checks only the jobs that are there; it rounds the number of iterations up where
only whole ones fit; and it compares the free time with one execution where a task needs one for each
iteration in the cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from flexo.aggregation.demand import AggregationTask, JobDemand, by_execution
from flexo.aggregation.pool import Aggregator, AggregatorPool, AssignmentLimits, Room


class TaskTooLarge(Exception):
    """A task that an empty Aggregator cannot host."""


@dataclass(slots=True)
class _Candidate:
    """An eligible Aggregator in the course of one assignment. Mutable: belongs to one call."""

    number: int
    room: Room
    execution_ns: int
    """The CPU time of this job's tasks here, in one iteration."""
    chosen: list[AggregationTask] = field(default_factory=list)

    def take(self, tasks: Sequence[AggregationTask], senders: int) -> None:
        self.room = self.room.less(tasks[0], senders, len(tasks))
        self.execution_ns += tasks[0].execution_ns * len(tasks)
        self.chosen += tasks


def assign(
    pool: AggregatorPool,
    demand: JobDemand,
    limits: AssignmentLimits,
    *,
    tasks: Iterable[AggregationTask] | None = None,
    among: Collection[int] | None = None,
    most_new: int | None = None,
) -> AggregatorPool | None:
    """Best fit for a job: the pool with its tasks, or None if they need more than `most_new` Aggregators.

    `tasks`: a part of the job's tasks; None: all. `among`: numbers of the Aggregators that may host them, new
    ones aside; None: all. `most_new`: the most Aggregators to allocate; None: no limit. The longest tasks go
    first. No Aggregator gets more of the job than a dedicated server would have, rounded up to whole tasks.
    Raises TaskTooLarge if a task does not fit on an empty Aggregator.
    """
    most_here_ns = -(-demand.execution_ns // demand.servers)
    wanted = demand.tasks if tasks is None else tasks
    chosen, left = _best_fit(pool, demand, limits, wanted, among, most_new, most_here_ns)
    return None if left else pool.hosting(demand, chosen)


def assign_what_fits(
    pool: AggregatorPool,
    demand: JobDemand,
    limits: AssignmentLimits,
    tasks: Iterable[AggregationTask],
    among: Collection[int],
    most_new: int | None,
) -> tuple[AggregatorPool, list[AggregationTask]]:
    """Best fit without a share for each server: the pool with the tasks that fit, and the other tasks."""
    chosen, left = _best_fit(pool, demand, limits, tasks, among, most_new, demand.execution_ns)
    return pool.hosting(demand, chosen), left


def _best_fit(
    pool: AggregatorPool,
    demand: JobDemand,
    limits: AssignmentLimits,
    tasks: Iterable[AggregationTask],
    among: Collection[int] | None,
    most_new: int | None,
    most_here_ns: int,
) -> tuple[dict[int, list[AggregationTask]], list[AggregationTask]]:
    """Tasks by Aggregator, and tasks that fit on none. `most_here_ns`: CPU time of the job on one of them."""
    candidates = list(_candidates(pool, demand, limits, among))
    known = len(candidates)
    over: list[AggregationTask] = []
    for _, equal in groupby(by_execution(tasks), key=lambda task: (task.execution_ns, task.size)):
        left = list(equal)
        # the tightest stays the tightest while it takes tasks, so equal tasks can go there together
        candidates.sort(key=lambda each: (each.room.free_ns, each.number))
        for each in candidates:
            if count := min(len(left), _fitting(each, left[0], demand.senders, most_here_ns)):
                each.take(left[:count], demand.senders)
                del left[:count]
                if not left:
                    break
        while left and (most_new is None or len(candidates) - known < most_new):
            number = pool.allocated + len(candidates) - known + 1
            each = _Candidate(number, _empty_room(pool, demand, limits, left[0]), 0)
            count = min(len(left), _fitting(each, left[0], demand.senders, most_here_ns))
            each.take(left[:count], demand.senders)
            del left[:count]
            candidates.append(each)
        over += left
    return {each.number: each.chosen for each in candidates}, over


def assign_evenly(
    pool: AggregatorPool, demand: JobDemand, limits: AssignmentLimits, among: Sequence[int]
) -> AggregatorPool | None:
    """Each task to the Aggregator in `among` that is used least afterwards; None if some task fits on none.

    Among equals, the newest one gets the task. A number above `pool.allocated` is a new Aggregator. Use it
    where best fit has turned out to be too tight.
    """
    by_number = {number: pool.aggregators.get(number, Aggregator(number, pool.new)) for number in among}
    candidates = [
        _Candidate(number, room, 0)
        for number, each in by_number.items()
        if (room := each.room(demand, limits)) is not None
    ]
    for task in by_execution(demand.tasks):
        fitting = [each for each in candidates if each.room.fits(task, demand.senders)]
        if not fitting:
            return None
        best = min(fitting, key=lambda each: (_use_after(each.room, task), -each.number))
        best.take([task], demand.senders)
    return pool.hosting(demand, {each.number: each.chosen for each in candidates})


def _use_after(room: Room, task: AggregationTask) -> float:
    """The use with the task. It only orders candidates, so that rounding breaks no limit."""
    return 1 - (room.free_ns - task.execution_ns * room.iterations) / room.cycle_ns


def _candidates(
    pool: AggregatorPool, demand: JobDemand, limits: AssignmentLimits, among: Collection[int] | None
) -> Iterator[_Candidate]:
    for number, each in pool.aggregators.items():
        if among is not None and number not in among:
            continue
        room = each.room(demand, limits)
        if room is not None:
            here = each.hosted.get(demand.job)
            yield _Candidate(number, room, here.execution_ns if here else 0)


def _fitting(each: _Candidate, task: AggregationTask, senders: int, most_here_ns: int) -> int:
    """The number of tasks like this one that an Aggregator takes: what fits, and no more than a dedicated
    server would have, rounded up to whole tasks."""
    fits = each.room.fits(task, senders)
    if not fits or not task.execution_ns:
        return fits
    return min(fits, -(-max(0, most_here_ns - each.execution_ns) // task.execution_ns))


def _empty_room(
    pool: AggregatorPool, demand: JobDemand, limits: AssignmentLimits, task: AggregationTask
) -> Room:
    room = Aggregator(0, pool.new).room(demand, limits)
    if room is None or not room.fits(task, demand.senders):
        raise TaskTooLarge(
            f"job {demand.job}, task {task.key}: {task.size} bytes from {demand.senders} senders and"
            f" {task.execution_ns} ns of CPU in iterations of {demand.duration_ns} ns exceed an empty"
            " Aggregator; use smaller pieces, or let this job use its own all-reduce"
        )
    return room
