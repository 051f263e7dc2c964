"""Profiles a new job on temporary Aggregators of its own, before it shares Aggregators with other jobs.

AutoPS, sections 3.3.1 and 5.1: a job runs alone first, on as many Aggregators as it would have dedicated
servers. The durations measured there are what it must not lose later. The paper prints 100 iterations for
the monitoring of changes; the same number is taken for profiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flexo.aggregation.demand import AggregationTask, JobDemand

ITERATIONS: Final = 100
"""Iterations that count for a profile."""
WARM_UP: Final = 10
"""First iterations that do not count: connections, caches and memory are new."""


def deal(sizes: Mapping[str, int], servers: int) -> tuple[tuple[str, ...], ...]:
    """The tasks of a job that is not profiled yet, dealt to `servers` temporary Aggregators.

    `sizes`: bytes by key. The largest task goes first, each to the Aggregator with the fewest bytes.
    """
    bytes_of = [0] * servers
    dealt: list[list[str]] = [[] for _ in range(servers)]
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        least = min(range(servers), key=lambda index: (bytes_of[index], index))
        bytes_of[least] += sizes[key]
        dealt[least].append(key)
    return tuple(tuple(keys) for keys in dealt)


@dataclass(slots=True)
class JobProfiler:
    """Collects what a job measures in its first iterations. Mutable: one for each job and size of the job.

    Execution times change with the number of senders, so a resized job is profiled again.
    """

    job: str
    sizes: Mapping[str, int]
    """Bytes of each task, by key."""
    senders: int
    servers: int
    iterations: int = ITERATIONS
    warm_up: int = WARM_UP
    _seen: int = 0
    _durations: list[int] = field(default_factory=list)
    _executions: dict[str, int] = field(default_factory=dict)

    def note(self, duration_ns: int, executions_ns: Mapping[str, int]) -> None:
        """Record one iteration: its duration, and the CPU time of each task. Raises KeyError if a task is
        missing."""
        self._seen += 1
        if self._seen <= self.warm_up or self.done:
            return
        self._durations.append(duration_ns)
        for key in self.sizes:
            self._executions[key] = self._executions.get(key, 0) + executions_ns[key]

    @property
    def done(self) -> bool:
        """Whether enough iterations were recorded."""
        return len(self._durations) >= self.iterations

    def demand(self) -> JobDemand:
        """The profile. Raises ValueError if it is not done.

        The duration is the median, so that stragglers do not count. Execution times are means, rounded up:
        their sums must fit into the cycle on average.
        """
        if not self.done:
            raise ValueError(
                f"job {self.job}: {len(self._durations)} of {self.iterations} iterations are profiled;"
                " wait for the others"
            )
        tasks = tuple(
            AggregationTask(key, size, -(-self._executions[key] // self.iterations))
            for key, size in self.sizes.items()
        )
        duration_ns = int(statistics.median_low(self._durations))
        return JobDemand(self.job, duration_ns, self.senders, tasks, self.servers)
