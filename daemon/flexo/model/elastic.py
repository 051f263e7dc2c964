"""Elastic jobs: what flexod grants them, and what their leaders report."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo_protos.resources import Resources


class SatelliteState(enum.Enum):
    """Where a grant is on its way to being real."""

    GRANTED = "granted"
    """Said to the leader; no satellite known yet."""
    PENDING = "pending"
    WARMING = "warming"
    TRAINING = "training"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Grant:
    """The daemon's word that `job` may have `workers` on `node` until further notice."""

    grant_id: str
    job: JobKey
    node: str
    workers: int
    partition: str
    since_at: float
    state: SatelliteState = SatelliteState.GRANTED
    satellite_job_id: int = 0
    """The satellite's `QueuedJob.job_id`; 0 before it is submitted."""

    @property
    def moving(self) -> bool:
        """It is on its way to being real, or back."""
        return self.state is not SatelliteState.TRAINING


@dataclass(frozen=True, slots=True)
class SatelliteReport:
    """One satellite as its job's leader sees it."""

    satellite_job_id: int
    grant_id: str
    node: str
    workers: int
    state: SatelliteState
    signature: bytes = b""
    """flexod's, of the grant; empty: the leader has none."""


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """All that the leader of a job last said; that `owner` owns `key` has been proven before."""

    key: JobKey
    owner: Principal
    workers: Range
    shape: Resources
    """What one worker (one rank) takes of a node."""
    base_nodes: tuple[str, ...]
    training_workers: int
    generation: int
    batches_committed: int
    scalable: bool
    satellites: tuple[SatelliteReport, ...]
    changing: bool = False
    """It is between two generations: another resize has to wait."""
    errand: str = ""
    """What its owner has it do at the moment, such as a profile; nothing is granted meanwhile."""
    unscalable_why: str = ""
    """Why `scalable` stays false, in its leader's words."""
    progress: float = 0.0
    """The part of its training that is done, 0 to 1; 0: not known."""

    def about(self, satellite_job_id: int) -> SatelliteReport | None:
        """What it says of one satellite; None: nothing."""
        return next((told for told in self.satellites if told.satellite_job_id == satellite_job_id), None)


class FailureReason(enum.Enum):
    """Why a grant did not become, or did not stay, a satellite. Words of GrantFailed in jobs.proto."""

    NOT_STARTED = "not started"
    REFUSED = "refused"
    LOST = "lost"
    PREEMPTED = "preempted"
    WORKERS_FAILED = "workers failed"
    SLOW_GPU = "slow GPU"


@dataclass(frozen=True, slots=True)
class GrantFailure:
    """A leader giving a grant back."""

    job: JobKey
    grant_id: str
    reason: FailureReason
    message: str


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """An elastic job whose base runs, with what its leader last reported."""

    key: JobKey
    user: str
    workers: Range
    shape: Resources
    """Without a GPU type if it is heterogeneous, whatever its base has asked for."""
    base_nodes: tuple[str, ...]
    base_workers: int
    grants: tuple[Grant, ...] = ()
    training_workers: int = 0
    scalable: bool = False
    """The script has entered hvd.elastic.run; before that nothing is granted."""
    wanted: int | None = None
    """The owner's own cap (`flexo scale`), within `workers`."""
    last_resize_at: float = 0.0
    retry_at: dict[str, float] = field(default_factory=dict)
    """Nodes that failed a grant of this job, and when they may be tried again."""
    rest_until: float = 0.0
    """Nothing is granted anywhere before: the cluster refused this job a satellite, or one never started."""
    batch: Range | None = None
    """The aggregate batches that its training accepts (`--elastic-batch`); None: only the script's own."""
    changing: bool = False
    """Its leader is between two generations."""
    errand: str = ""
    """What its owner has its leader do at the moment; it is not resized meanwhile, except to give back."""
    unscalable_why: str = ""
    """Why `scalable` stays false, as its leader says; "" where it only has not begun."""
    heterogeneous: bool = False
    """Its workers may be of several GPU types; of any other job all are of the type that its base is on."""
    suspended: bool = False
    """Its base is suspended: it trains nothing, and nothing is granted until it is resumed."""

    @property
    def granted_workers(self) -> int:
        """Base workers and every grant that stands (not those already told to leave)."""
        return self.base_workers + sum(
            grant.workers for grant in self.grants if grant.state is not SatelliteState.LEAVING
        )

    @property
    def ceiling(self) -> int:
        """The most workers it may have now: the range's maximum, or the owner's cap."""
        return self.workers.max if self.wanted is None else self.workers.clamp(self.wanted)
