"""The interface of a policy: its properties, and its answers to two questions.

How many workers shall each job have (`targets`)? In which order shall pending jobs start (`pending_order`)?
The policy does not choose nodes by itself: it asks the `Placement` that it is given. The planner of the
cluster then turns the targets into a plan. The planner is `allocating` on a cluster that gives jobs what
flexod decides, and `satellites` where jobs grow beside their bases.
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
"""A part of flexod's configuration that a policy can have as a setting."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs that a policy decides about, at one instant."""

    at: float
    training: tuple[TrainingJob, ...]
    """All jobs that train or wait to, in the order of submission."""
    quotas: tuple[Quota, ...] = ()
    """Quotas of tenants; a tenant that is not named has none."""
    decided_at: float = 0.0
    """Time when a decision last changed something."""
    ended_count: int = 0
    """Jobs that have ended since `decided_at`."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Jobs:
        """All jobs of `snapshot`."""
        return cls(snapshot.at, snapshot.training, snapshot.quotas, snapshot.decided_at, snapshot.ended_count)

    def waiting(self) -> Iterator[TrainingJob]:
        """Pending jobs, in the order of submission."""
        return (job for job in self.training if not job.shares)

    def running(self) -> Iterator[TrainingJob]:
        """Jobs that have workers, in the order of submission."""
        return (job for job in self.training if job.shares)


@dataclass(frozen=True, slots=True)
class Target:
    """The size that one job shall have. `why`: half a sentence for people."""

    job: JobKey
    workers: int
    """All workers of the job, those of its base included; 0: the job stops and waits."""
    why: str = ""
    samples: int = 0
    """The aggregate batch; 0: the script's own, or in proportion to the workers."""
    guaranteed: bool = False
    """Whether the job runs within its tenant's quota from then on (AntMan)."""
    shared: bool = False
    """Whether its workers sit in second seats (`TrainingJob.shared`). The policy has to place them itself."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets that change. A job that has no target keeps what it has."""

    jobs: tuple[Target, ...] = ()
    """The targets in order: if there is not enough for all, the first are served first."""
    evenly: bool = False
    """Whether, if there is not enough for all, workers go one by one to the job that has the fewest."""
    notes: tuple[Note, ...] = ()
    drops: tuple[Drop, ...] = ()
    """Pending jobs that are refused for good."""
    again_at: float | None = None
    """Time to ask again even if nothing has happened; None: not before something has happened."""


class Policy(ABC):
    """A policy: a frozen dataclass whose fields are its settings. Equal jobs and nodes give equal targets."""

    __slots__ = ()

    name: ClassVar[str]
    """The name that `--policy` and `[controller] policy` take."""
    oracle: ClassVar[bool] = False
    """Whether the policy uses facts that no scheduler can know; every output then says so."""
    uses_running_times: ClassVar[bool] = True
    """Whether the policy reads `TrainingJob.remaining_work`. If so, a simulation that tells true running
    times says so. A policy that does not read it has to set False."""
    orders_pending: ClassVar[bool] = False
    """Whether the policy has a `pending_order`."""
    weighs_users: ClassVar[bool] = False
    """Whether the policy reads `TrainingJob.weight`."""
    uses_quotas: ClassVar[bool] = False
    """Whether the policy reads `Jobs.quotas`."""
    tries_batches: ClassVar[bool] = False
    """Whether jobs that accept several batches try them out when they begin, so that their speeds are known
    (IBM, section III-B)."""
    starts_jobs: ClassVar[bool] = True
    """Whether the policy starts pending jobs where the cluster does not. If not, it cannot be simulated on
    such a cluster."""
    in_flexod: ClassVar[Mapping[str, object]] = {}
    """Settings with which flexod makes the policy, where these differ from the defaults."""
    from_site: ClassVar[Mapping[str, SiteFact]] = {}
    """Settings that flexod takes from its own configuration: per setting, the part of the configuration."""

    @abstractmethod
    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """The new size of each job, and why.

        A policy may ask `placement` what fits. On a cluster that allocates, workers go where the policy puts
        them.
        """

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """All pending jobs, the first to start first; (): the cluster's own order is as good."""
        return ()

    def samples_of(self, job: TrainingJob, workers: int, nodes: int) -> int:
        """The aggregate batch of `job` with `workers` on `nodes`; 0: the script's own, or as many samples for
        each worker as before."""
        return 0

    def opportunistic_order(self, jobs: Jobs) -> tuple[JobKey, ...]:
        """The opportunistic jobs that run (`jobs.training`), in the order in which idle and shared GPUs serve
        them. By default that of submission, as in AntMan."""
        return tuple(job.key for job in jobs.training)
