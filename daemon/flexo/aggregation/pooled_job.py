"""A job that has asked for pool Aggregators, as pMaster keeps it: its assignment, profile and measurements.

A job's gradients are dealt to PARTS equal parts, and an assignment says how many of them each Aggregator
sums. So every part is one task of the algorithms in this package.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from flexo.aggregation.demand import AggregationTask, JobDemand
from flexo.aggregation.pool import SECOND
from flexo.aggregation.profiling import ITERATIONS, WARM_UP
from flexo.model.aggregation import AggregationUse, UsedAggregator
from flexo.model.queue import JobKey

PARTS: Final = 60
"""The equal parts of each job: 1 to 6 Aggregators, and 10, 12, 15, 20, 30 or 60, can have the same share."""
NS_PER_BYTE: Final = 0.4
"""CPU time of an Aggregator for each byte that it moves: 0.4 ms a MB, as measured."""
LONGEST_ITERATION_S: Final = 86_400.0
NOT_EXCUSED: Final = (0, -math.inf)
RATE_S: Final = 5.0
"""CPU use is measured over this time or more, and over"""
RATE_ITERATIONS: Final = 5
"""so many iterations or more, because they are reported in whole numbers, a moment apart from CPU time."""
SLOW_RATE_S: Final = 30.0
"""After this time it is measured whatever number of iterations was made."""


class Stage(enum.StrEnum):
    """What pMaster does with a job."""

    WAITING = "waits"
    """On its own Aggregators, until there is room."""
    PROFILED = "is profiled"
    """On temporary Aggregators: pool Aggregators that no other job uses meanwhile."""
    SHARED = "shares"
    RESTING = "rests"
    """On its own Aggregators, after a revert."""


@dataclass(frozen=True, slots=True)
class PoolClient:
    """A job with what pMaster must know of it: from the cluster, and from the leader's report."""

    key: JobKey
    user: str
    account: str
    use: AggregationUse
    nodes: int
    """The nodes on which it may have workers, by the cluster and flexod's grants, not by its report."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The place from which a measurement counts."""

    iterations: int
    cpu_s: float
    at: float = 0.0
    """The time."""


@dataclass(slots=True)
class PooledJob:
    """See the module. Mutable: pMaster alone has it."""

    client: PoolClient
    tenant: str
    """Only jobs with the same tenant share an Aggregator."""
    met_at: float
    """The time at which this flexod met it."""
    stage: Stage = Stage.WAITING
    version: int = 0
    why: str = "it has just come"
    attached: bool = True
    demand: JobDemand | None = None
    """The profile; None: it has none yet."""
    provisional: bool = False
    """Whether the profile is partly estimated, so that it is measured again."""
    unmeasured_from: float = 0.0
    """The time since when it is provisional."""
    shape: tuple[int, int] = (0, 0)
    """Its nodes and bytes when both were known last."""
    most_nodes: int = 0
    """The most nodes that it has had."""
    temporary: tuple[int, ...] = ()
    """The numbers of its temporary Aggregators."""
    assigned_at: float = 0.0
    """The time of its last assignment."""
    rests_until: float = 0.0
    before: Mapping[str, int] = field(default_factory=dict)
    """Per task that the last change moved: its former Aggregator. Empty: the job arrived."""
    changed: int = 0
    """Orders the last changes of all jobs."""
    mark: Mark | None = None
    breach_from: int | None = None
    """The iteration at which its present breach of the loss limit was first seen; None: there is none."""
    own_iteration_s: float = 0.0
    """The time of an iteration on its own Aggregators, at its present size; 0: not measured."""
    blames: JobKey | None = None
    """The job that leaves its Aggregators, because this one lost too much; None: there is none."""
    excused_until: tuple[int, float] = NOT_EXCUSED
    """Iteration and time until which its durations say nothing of its present neighbours."""
    used_cores: float = 0.0
    """CPU cores that its Aggregators have spent on it lately. If its iterations take longer than its profile
    says, those that they would have spent at the profile's pace: a busy machine hides no greedy job."""
    greedy_rates: int = 0
    """The latest measurements of `used_cores`, one after the other, that exceed what the profile allows."""
    rate_mark: Mark | None = None
    """The place from which `used_cores` is measured next."""

    @property
    def key(self) -> JobKey:
        """The job."""
        return self.client.key

    @property
    def name(self) -> str:
        """The job's name in tokens, statuses and the pool."""
        return str(self.client.key)

    @property
    def use(self) -> AggregationUse:
        """The leader's last report."""
        return self.client.use

    @property
    def current(self) -> bool:
        """Whether the last report is about the last assignment."""
        return self.attached and self.use.version == self.version

    @property
    def since_change(self) -> int:
        """Iterations since its last assignment; 0 while it has not taken the assignment over."""
        return self.use.iterations if self.current else 0

    def exceeds(self, size: int, factor: float) -> bool:
        """Whether a job that shares Aggregators sends so many times more bytes than its profile says.

        An estimated profile says nothing: the job is still to be measured.
        """
        if self.stage is not Stage.SHARED or self.demand is None or self.provisional:
            return False
        return size > factor * self.planned_bytes

    @property
    def planned_bytes(self) -> int:
        """The bytes of an iteration by its profile; 0: it has none."""
        return 0 if self.demand is None else sum(task.size for task in self.demand.tasks)

    @property
    def planned_cores(self) -> float:
        """The CPU cores that it uses by its profile; 0: it has none."""
        return 0.0 if self.demand is None else self.demand.execution_ns / self.demand.duration_ns

    @property
    def is_being_profiled(self) -> bool:
        """Whether it will leave its temporary Aggregators for others once it is profiled."""
        return self.attached and self.stage is Stage.PROFILED and self.demand is None

    @property
    def loss(self) -> float:
        """The measured part of its speed that it loses now; 0 if nothing was measured."""
        if self.demand is None or not self.current or self.use.iteration_s <= 0:
            return 0.0
        return 1 - self.demand.duration_ns / (self.use.iteration_s * SECOND)

    def note_own_time(self) -> None:
        """Remember the time of an iteration, if its own Aggregators sum it now."""
        if self.current and not self.use.used and self.use.iteration_s > 0:
            self.own_iteration_s = self.use.iteration_s

    @property
    def servers(self) -> int:
        """The dedicated Aggregators that it would reserve."""
        return max(1, self.use.reserves)

    def measured(self, cpu_s: float) -> JobDemand | None:
        """The profile since the mark, if enough iterations were made; None: not yet.

        `cpu_s`: CPU seconds that its Aggregators have spent on it. The first call after a change sets the
        mark, once the first iterations are over: connections and memory are new.
        """
        if not self.current or self.since_change < WARM_UP or not self.knows_itself:
            return None
        if self.mark is None or self.mark.cpu_s > cpu_s or self.mark.iterations > self.use.iterations:
            self.mark = Mark(self.use.iterations, cpu_s)
        iterations = self.use.iterations - self.mark.iterations
        if iterations < ITERATIONS:
            return None
        spent_ns = round((cpu_s - self.mark.cpu_s) * SECOND / iterations)
        return demand_of(self, self.use.iteration_s, spent_ns or estimated_ns(self.use))

    def rate(self, now: float, cpu_s: float) -> bool:
        """Measure `used_cores`, if it is time. Returns whether it was.

        `cpu_s`: CPU seconds that its Aggregators have spent on it.
        """
        mark = self.rate_mark
        if mark is None or mark.cpu_s > cpu_s or mark.iterations > self.since_change:
            self.rate_mark = Mark(self.since_change, cpu_s, now)
            return False
        made, taken_s, spent_s = self.since_change - mark.iterations, now - mark.at, cpu_s - mark.cpu_s
        if taken_s < RATE_S or (made < RATE_ITERATIONS and taken_s < SLOW_RATE_S):
            return False
        self.used_cores = spent_s / taken_s
        if self.demand is not None and made >= RATE_ITERATIONS:
            pace_s = min(taken_s, made * self.demand.duration_ns / SECOND)
            self.used_cores = spent_s / pace_s
        self.rate_mark = Mark(self.since_change, cpu_s, now)
        return True

    def estimated(self) -> JobDemand | None:
        """The profile of a job that ran alone on its own Aggregators, with an estimate of their CPU time."""
        if not self.current or self.since_change < WARM_UP + ITERATIONS or not self.knows_itself:
            return None
        return demand_of(self, self.use.iteration_s, estimated_ns(self.use))

    @property
    def knows_itself(self) -> bool:
        """Whether its leader has measured what a profile needs."""
        use = self.use
        return use.size > 0 and use.nodes > 0 and 0 < use.iteration_s <= LONGEST_ITERATION_S


def estimated_ns(use: AggregationUse) -> int:
    """An estimate of the CPU time of one iteration's sums: each node pushes all bytes, and pulls all sums."""
    return round(2 * use.nodes * use.size * NS_PER_BYTE)


def demand_of(job: PooledJob, iteration_s: float, execution_ns: int) -> JobDemand:
    """The demand of a job: equal parts, with this CPU time together."""
    size = -(-job.use.size // PARTS)
    each = -(-execution_ns // PARTS)
    tasks = tuple(AggregationTask(f"part {number}", size, each) for number in range(PARTS))
    return JobDemand(job.name, max(1, round(iteration_s * SECOND)), job.use.nodes, tasks, job.servers)


def reduced(shares: Mapping[str, int]) -> tuple[UsedAggregator, ...]:
    """Shares in lowest terms, by the name of the Aggregator."""
    divisor = reduce(math.gcd, shares.values(), 0) or 1
    return tuple(UsedAggregator(name, shares[name] // divisor) for name in sorted(shares))


def dealt(used: tuple[UsedAggregator, ...], numbers: Mapping[str, int]) -> dict[int, list[int]]:
    """The indexes of a job's parts by the number of the Aggregator, as the job itself reports its shares."""
    total, done, begun = sum(each.share for each in used), 0, 0
    found: dict[int, list[int]] = {}
    for each in used:
        done += each.share
        end = done * PARTS // total
        found.setdefault(numbers[each.name], []).extend(range(begun, end))
        begun = end
    return found
