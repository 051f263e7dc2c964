"""A cluster's queue: jobs by their keys, who owns them, and why they wait."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from flexo.model.ranges import Range

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
    cpus: int
    gpus: int
    memory_mib: int
    gpus_per_node: int = 0
    """0: no per-node request (then `gpus` may be spread in any way)."""
    gpu_type: str = ""
    required_nodes: frozenset[str] = frozenset()
    excluded_nodes: frozenset[str] = frozenset()
    features: str = ""
    exclusive: bool = False
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
