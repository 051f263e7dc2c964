"""Pool Aggregators and the jobs that use them: what both report, and what a job is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from flexo.model.queue import JobKey, Principal


@dataclass(frozen=True, slots=True)
class UsedAggregator:
    """A pool Aggregator in a job's own report."""

    name: str
    """host:port."""
    share: int


class Summing(enum.StrEnum):
    """Whose Aggregators are to sum a job's gradients; the words of `--aggregators`."""

    OWN = "own"
    """Those beside its workers."""
    SATELLITES = "satellites"
    """Those in its own satellites."""
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Placement:
    """flexod's choice for a job that leaves it to flexod whose Aggregators sum (`--aggregators=auto`)."""

    summing: Summing
    why: str


@dataclass(frozen=True, slots=True)
class AggregationUse:
    """How a job's gradients are summed, as its leader reports it: the word of a user."""

    wants_pool: bool
    size: int
    """Bytes of one iteration's gradients, as nodes send them: half precision in single precision; 0: not
    known yet."""
    iteration_s: float
    """The median of the latest iterations with this assignment; 0: not known yet."""
    nodes: int
    version: int
    """Of the assignment in use; 0: none yet."""
    iterations: int
    """Made since this assignment is in use."""
    reserves: int
    """The CPU cores that the job would reserve for Aggregators of its own."""
    used: tuple[UsedAggregator, ...] = ()
    """The Aggregators of the assignment in use; none: those of the job's own nodes."""
    satellites: int = 0
    """The Aggregators in satellites that the job asks for."""
    auto: bool = False
    """Whether the user leaves it to flexod whose Aggregators sum."""
    most_satellites: int = 0
    """Of such a job: the Aggregators in satellites that it may have."""
    busy: float = 0.0
    """CPU cores that the busiest of its own nodes' Aggregators uses; 0: not known."""
    placement: Placement | None = None
    """flexod's choice, which `wants_pool` and `satellites` then follow; None: the user has chosen."""


@dataclass(frozen=True, slots=True)
class JobSums:
    """What one job does on one pool Aggregator, since the job is there."""

    job: str
    size: int
    """Registered bytes of one iteration's gradients."""
    sums: int
    cpu_s: float
    longest_wait_s: float


@dataclass(frozen=True, slots=True)
class PoolAggregator:
    """A pool Aggregator that is attached to flexod, with its last status."""

    host: str
    port: int
    memory: int
    """Bytes for the buffers of all jobs."""
    network: int
    """Bytes a second, in each direction."""
    key: bytes = field(repr=False)
    """Signs the tokens for this Aggregator."""
    slurm_job_id: int = 0
    """The job that it says it runs in: a claim. 0: in none."""
    owner: Principal | None = None
    """The account that it has proved to run as."""
    release: str = ""
    jobs: tuple[JobSums, ...] = ()
    cpu_s: float = 0.0
    """CPU seconds of the process since its start."""
    interface_received: int = 0
    """Bytes that its network interface has received, for all programs; with 0 sent, too: not known."""
    interface_sent: int = 0
    moved: int = 0
    """Bytes of its jobs' pushes and pulls since its start."""
    leaving: bool = False
    """Whether it has been told to end, so that it must lose its jobs."""

    @property
    def name(self) -> str:
        """The name for people, and in reports of jobs: host:port."""
        return f"{self.host}:{self.port}"

    def sums_of(self, job: str) -> JobSums | None:
        """What this job does here; None: it is not connected."""
        return next((each for each in self.jobs if each.job == job), None)


@dataclass(frozen=True, slots=True)
class AggregatorOffer:
    """An assigned Aggregator in the form in which a job's leader receives it."""

    host: str
    port: int
    token: str = field(repr=False)
    share: int


@dataclass(frozen=True, slots=True)
class AggregatorOffers:
    """The Aggregators that a job uses; none: its own."""

    version: int
    offers: tuple[AggregatorOffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Eviction:
    """A job that an Aggregator must not serve any more."""

    aggregator: str
    """host:port."""
    job: str


@dataclass(frozen=True, slots=True)
class Drain:
    """An Aggregator that is to end."""

    aggregator: str
    """host:port."""


@dataclass(frozen=True, slots=True)
class AggregatorView:
    """A pool Aggregator, for people and metrics."""

    name: str
    jobs: tuple[JobKey, ...]
    """Assigned jobs."""
    planned_use: float
    """The share of its time in which it works for its jobs, by their profiles."""
    memory: int
    """Bytes of buffers that its jobs need."""
    memory_limit: int
    cpu_s: float
    longest_wait_s: float
    release: str = ""
    used_cores: float = 0.0
    """The CPU cores that its process has used lately; it has one."""
    gradients: int = 0
    """Bytes of one iteration's gradients of all jobs that are registered there."""
    cluster_job: int = 0
    """The cluster's job that it runs in, if the queue confirms that; else 0."""
    node: str = ""
    """The node of that job; "": not known."""


@dataclass(frozen=True, slots=True)
class PooledJobView:
    """A job that has asked for pool Aggregators, for people and metrics."""

    job: JobKey
    state: str
    """In words: waits, is profiled, shares, rests."""
    why: str
    """The reason for its last assignment, or for having none."""
    aggregators: tuple[UsedAggregator, ...]
    version: int
    alone_s: float
    """The duration of an iteration before it shared Aggregators; 0: not measured."""
    now_s: float
    """The duration of an iteration now; 0: not measured."""

    @property
    def loss(self) -> float:
        """The measured part of its speed that it loses by sharing; 0: nothing, or not measured."""
        return max(0.0, 1 - self.alone_s / self.now_s) if self.alone_s and self.now_s else 0.0


@dataclass(frozen=True, slots=True)
class AggregationView:
    """The present state of shared aggregation."""

    aggregators: tuple[AggregatorView, ...] = ()
    jobs: tuple[PooledJobView, ...] = ()
    wanted: int = 0
    """The pool Aggregators that all jobs that have asked for them would need."""
    reverts: int = 0
    """The reverts since flexod began."""
