"""The public view of the controller's last cycle: immutable, and replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flexo.clusters.base import ClusterState
from flexo.loaning.lending_cycle import LendingSettings, Reading
from flexo.model.aggregation import AggregationView, AggregatorView, PooledJobView
from flexo.model.elastic import ElasticJob
from flexo.model.loans import LeftAlone, Loan
from flexo.model.measured import ScalingPoint, SlowGpu, Source
from flexo.model.plans import Note
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob
from flexo.scalability.run_time import RunTimes
from flexo.sharing.pairs import Pair, pairs_of
from flexo.words import BEGINS_WITHIN_S, needs_restart
from flexo_protos.resources import Amount, total


class UnknownJob(Exception):
    """No elastic job of this number runs; the message says so for people."""


@dataclass(frozen=True, slots=True)
class Unheeded:
    """What flexod does not go by of its configuration file."""

    refused: str = ""
    """Why nothing of the file is taken over; "": what can be is."""
    needs_restart: tuple[str, ...] = ()
    """Changed settings that need a restart, as ``[section] key``."""

    def __bool__(self) -> bool:
        return bool(self.refused or self.needs_restart)

    def __str__(self) -> str:
        """What flexod does not go by, in a sentence; "": nothing."""
        return self.refused or needs_restart(self.needs_restart)


@dataclass(frozen=True, slots=True)
class LoansView:
    """The present state of lending, for `flexo loans`."""

    settings: LendingSettings
    loans: tuple[Loan, ...] = ()
    reading: Reading = field(default_factory=Reading)
    left_alone: tuple[LeftAlone, ...] = ()
    """Servers that are not lent, because somebody took them back by hand."""

    @property
    def coming_back(self) -> int:
        """The number of servers that are being reclaimed."""
        return sum(loan.closed for loan in self.loans)


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The content of `flexo status`. Times are seconds since the epoch."""

    started_at: float
    cluster: str
    """The cluster's name; "" until the cluster has answered once."""
    version: str
    software: str
    """What manages the cluster, for people."""
    policy: str
    dry_run: bool
    interval_s: float
    last_cycle_at: float
    """0: none has succeeded yet."""
    read_cost_s: float
    troubles: tuple[str, ...]
    """The errors and conditions at present; none when all is well."""
    nodes: int
    gpus: Amount
    gpus_idle: Amount
    gpus_in_satellites: Amount
    elastic_jobs: int
    leaders: int
    slow_gpus: tuple[SlowGpu, ...] = ()
    """GPUs that held a job up; their nodes get no satellites."""
    loans: LoansView | None = None
    """The state of lending; None: no servers are ever lent."""
    aggregation: AggregationView | None = None
    """The state of shared aggregation; None: jobs have no Aggregators but their own."""
    unknown_satellites: int = 0
    """Jobs with a satellite's comment that no grant of flexod's allows."""
    satellite_partitions: tuple[str, ...] = ()
    """The partitions of satellites, with that of satellites on loan; empty: not known yet."""
    needs_restart: tuple[str, ...] = ()
    """See `Unheeded`."""
    sharing_partition: str = ""
    """The partition of satellites on shared GPUs; "": none are shared."""

    @property
    def trouble(self) -> str:
        """All of `troubles`, in one sentence."""
        return "; ".join(self.troubles)


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate of how long a job goes on with the workers that it trains with."""

    seconds: float
    source: Source


@dataclass(frozen=True, slots=True)
class JobView:
    """The content of `flexo jobs` on one elastic job whose base runs."""

    job: ElasticJob
    owner: Principal
    attached: bool
    batches_committed: int
    scaling: tuple[ScalingPoint, ...] = ()
    """The points of the last profile, sorted by the number of workers."""
    batch: int = 0
    """The aggregate batch that its leader is told to train with; 0: the script decides."""
    progress: float = 0.0
    """The part of the training that is done, from 0 to 1, as the leader reports; 0: not known."""
    left: TimeLeft | None = None
    """The remaining time; None: not known."""
    by_batch: RunTimes | None = None
    """The remaining time by batch; None: the job has not tried several batches, or it is not known."""
    name: str = ""
    """The name that its user chose."""
    partition: str = ""
    """The partition of its base."""
    started_at: float = 0.0
    """The start of its base, in seconds since the epoch; 0: not known."""
    silent_since: float = 0.0
    """Since when it has committed no batch, if that is long (silence.py); 0: it commits batches, or has
    committed none yet."""

    def begins(self, now: float) -> bool:
        """Whether it has started so lately that its leader may not be connected yet."""
        return now - self.started_at < BEGINS_WITHIN_S


@dataclass(frozen=True, slots=True)
class ReasonEvents:
    """The numbers of the events that say the reasons that stand, in the event store."""

    jobs: Mapping[JobKey, int] = field(default_factory=dict)
    """Why the job waits, or has no more workers."""
    silent: Mapping[JobKey, int] = field(default_factory=dict)
    """That the job commits no batch."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Why the node's idle GPUs stay idle."""


@dataclass(frozen=True)
class View:
    """The cluster, its elastic jobs and the policy's reasons, as of one cycle."""

    state: ClusterState | None = None
    jobs: tuple[JobView, ...] = ()
    notes: tuple[Note, ...] = ()
    leaders: int = 0
    order: tuple[JobKey, ...] = ()
    """Pending jobs in the policy's start order; () if the policy gives none."""
    loans: LoansView | None = None
    """The state of lending; None: no servers are ever lent."""
    unknown: tuple[QueuedJob, ...] = ()
    """Jobs with a satellite's comment that no grant of flexod's allows."""
    aggregation: AggregationView | None = None
    """The state of shared aggregation; None: jobs have no Aggregators but their own."""
    failures: Mapping[JobKey, int] = field(default_factory=dict)
    """Workers that failed and were started again in the last 10 minutes, of jobs where these are many."""
    told: ReasonEvents = ReasonEvents()
    """Which events say the reasons that stand."""

    def pooled(self, key: JobKey) -> PooledJobView | None:
        """The job of this key, if it has asked for pool Aggregators."""
        jobs = self.aggregation.jobs if self.aggregation else ()
        return next((each for each in jobs if each.job == key), None)

    def aggregator(self, name: str) -> AggregatorView | None:
        """The attached pool Aggregator of this name."""
        known = self.aggregation.aggregators if self.aggregation else ()
        return next((each for each in known if each.name == name), None)

    def running(self, key: JobKey) -> JobView:
        """The elastic job of this key. Raises UnknownJob."""
        found = next((view for view in self.jobs if view.job.key == key), None)
        if found is None:
            raise UnknownJob(f"there is no running elastic job {key}")
        return found

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The GPUs that two jobs may use."""
        return pairs_of(view.job for view in self.jobs)

    @cached_property
    def gpus_in_satellites(self) -> Amount:
        """GPUs that running satellites hold. Counted once a view, because many callers ask."""
        return total(
            job.resources.gpus
            for job in (self.state.jobs if self.state else ())
            if job.satellite is not None and job.state is JobState.RUNNING
        )
