"""Elastic jobs: what flexod grants them, and what their leaders report."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flexo.model.aggregation import AggregationUse
from flexo.model.measured import TriedBatches
from flexo.model.node_filter import ANY_NODE, NodeFilter
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo.model.sharing import GpuUse
from flexo_protos.resources import Devices, Resources


class SatelliteState(enum.Enum):
    """The progress of a grant: from a promise to a satellite that trains, and back."""

    GRANTED = "granted"
    """flexod has told the leader; no satellite is known yet."""
    PENDING = "pending"
    WARMING = "warming"
    TRAINING = "training"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Cap:
    """An owner's limit on a job's size, until the owner removes it or sets another one."""

    workers: int
    """The most workers that the job may have."""
    nodes: frozenset[str] = frozenset()
    """The nodes to which new satellites may come; empty: to any."""
    by: str = field(default="", compare=False)
    """Who set it, and where; "": not known. The same limit by another is the same."""


@dataclass(frozen=True, slots=True)
class Grant:
    """flexod's permission for `job` to have `workers` on `node` until further notice."""

    grant_id: str
    job: JobKey
    node: str
    workers: int
    """0: the satellite runs an Aggregator, on one CPU."""
    partition: str
    since_at: float
    state: SatelliteState = SatelliteState.GRANTED
    satellite_job_id: int = 0
    """The satellite's `QueuedJob.job_id`; 0 before it is submitted."""
    shared_gpus: tuple[Devices, ...] = ()
    """The GPUs of its workers, if other jobs hold these GPUs (AntMan); empty: the satellite holds its own."""

    def resources(self, worker: Resources) -> Resources:
        """The resources of its satellite, where `worker` is the shape of one worker."""
        return satellite_resources(worker, self.workers, self.shared_gpus)

    @property
    def starting(self) -> bool:
        """Whether its workers do not train yet."""
        return self.state not in (SatelliteState.TRAINING, SatelliteState.LEAVING)

    @property
    def moving(self) -> bool:
        """Whether the grant's satellite is starting or leaving: it does not train."""
        return self.state is not SatelliteState.TRAINING


def satellite_resources(worker: Resources, workers: int, shared_gpus: tuple[Devices, ...]) -> Resources:
    """The resources of a satellite of `workers` workers, which holds no GPUs if it has shared ones.

    Without workers: one CPU, with as much memory as each CPU of a worker.
    """
    if not workers:
        return Resources(cpus=1, memory_mib=math.ceil(worker.memory_mib / max(1, worker.cpus)))
    own = worker * workers
    return replace(own, gpus=0, gpu_type="", devices=(*own.devices, *shared_gpus)) if shared_gpus else own


@dataclass(frozen=True, slots=True)
class SatelliteReport:
    """One satellite as its job's leader sees it."""

    satellite_job_id: int
    grant_id: str
    node: str
    workers: int
    state: SatelliteState
    signature: bytes = b""
    """flexod's signature of the grant; empty: the leader has none."""


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """The last report of a job's leader. It has been verified before that `owner` owns `key`."""

    key: JobKey
    owner: Principal
    workers: Range
    shape: Resources
    """The resources of one worker (one rank) on a node."""
    base_nodes: tuple[str, ...]
    training_workers: int
    generation: int
    batches_committed: int
    scalable: bool
    satellites: tuple[SatelliteReport, ...]
    changing: bool = False
    """Whether the job is between two generations; another resize then has to wait."""
    pending_command: str = ""
    """The owner's command that is under way, such as a profile; nothing is granted meanwhile."""
    unscalable_why: str = ""
    """The leader's reason why `scalable` stays false."""
    progress: float = 0.0
    """The part of its training that is done, 0 to 1; 0: not known."""
    unit: int = 1
    """The number of workers that come and go together, on one node."""
    gpu_uses: tuple[GpuUse, ...] = ()
    """How the job's GPUs are used that another job may use as well. Nothing of it is verified."""
    paused: bool = False
    """Whether training stands still below the job's minimum."""
    aggregation: AggregationUse | None = None
    """How Aggregators sum its gradients; None: none do. Nothing of it is verified."""
    resizes: int = 0
    """The resizes since `flexo run` began."""
    paused_s: float = 0.0
    """The time for which training has stood still for them."""
    script: str = ""
    """A digest of the job's command and script; "": not known."""
    tried: TriedBatches | None = None
    """The job's trials of several batches; None: it has made none (yet)."""

    def about(self, satellite_job_id: int) -> SatelliteReport | None:
        """The leader's report on one satellite; None: it reports nothing about that satellite."""
        return next((told for told in self.satellites if told.satellite_job_id == satellite_job_id), None)


class FailureReason(enum.Enum):
    """The reason why a grant did not become, or did not stay, a satellite. Words of GrantFailed in
    jobs.proto."""

    NOT_STARTED = "not started"
    REFUSED = "refused"
    LOST = "lost"
    PREEMPTED = "preempted"
    WORKERS_FAILED = "workers failed"
    SLOW_GPU = "slow GPU"


@dataclass(frozen=True, slots=True)
class GrantFailure:
    """A leader's message that it gives a grant back."""

    job: JobKey
    grant_id: str
    reason: FailureReason
    message: str


@dataclass(frozen=True, slots=True)
class AggregatorGrants:
    """The grants of one job for Aggregators in satellites. They do not change the number of its workers."""

    grants: tuple[Grant, ...] = ()
    retry_at: dict[str, float] = field(default_factory=dict)
    """Nodes that failed such a grant, and when they may be tried again."""
    rest_until: float = 0.0
    """None is granted before this time."""
    last_change_at: float = 0.0
    """When one was last granted, withdrawn or lost."""

    @property
    def standing(self) -> tuple[Grant, ...]:
        """Those that were not told to leave."""
        return tuple(grant for grant in self.grants if grant.state is not SatelliteState.LEAVING)


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """An elastic job whose base runs, with what its leader last reported."""

    key: JobKey
    user: str
    workers: Range
    shape: Resources
    """The resources of one worker. A heterogeneous job has no GPU type here, whatever its base has asked
    for."""
    base_nodes: tuple[str, ...]
    base_workers: int
    grants: tuple[Grant, ...] = ()
    """The grants for workers."""
    training_workers: int = 0
    scalable: bool = False
    """Whether the script has entered hvd.elastic.run; before that, nothing is granted."""
    wanted: int | None = None
    """The owner's own cap (`flexo scale`), within `workers`; None: no cap."""
    capped_by: str = ""
    """Who set the cap, and where; "": not known, or no cap."""
    last_resize_at: float = 0.0
    retry_at: dict[str, float] = field(default_factory=dict)
    """Nodes that failed a grant of this job, and when they may be tried again."""
    rest_until: float = 0.0
    """flexod grants nothing before this time: the cluster refused this job a satellite, or one never
    started."""
    batch: Range | None = None
    """The aggregate batches that its training accepts (`--elastic-batch`); None: only the script's own."""
    changing: bool = False
    """Whether the job is between two generations."""
    pending_command: str = ""
    """The owner's command that is under way; meanwhile the job is not resized, except to give workers
    back."""
    unscalable_why: str = ""
    """The leader's reason why `scalable` stays false; "": the script has only not begun."""
    heterogeneous: bool = False
    """Whether its workers may be of several GPU types. Otherwise all are of the GPU type of its base."""
    suspended: bool = False
    """Whether its base is suspended: the job trains nothing, and nothing is granted until its base is
    resumed."""
    unit: int = 1
    """The number of workers that come and go together, on one node: one replica of a model that is spread
    over them."""
    opportunistic: bool = False
    """Whether its base has no workers and no GPUs: all workers are in satellites (AntMan)."""
    auto: bool = False
    """Whether an opportunistic job is first tried with GPUs of its own."""
    cohost: bool = False
    """Whether its user lets opportunistic jobs use its GPUs as well."""
    account: str = ""
    attached: bool = False
    """Whether its leader is connected."""
    leaderless_since: float = 0.0
    """Since when flexod has seen the job without a leader; 0: it has one."""
    gpu_uses: tuple[GpuUse, ...] = ()
    """See `LeaderReport`."""
    paused: bool = False
    """Whether training stands still below the job's minimum."""
    aggregation: AggregationUse | None = None
    """See `LeaderReport`."""
    resizes: int = 0
    """See `LeaderReport`."""
    paused_s: float = 0.0
    """See `LeaderReport`."""
    tried_worker_s: float = 0.0
    """Worker seconds of its trials of several batches (`TriedBatches`)."""
    aggregators: AggregatorGrants = field(default_factory=AggregatorGrants)
    node_filter: NodeFilter = ANY_NODE
    """The nodes that its own request and its owner's cap permit for its satellites."""

    @property
    def all_grants(self) -> tuple[Grant, ...]:
        """The grants for workers, and those for Aggregators."""
        return (*self.grants, *self.aggregators.grants)

    def with_grants(self, grants: Iterable[Grant]) -> ElasticJob:
        """The job with these grants, for workers and for Aggregators, in place of all that it has."""
        told = tuple(grants)
        return replace(
            self,
            grants=tuple(grant for grant in told if grant.workers),
            aggregators=replace(self.aggregators, grants=tuple(each for each in told if not each.workers)),
        )

    @property
    def granted_workers(self) -> int:
        """Workers of the base and of every grant, except grants that were told to leave."""
        return self.base_workers + sum(
            grant.workers for grant in self.grants if grant.state is not SatelliteState.LEAVING
        )

    @property
    def ceiling(self) -> int:
        """The most workers that the job may have now: the range's maximum, or the owner's cap."""
        return self.whole(self.workers.max if self.wanted is None else self.workers.clamp(self.wanted))

    def whole(self, workers: int) -> int:
        """The largest size of whole units that is at most this number of workers, or that of the base."""
        return max(self.base_workers, workers - (workers - self.base_workers) % self.unit)
