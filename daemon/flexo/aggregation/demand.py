"""The aggregation that a job needs, as profiled, and the capacity of an Aggregator. Frozen types.

Times are whole nanoseconds and sizes whole bytes, so that every comparison with a limit is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LARGEST_TASK: Final = 4_000_000
"""The most bytes of one task. Smaller tasks fill Aggregators with less left over."""


@dataclass(frozen=True, slots=True)
class AggregationTask:
    """The aggregation of one tensor, or of one piece of a tensor, once in each iteration.

    Raises ValueError if the size is not above 0, or if the execution time is below 0.
    """

    key: str
    """The name of the tensor and of the piece: unique within the job, and the same in each iteration."""
    size: int
    """Bytes."""
    execution_ns: int
    """The CPU time of one aggregation (e_t in the paper), in nanoseconds."""

    def __post_init__(self) -> None:
        if self.size <= 0 or self.execution_ns < 0:
            raise ValueError(
                f"task {self.key}: {self.size} bytes in {self.execution_ns} ns; a task has at least 1 byte"
                " and no negative time: profile the job again"
            )


@dataclass(frozen=True, slots=True)
class JobDemand:
    """A job with its profile: what Aggregators need to know of it.

    Raises ValueError if the duration, the senders or the servers are not above 0, or if a key comes twice.
    """

    job: str
    duration_ns: int
    """The duration of one iteration where the job shares no Aggregator (D_j), in nanoseconds."""
    senders: int
    """The nodes that push each tensor (n_j): workers of one node are summed before they push."""
    tasks: tuple[AggregationTask, ...]
    servers: int = 1
    """The dedicated servers that the job would reserve. Its tasks are spread over so many Aggregators, so
    that none carries more of the job than a dedicated server."""

    def __post_init__(self) -> None:
        if min(self.duration_ns, self.senders, self.servers) <= 0:
            raise ValueError(
                f"job {self.job}: iterations of {self.duration_ns} ns, {self.senders} senders,"
                f" {self.servers} servers; all are above 0: profile the job again"
            )
        if len({task.key for task in self.tasks}) < len(self.tasks):
            raise ValueError(f"job {self.job}: two tasks have the same key; give each its own")

    @property
    def execution_ns(self) -> int:
        """The CPU time of all tasks in one iteration, in nanoseconds."""
        return sum(task.execution_ns for task in self.tasks)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one Aggregator has for the tasks of all jobs, besides one CPU core."""

    network: int
    """The bandwidth of its network interface in each direction (B), in bytes a second."""
    memory: int
    """Bytes for buffers (M)."""


def piece_sizes(tensor: int, largest: int = LARGEST_TASK) -> tuple[int, ...]:
    """The sizes in bytes of the pieces of a tensor of `tensor` bytes: as few as possible, none above
    `largest`, and all equal but for one byte."""
    pieces = -(-tensor // largest)
    return tuple((tensor + index) // pieces for index in range(pieces))


def by_execution(tasks: Iterable[AggregationTask]) -> list[AggregationTask]:
    """The tasks in the order in which they are assigned: the longest first, equal ones side by side."""
    return sorted(tasks, key=lambda task: (-task.execution_ns, -task.size, task.key))
