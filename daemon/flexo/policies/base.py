"""What a policy is: its properties, and its answers to two questions.

How many workers shall each job have (`targets`)? In which order shall pending jobs start (`pending_order`)?
Where workers go is a question for the `Placement` that it is given, and for the planner of the cluster:
`allocating` where a cluster gives jobs what it is told, `satellites` where jobs grow beside their bases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flexo.model.plans import Drop, Note, Snapshot
from flexo.model.queue import JobKey
from flexo.model.training import Quota, TrainingJob
from flexo.policies.placement import Placement

SiteFact = Literal["borrowed_partition", "gpu_speeds"]
"""What flexod's configuration says that a policy can have as a setting."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """What a policy decides about, at one instant."""

    at: float
    training: tuple[TrainingJob, ...]
    """All jobs that train or wait to, in the order of submission."""
    quotas: tuple[Quota, ...] = ()
    """Of tenants; a tenant that is not named has none."""
    decided_at: float = 0.0
    """When a decision last changed something."""
    ended_since: int = 0
    """Jobs that have ended since `decided_at`."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Jobs:
        """All jobs of `snapshot`."""
        return cls(snapshot.at, snapshot.training, snapshot.quotas, snapshot.decided_at, snapshot.ended_since)

    def waiting(self) -> Iterator[TrainingJob]:
        """Pending jobs, in the order of submission."""
        return (job for job in self.training if not job.shares)

    def running(self) -> Iterator[TrainingJob]:
        """Jobs that have workers, in the order of submission."""
        return (job for job in self.training if job.shares)


@dataclass(frozen=True, slots=True)
class Target:
    """What one job shall have. `why` is half a sentence for people."""

    job: JobKey
    workers: int
    """All of its workers, those of its base among them; 0: it stops and waits."""
    why: str = ""
    samples: int = 0
    """The aggregate batch; 0: as its script says, or in proportion to its workers."""
    guaranteed: bool = False
    """From then on within its tenant's quota (AntMan)."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What changes. A job that has no target keeps what it has."""

    jobs: tuple[Target, ...] = ()
    """Where there is not enough for all, the first are served first."""
    evenly: bool = False
    """Where there is not enough for all, workers go one by one to the job that has the fewest."""
    notes: tuple[Note, ...] = ()
    drops: tuple[Drop, ...] = ()
    """Pending jobs that are refused for good."""
    again_at: float | None = None
    """When to ask again although nothing has happened; None: once something has."""


class Policy(ABC):
    """A frozen dataclass whose fields are its settings. Equal jobs and nodes have equal targets."""

    __slots__ = ()

    name: ClassVar[str]
    """As `--policy` and `[controller] policy` take it."""
    oracle: ClassVar[bool] = False
    """Whether it goes by what no scheduler can know; every output then says so."""
    uses_running_times: ClassVar[bool] = True
    """Whether it looks at `TrainingJob.remaining_work`. True unless a policy denies it: a simulation that
    tells true running times then says so."""
    orders_pending: ClassVar[bool] = False
    """Whether it has a `pending_order`."""
    weighs_users: ClassVar[bool] = False
    """Whether it looks at `TrainingJob.weight`."""
    uses_quotas: ClassVar[bool] = False
    """Whether it looks at `Jobs.quotas`."""
    starts_jobs: ClassVar[bool] = True
    """Whether it starts pending jobs where the cluster does not. One that does not cannot be simulated so."""
    in_flexod: ClassVar[Mapping[str, object]] = {}
    """Settings that flexod has it with, where those are not the defaults."""
    from_site: ClassVar[Mapping[str, SiteFact]] = {}
    """Settings that flexod takes from its own configuration, and what of it."""

    @abstractmethod
    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Who shall have how much from now on, and why.

        A policy may ask `placement` what fits. What it puts there goes there on a cluster that allocates.
        """

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """All pending jobs, the first to start first; () where the cluster's own order is as good."""
        return ()
