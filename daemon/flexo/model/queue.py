"""A cluster's queue: jobs, their keys and owners, and the reasons why they wait."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, NewType

from flexo.model.nodes import Partition
from flexo.model.ranges import Range
from flexo_protos.resources import Resources, rounded_up

Principal = NewType("Principal", str)
"""The identity of a job's owner, as callers prove it (docs/explanation/security.md): with MUNGE, a uid in
digits."""


class JobKey(NamedTuple):
    """A job's stable number (`QueuedJob.job_id`) and its restart count. A requeued base is a new job.

    It is a tuple because tuples have the quickest hash: each cycle looks up tens of thousands of keys.
    """

    job_id: int
    restart_count: int = 0

    def __str__(self) -> str:
        return f"{self.job_id}.r{self.restart_count}" if self.restart_count else str(self.job_id)


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """The user's declaration at submission, as the cluster recorded it in a place that users cannot write."""

    workers: Range
    fungible: bool = False
    batch: Range | None = None
    heterogeneous: bool = False
    opportunistic: bool = False
    """Whether its base has no workers and no GPUs: all its workers are in satellites (AntMan)."""
    auto: bool = False
    """Whether an opportunistic job tries idle GPUs first."""
    cohost: bool = False
    """Whether the job lets opportunistic jobs use its GPUs."""

    @property
    def base_workers(self) -> int:
        """The workers of the base."""
        return 0 if self.opportunistic else self.workers.min

    @property
    def requested_workers(self) -> int:
        """The workers whose resources the base requests. An opportunistic base requests those of one worker,
        without its GPU."""
        return 1 if self.opportunistic else self.workers.min


class JobState(enum.Enum):
    """The states of a job in a cluster's queue that flexo distinguishes."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    OTHER = "OTHER"


class WaitReason(enum.Enum):
    """The reason why a pending job does not start. Only a cluster's adapter sets it.

    `QueuedJob.reason` has the cluster's own word.
    """

    NONE = "it does not wait"
    RESOURCES = "for resources"
    TURN = "for its turn"
    """Jobs that come first wait for resources."""
    HELD = "held"
    DEPENDENCY = "for another job"
    START_TIME = "for its time to start"
    LIMIT = "for a limit of its user, account, queue or array"
    LICENSES = "for licenses"
    RESERVATION = "for a reservation"
    IMPOSSIBLE = "for what it can never have"
    OTHER = "for something else"
    """A reason that the adapter does not know: more resources may help or not."""

    @property
    def more_nodes_may_help(self) -> bool:
        """Whether the job may start once there are more idle nodes."""
        return self.is_for_resources or self is WaitReason.OTHER

    @property
    def is_for_resources(self) -> bool:
        """Whether the job, or those before it, wait for nothing but resources."""
        return self in (WaitReason.RESOURCES, WaitReason.TURN)


@dataclass(frozen=True, slots=True)
class SatelliteTag:
    """The grant of a satellite, as the satellite's record in the cluster names it. It survives any restart of
    flexod."""

    base: JobKey
    grant_id: str
    workers: int
    """0: it runs an Aggregator."""


@dataclass(frozen=True, slots=True)
class Request:
    """A part of a job's request: `units` times `unit`, each unit on one node."""

    unit: Resources
    units: int
    per_node: int
    """The most units on one node."""
    min_nodes: int = 1
    """The fewest nodes that have a unit."""
    whole_nodes: bool = False
    """Whether the job also holds the remaining resources of these nodes."""
    required_nodes: frozenset[str] = frozenset()
    """Nodes that must be among the job's nodes."""
    divisible: bool = False
    """Whether the job can start with fewer units; otherwise it needs all of them at once."""

    @classmethod
    def on_each_node(
        cls,
        nodes: int,
        unit: Resources,
        whole_nodes: bool = False,
        required_nodes: frozenset[str] = frozenset(),
    ) -> Request:
        """A request for one `unit` on each of `nodes` nodes."""
        return cls(unit, nodes, 1, nodes, whole_nodes, required_nodes)

    @classmethod
    def in_all(
        cls, total: Resources, min_nodes: int = 1, required_nodes: frozenset[str] = frozenset()
    ) -> Request:
        """A request for `total`, spread in any way. A unit is one GPU with its part of the rest, or, without
        GPUs, one CPU."""
        units = rounded_up(total.gpus, 1) or max(1, total.cpus)
        return cls(total.share(units), units, units, min(min_nodes, units), required_nodes=required_nodes)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A pending or running job as the cluster's queue shows it."""

    job_id: int
    """A stable number, the same for all runs of the job. flexo stores and sends it."""
    owner: Principal
    user: str
    """The owner's name, for people."""
    partitions: tuple[str, ...]
    """One partition of a running job; a pending job may name several."""
    state: JobState
    wait: WaitReason
    reason: str
    """The cluster's own word for the reason why the job waits."""
    priority: int
    submitted_at: float
    started_at: float | None
    """The start; for a pending job, the start that the cluster plans, if it states one."""
    time_limit_s: int | None
    """The time limit in seconds; None: unlimited."""
    nodes: tuple[str, ...]
    """Nodes on which the job runs; empty while it waits."""
    num_nodes: int
    resources: Resources
    """All resources that the job holds or, while it waits, requests."""
    requests: tuple[Request, ...] = ()
    """The parts of the job's request. The job starts once all are met, a divisible one by at least one
    unit."""
    excluded_nodes: frozenset[str] = frozenset()
    features: str = ""
    restart_count: int = 0
    elastic: ElasticRequest | None = None
    satellite: SatelliteTag | None = None
    account: str = ""
    """The account that the cluster's accounting charges; "": there is no accounting."""
    name: str = ""
    """The name that its user chose, for people."""
    remedy: str = ""
    """What lets the pending job start, as a sentence with the cluster's commands; "": nothing but time."""
    is_whole: bool = True
    """Whether the record is one job: it neither stands for several jobs, nor for a part of a job."""
    unreadable: str = ""
    """The reason why flexod cannot read the job's record; "": it can.

    The other fields of an unreadable job are from an earlier record, or empty."""
    identifier: str = ""
    """The cluster's identifier of the job, as commands take it."""
    time_limit_id: str = ""
    """The identifier of the time limit that flexod extends: the job's own, or one that the satellites of its
    base share."""
    key: JobKey = field(init=False, repr=False, compare=False)
    """flexo's key of this job. It is made once, because each cycle reads the keys of thousands of jobs many
    times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", JobKey(self.job_id, self.restart_count))
        if not self.identifier:
            object.__setattr__(self, "identifier", str(self.job_id))
        if not self.time_limit_id:
            object.__setattr__(self, "time_limit_id", self.identifier)

    @property
    def required_nodes(self) -> frozenset[str]:
        """Nodes that must be among the job's nodes."""
        return frozenset().union(*(request.required_nodes for request in self.requests))

    @property
    def exclusive(self) -> bool:
        """Whether the job holds its nodes alone."""
        return any(request.whole_nodes for request in self.requests)


def in_order_of_start(jobs: Iterable[QueuedJob], partitions: Iterable[Partition]) -> list[QueuedJob]:
    """Pending jobs in the order in which the cluster considers them."""
    tiers = {partition.name: partition.priority_tier for partition in partitions}

    @cache
    def tier(names: Sequence[str]) -> int:
        return max((tiers.get(name, 0) for name in names), default=0)

    def order(job: QueuedJob) -> tuple[int, int, float, int]:
        return -tier(job.partitions), -job.priority, job.submitted_at, job.job_id

    return sorted(jobs, key=order)
