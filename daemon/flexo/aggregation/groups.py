"""Aggregator groups: parts of all Aggregators that are scaled and assigned apart from each other.

AutoPS, section 3.3.3, where a group is called a cluster. A job has all its tasks in one group, so an arrival
looks at the Aggregators of one group only, and a change disturbs no job of another group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from flexo.aggregation.assignment import assign
from flexo.aggregation.demand import Capacity, JobDemand
from flexo.aggregation.pool import AggregatorPool, AssignmentLimits
from flexo.aggregation.scaling import Scaled, ScalingRules, at_period_end, on_arrival, on_exit


def demanded(demand: JobDemand) -> float:
    """The CPU cores that a job keeps busy, on average over an iteration."""
    return demand.execution_ns / demand.duration_ns


def free_cores(pool: AggregatorPool) -> float:
    """The CPU cores that the Aggregators of a pool leave idle, on average over their cycles.

    It only chooses a group, so that rounding breaks no limit.
    """
    return math.fsum(
        each.free_ns / each.cycle_ns if each.cycle_ns else 1 for each in pool.aggregators.values()
    )


@dataclass(frozen=True, slots=True)
class AggregatorGroups:
    """All groups by number. The paper prints neither their number nor their size."""

    new: Capacity
    """The capacity of a new Aggregator."""
    most_aggregators: int = 128
    """The size from which a group takes only jobs that fit on the Aggregators it has."""
    groups: Mapping[int, Scaled] = field(default_factory=dict)
    begun: int = 0
    """The number of groups that were ever begun."""

    def group_of(self, job: str) -> int | None:
        """The number of a job's group; None: it has none."""
        for number, state in self.groups.items():
            if job in state.pool.jobs or any(each.job == job for each in state.waiting):
                return number
        return None

    def choose(self, demand: JobDemand, limits: AssignmentLimits) -> int:
        """The group for a new job: enough free cores, and the least of them (best fit).

        Free cores do not say whether the tasks fit, so a group of `most_aggregators` is chosen only if they
        do. If no group has enough, the smallest one below that size grows. If there is none, a new group
        begins; its number is `begun + 1`.
        """
        needed = demanded(demand)
        free = {number: free_cores(state.pool) for number, state in self.groups.items()}
        sizes = {number: len(state.pool.aggregators) for number, state in self.groups.items()}
        for number in sorted(free, key=lambda number: (free[number], number)):
            if free[number] >= needed and (
                sizes[number] < self.most_aggregators
                or assign(self.groups[number].pool, demand, limits, most_new=0) is not None
            ):
                return number
        small = [number for number in sizes if sizes[number] < self.most_aggregators]
        return min(small, key=lambda number: (sizes[number], number)) if small else self.begun + 1

    def on_arrival(self, demand: JobDemand, rules: ScalingRules) -> AggregatorGroups:
        """Assign a profiled job within the group that `choose` names."""
        number = self.choose(demand, rules.limits)
        state = self.groups.get(number) or Scaled(AggregatorPool(self.new))
        return self._with(number, on_arrival(state, demand, rules))

    def on_exit(self, job: str, rules: ScalingRules) -> AggregatorGroups:
        """Remove a job that has ended."""
        number = self.group_of(job)
        return self if number is None else self._with(number, on_exit(self.groups[number], job, rules))

    def at_period_end(self, rules: ScalingRules, resting: Collection[str] = ()) -> AggregatorGroups:
        """Scale every group. Groups without a job end."""
        scaled = {number: at_period_end(state, rules, resting) for number, state in self.groups.items()}
        return replace(self, groups={number: state for number, state in scaled.items() if state.pool.jobs})

    @property
    def aggregators(self) -> int:
        """The Aggregators of all groups."""
        return sum(len(state.pool.aggregators) for state in self.groups.values())

    def _with(self, number: int, state: Scaled) -> AggregatorGroups:
        return replace(self, groups={**self.groups, number: state}, begun=max(self.begun, number))
