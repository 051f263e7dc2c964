"""Replays jobs with the algorithms of flexo.aggregation, and counts Aggregators and dedicated servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush

from flexo.aggregation.groups import AggregatorGroups
from flexo.aggregation.profiling import ITERATIONS, WARM_UP
from flexo.aggregation.scaling import ScalingRules
from flexo_bench.service.philly_jobs import AGGREGATOR, TracedJob

SAMPLE_S = 60.0
"""The paper samples each minute."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the pool is scaled."""

    rules: ScalingRules = field(default_factory=ScalingRules)
    period_s: float = 600.0
    """Seconds between two scalings; 0: at each exit."""
    group_size: int = 128
    """The size of an Aggregator group."""


@dataclass(frozen=True, slots=True)
class Savings:
    """Aggregators beside the dedicated servers of the same jobs."""

    saved: float
    """The part of the servers' time that is saved. Each server and each Aggregator reserves one core."""
    below_one: float
    """The part of the samples in which there are fewer Aggregators than servers would be."""
    worst: float
    """The largest ratio of Aggregators to servers in a sample."""
    mean_servers: float
    mean_aggregators: float
    groups: int
    """The most Aggregator groups at a time."""
    moves: int
    """Jobs that recycling has moved, counted once for each time."""


class _Kind(IntEnum):
    """In the order in which events of the same instant are carried out."""

    EXIT = 0
    PROFILED = 1
    PERIOD = 2
    ARRIVAL = 3


Window = tuple[float, float]
"""The span of time that counts, in seconds since the first job of the trace."""


def replay(jobs: Sequence[TracedJob], policy: Policy, counted: Window = (0.0, math.inf)) -> Savings:
    """Carry out all arrivals and exits in order of time.

    A job is on temporary Aggregators of its own, as many as its servers, until it is profiled. Jobs that end
    before never share.
    """
    replayed = _Replay(jobs, policy, counted)
    replayed.run()
    return replayed.savings()


class _Replay:
    """One replay. Mutable: belongs to one call of `replay`."""

    def __init__(self, jobs: Sequence[TracedJob], policy: Policy, counted: Window) -> None:
        self._policy = policy
        self._counted = counted
        self._jobs = jobs
        self._events: list[tuple[float, _Kind, int]] = []
        for index, job in enumerate(jobs):
            self._events.append((job.begins, _Kind.ARRIVAL, index))
            self._events.append((job.ends, _Kind.EXIT, index))
            if (profiled := job.begins + self._iterations_s(index, WARM_UP + ITERATIONS)) < job.ends:
                self._events.append((profiled, _Kind.PROFILED, index))
        heapify(self._events)
        self._groups = AggregatorGroups(AGGREGATOR, policy.group_size)
        self._index = {job.demand.job: index for index, job in enumerate(jobs)}
        self._moved_at: dict[str, float] = {}
        self._temporary: dict[int, int] = {}
        self._servers = 0
        self._next_period = math.inf
        self._now = 0.0
        self._server_s = self._aggregator_s = self._counted_s = 0.0
        self._samples = self._below = 0
        self._worst = 0.0
        self._most_groups = self._moves = 0

    def run(self) -> None:
        """Carry out all events."""
        while self._events:
            at, kind, index = heappop(self._events)
            self._count_until(at)
            if kind is _Kind.PERIOD:
                self._next_period = math.inf
                self._scale()
            elif kind is _Kind.ARRIVAL:
                self._servers += self._jobs[index].servers
                self._temporary[index] = self._jobs[index].servers
            elif kind is _Kind.PROFILED:
                self._groups = self._groups.on_arrival(self._jobs[index].demand, self._policy.rules)
                self._forget_temporary()
            else:
                self._exit(index)
            self._most_groups = max(self._most_groups, len(self._groups.groups))

    def savings(self) -> Savings:
        """The result, after all events."""
        span_s = self._counted_s
        return Savings(
            1 - self._aggregator_s / self._server_s,
            self._below / self._samples if self._samples else math.nan,
            self._worst,
            self._server_s / span_s,
            self._aggregator_s / span_s,
            self._most_groups,
            self._moves,
        )

    def _exit(self, index: int) -> None:
        job = self._jobs[index].demand
        self._servers -= self._jobs[index].servers
        self._temporary.pop(index, None)
        self._moved_at.pop(job.job, None)
        if self._groups.group_of(job.job) is None:
            return
        self._groups = self._groups.on_exit(job.job, self._policy.rules)
        if self._policy.period_s:
            self._wake()
        else:
            self._scale()

    def _wake(self) -> None:
        """Scale at the end of this period. Where nothing has changed, scaling would change nothing."""
        if self._next_period == math.inf and self._policy.period_s:
            self._next_period = (self._now // self._policy.period_s + 1) * self._policy.period_s
            heappush(self._events, (self._next_period, _Kind.PERIOD, 0))

    def _scale(self) -> None:
        resting = {job for job, at in self._moved_at.items() if self._rests(job, at)}
        before = self._groups
        self._groups = before.at_period_end(self._policy.rules, resting)
        moved = {
            job
            for number, state in before.groups.items()
            for gone in state.pool.aggregators.keys() - self._kept(number)
            for job in state.pool.aggregators[gone].hosted
        }
        self._moves += len(moved)
        self._moved_at = {job: self._moved_at[job] for job in resting} | dict.fromkeys(moved, self._now)
        if resting:
            self._wake()
        self._forget_temporary()

    def _kept(self, number: int) -> set[int]:
        state = self._groups.groups.get(number)
        return set(state.pool.aggregators) if state else set()

    def _rests(self, job: str, moved_at: float) -> bool:
        rest_s = self._iterations_s(self._index[job], self._policy.rules.limits.probation)
        return self._now < moved_at + rest_s

    def _iterations_s(self, index: int, iterations: int) -> float:
        return iterations * self._jobs[index].demand.duration_ns / 1e9

    def _forget_temporary(self) -> None:
        """Release the temporary Aggregators of jobs that have others now."""
        waiting = {each.job for state in self._groups.groups.values() for each in state.waiting}
        if waiting:
            self._wake()
        for index in list(self._temporary):
            job = self._jobs[index].demand.job
            if job not in waiting and self._groups.group_of(job) is not None:
                del self._temporary[index]

    def _count_until(self, at: float) -> None:
        begin, end = (min(max(time, self._counted[0]), self._counted[1]) for time in (self._now, at))
        self._now = at
        aggregators = self._groups.aggregators + sum(self._temporary.values())
        self._counted_s += end - begin
        self._aggregator_s += (end - begin) * aggregators
        self._server_s += (end - begin) * self._servers
        samples = math.ceil(end / SAMPLE_S) - math.ceil(begin / SAMPLE_S)
        if samples and self._servers:
            self._samples += samples
            if aggregators < self._servers:
                self._below += samples
            self._worst = max(self._worst, aggregators / self._servers)
