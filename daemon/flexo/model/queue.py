"""A cluster's queue: jobs by their keys, who owns them, and why they wait."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from flexo.model.ranges import Range
from flexo_protos.resources import Resources, rounded_up

Principal = NewType("Principal", str)
"""Who owns a job, as callers prove it (docs/security.md): with MUNGE a uid, in digits."""


class JobKey(NamedTuple):
    """A job, by a stable number (`QueuedJob.job_id`). A requeued base is a new job: its restarts are counted.

    A tuple, because each turn looks tens of thousands of them up, and those have the quickest hash.
    """

    job_id: int
    restart_count: int = 0

    def __str__(self) -> str:
        return f"{self.job_id}.r{self.restart_count}" if self.restart_count else str(self.job_id)


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What the user declared at submission, as the cluster recorded it where users cannot write."""

    workers: Range
    fungible: bool = False
    batch: Range | None = None
    heterogeneous: bool = False


class JobState(enum.Enum):
    """The states of a job in a cluster's queue, as far as flexo tells them apart."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    OTHER = "OTHER"


class WaitReason(enum.Enum):
    """Why a pending job does not start. Only a cluster's adapter fills it; `QueuedJob.reason` has words."""

    NONE = "it does not wait"
    RESOURCES = "for resources, or its turn"
    """And for nothing else."""
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
        """Whether it may start once there are more idle nodes."""
        return self in (WaitReason.RESOURCES, WaitReason.OTHER)


@dataclass(frozen=True, slots=True)
class SatelliteTag:
    """What a satellite's record in the cluster says of its grant, so that it is known after any restart."""

    base: JobKey
    grant_id: str
    workers: int


@dataclass(frozen=True, slots=True)
class Request:
    """A part of what a job asks for: `units` times a `unit`, each on one node."""

    unit: Resources
    units: int
    per_node: int
    """At most so many of the units are on one node."""
    min_nodes: int = 1
    """At least so many nodes have one."""
    whole_nodes: bool = False
    """What else its nodes have is its own, too."""
    required_nodes: frozenset[str] = frozenset()
    """Among its nodes are all of these."""
    divisible: bool = False
    """The job starts with fewer units as well; else it needs all of them at once."""

    @classmethod
    def on_each_node(
        cls,
        nodes: int,
        unit: Resources,
        whole_nodes: bool = False,
        required_nodes: frozenset[str] = frozenset(),
    ) -> Request:
        """`unit` on each of so many nodes."""
        return cls(unit, nodes, 1, nodes, whole_nodes, required_nodes)

    @classmethod
    def in_all(
        cls, total: Resources, min_nodes: int = 1, required_nodes: frozenset[str] = frozenset()
    ) -> Request:
        """`total`, spread in any way, by GPUs, or by CPUs where there are none."""
        units = rounded_up(total.gpus, 1) or max(1, total.cpus)
        return cls(total.share(units), units, units, min(min_nodes, units), required_nodes=required_nodes)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A pending or running job as the cluster's queue shows it."""

    job_id: int
    """Stable, and the same for all runs of the job: what flexo keeps and sends."""
    owner: Principal
    user: str
    """The owner's name, for people."""
    partitions: tuple[str, ...]
    """A pending job may name several; a running one has one."""
    state: JobState
    wait: WaitReason
    reason: str
    """Why it waits, in the cluster's own word."""
    priority: int
    submitted_at: float
    started_at: float | None
    """Of a pending job: when the cluster plans to start it, if it says so."""
    time_limit_s: int | None
    """None: unlimited."""
    nodes: tuple[str, ...]
    """Where it runs; empty while it waits."""
    num_nodes: int
    resources: Resources
    """What it holds, or asks for in all."""
    requests: tuple[Request, ...] = ()
    """What it asks for, part by part: it starts once all are met, of divisible ones at least a unit."""
    excluded_nodes: frozenset[str] = frozenset()
    features: str = ""
    restart_count: int = 0
    elastic: ElasticRequest | None = None
    satellite: SatelliteTag | None = None
    account: str = ""
    """Whom the cluster's accounting charges; "" where there is none."""
    unreadable: str = ""
    """Why flexod cannot read its record; all else is then from an earlier record, or empty. "": it can."""
    identifier: str = ""
    """What the cluster calls it, and takes in commands."""
    time_limit_id: str = ""
    """The renewable time limit that ends it: its own, or that of its base's other satellites too."""
    key: JobKey = field(init=False, repr=False, compare=False)
    """How flexo knows this job. Made once: each turn asks thousands of jobs for it, many times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", JobKey(self.job_id, self.restart_count))
        if not self.identifier:
            object.__setattr__(self, "identifier", str(self.job_id))
        if not self.time_limit_id:
            object.__setattr__(self, "time_limit_id", self.identifier)

    @property
    def required_nodes(self) -> frozenset[str]:
        """Nodes that it cannot do without."""
        return frozenset().union(*(request.required_nodes for request in self.requests))

    @property
    def exclusive(self) -> bool:
        """Whether the nodes that it runs on are its own."""
        return any(request.whole_nodes for request in self.requests)
