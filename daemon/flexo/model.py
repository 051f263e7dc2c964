"""The words of flexo (docs/architecture.md, section "Words") as frozen types.

Nothing else in the tree invents its own. Units are in the names; times are seconds since the epoch.
This file imports nothing of flexo.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol


class BadRange(ValueError):
    """A range such as ``--elastic`` takes that cannot be: the message says why."""


@dataclass(frozen=True, slots=True)
class Range:
    """``MIN-MAX``, both at least 1 and included: workers of a job, or samples of a global batch."""

    min: int
    max: int

    @classmethod
    def parse(cls, text: str) -> Range:
        """``"2-8"`` -> Range(2, 8). Raises BadRange for anything that ``--elastic`` refuses."""
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
        if match is None:
            raise BadRange(f"'{text}' is not a range MIN-MAX such as 2-8")
        low, high = int(match[1]), int(match[2])
        if low < 1:
            raise BadRange(f"'{text}': the minimum is 1")
        if high < low:
            raise BadRange(f"'{text}': the maximum is below the minimum")
        return cls(low, high)

    def clamp(self, value: int) -> int:
        """The member of the range nearest to `value`."""
        return max(self.min, min(self.max, value))

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"


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
class WorkerShape:
    """What one worker (one Horovod rank) takes on a node."""

    gpus: int
    cpus: int
    memory_mib: int = 0
    """0: not asked for; the cluster's default decides."""
    gpu_type: str = ""
    """"" matches every type."""


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What the user declared at submission, as the cluster recorded it where users cannot write."""

    workers: Range
    fungible: bool = False
    batch: Range | None = None
    heterogeneous: bool = False


class NodeCondition(enum.Enum):
    """Why nothing may be placed on a node now. Only a cluster's adapter fills it; its value is for people."""

    ENDING = "a job is ending there"
    """Its resources count as free, and nothing starts there before it has ended."""
    PLANNED = "kept for a pending job"
    """The cluster's own scheduler has one in mind."""
    EXCLUSIVE = "held by one job alone"
    UNKNOWN = "not heard of yet"
    """The cluster's controller has just begun, and waits for the node."""
    DRAIN = "drained"
    MAINTENANCE = "in maintenance"
    RESERVED = "reserved"
    REBOOT = "to be rebooted"
    OUT_OF_SERVICE = "out of service"
    """Down, powered off, on loan to nobody, in use in a way that flexo cannot count: anything else."""


_SOON_FREE = frozenset({NodeCondition.ENDING, NodeCondition.PLANNED})
WANTED_EMPTY = frozenset(
    {NodeCondition.DRAIN, NodeCondition.MAINTENANCE, NodeCondition.RESERVED, NodeCondition.REBOOT}
)
"""An administrator wants everything to leave such a node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node at one instant."""

    name: str
    gpus: int
    gpus_allocated: int
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    partitions: frozenset[str]
    gpu_type: str = ""
    features: frozenset[str] = frozenset()
    unusable: str = ""
    """Why nothing may be placed here, in the cluster's words; "" when it may."""
    conditions: frozenset[NodeCondition] = frozenset()
    """The same as flexo tells it apart; empty only where `unusable` is."""
    threads_per_core: int = 1
    """CPUs that are allocated together where the cluster allocates cores."""

    @property
    def soon_free(self) -> bool:
        """Whether it is healthy, but kept for a moment: a job is ending, or the next one is chosen."""
        return bool(self.conditions) and self.conditions <= _SOON_FREE

    @property
    def in_order(self) -> bool:
        """Whether nobody has to fix anything on it, whether or not something may be placed there."""
        healthy = _SOON_FREE | {NodeCondition.EXCLUSIVE, NodeCondition.UNKNOWN}
        return not self.unusable or (bool(self.conditions) and self.conditions <= healthy)

    @property
    def gpus_idle(self) -> int:
        """GPUs that nobody holds, on a node that may be used."""
        return 0 if self.unusable else max(0, self.gpus - self.gpus_allocated)

    def room_for(self, shape: WorkerShape) -> int:
        """How many workers of `shape` fit into what is idle: GPUs *with* CPUs and memory."""
        if self.unusable or (shape.gpu_type and shape.gpu_type != self.gpu_type):
            return 0
        fits = [(self.cpus - self.cpus_allocated) // max(1, shape.cpus)]
        if shape.gpus:
            fits.append(self.gpus_idle // shape.gpus)
        if shape.memory_mib:
            fits.append((self.memory_mib - self.memory_allocated_mib) // shape.memory_mib)
        return max(0, min(fits))


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


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as far as placing and preempting go."""

    name: str
    priority_tier: int
    nodes: frozenset[str]
    up: bool = True


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
    shape: WorkerShape
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


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """How a job trains with so many workers, as its leader measured it (Amoeba, section 3.1)."""

    workers: int
    samples_per_s: float
    """Of all workers; 0: not known."""
    step_s: float
    sync_s: float
    """Of a step, what a worker waits in collectives."""
    efficiency: float
    """Throughput a worker, to the best measured: 0 to 1."""
    batches: int
    """Mini-batches that the medians are of."""
    measured_at: float


@dataclass(frozen=True, slots=True)
class SlowGpuReport:
    """A leader saying that a worker was slower than the others of its job (Amoeba, section 5.4)."""

    job: JobKey
    node: str
    gpus: tuple[int, ...]
    """As the cluster numbers them on the node; empty: not known."""
    ratio: float
    """The worker's own time for a mini-batch to that of the others."""


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """Such a report, remembered."""

    node: str
    gpus: tuple[int, ...]
    ratio: float
    job: JobKey
    seen_at: float
    until_at: float
    """No satellite is put on its node before."""
    user: str = ""
    """Whose job that is; "": an older release has not written it down, and it counts for everybody's."""

    def __str__(self) -> str:
        which = f"GPU {', '.join(map(str, self.gpus))}" if self.gpus else "a GPU"
        return f"{which} of {self.node} ({self.ratio:.1f} times as slow as others, says job {self.job})"


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
    shape: WorkerShape
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


@dataclass(frozen=True, slots=True)
class Share:
    """The workers of one job on one node."""

    node: str
    workers: int


class Speed(Protocol):
    """How fast one job trains, as far as that is known (docs/scalability.md). Made in `scalability`.

    A pure function: equal questions have equal answers, so that a policy that asks is deterministic.
    """

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """Work done a second by `workers` spread over `nodes`; 0 where it cannot run so.

        The unit of work is the job's own, the same as `TrainingJob.remaining_work`: samples, iterations,
        or seconds of one worker. `batch` is of the whole job, in samples; 0: the best that it accepts.
        """
        ...

    def best_batch(self, workers: int, nodes: int) -> int:
        """The aggregate batch at which `rate` is best; 0: the script's own, and it accepts no other."""
        ...

    def __hash__(self) -> int:
        """Equal ones have equal answers, so that those may be remembered."""
        ...


class Source(enum.Enum):
    """Where a running time comes from, best first."""

    PROGRESS = "progress"
    """The job's own reported progress."""
    HISTORY = "history"
    """Earlier jobs of its user that were like it."""
    TIME_LIMIT = "time limit"
    ORACLE = "oracle"
    """A trace's true duration, which no scheduler can know."""


@dataclass(frozen=True, slots=True)
class RunningTime:
    """How long a job of `user` on `gpus` GPUs (its base's) ran until it ended."""

    user: str
    gpus: int
    seconds: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Held:
    """What a job held from an instant on, until the next entry."""

    at: float
    workers: int
    nodes: int


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job that trains, elastic or not, pending or running, as policies see it.

    `shares` is where its workers are; none while it waits. What it has in `base` stays where it is until
    the job ends: where jobs grow by satellites a running base is not moved, and taken only if `preemptible`.
    """

    key: JobKey
    user: str
    workers: Range
    """min == max: not elastic."""
    shape: WorkerShape
    submitted_at: float
    requested_workers: int = 0
    """What it would run with if it were not elastic; 0: `workers.min`."""
    shares: tuple[Share, ...] = ()
    base: tuple[Share, ...] = ()
    """Of `shares`, what cannot be moved; empty where a cluster can move everything."""
    preemptible: bool = True
    """Whether all of it may be taken; it then waits again."""
    started_at: float | None = None
    """When it began to run, the last time; None while it waits."""
    waiting_since: float = 0.0
    """When it began to wait, the last time: submitted, or preempted."""
    service_gpu_s: float = 0.0
    """GPU seconds that it had had by `as_of`, start-up included (Tiresias' attained service).

    `service_at` tells those by now."""
    speed: Speed | None = None
    """None: nothing is known; policies take it as linear in the workers."""
    remaining_work: float | None = None
    """By `as_of`, in the unit of `speed.rate`; without a speed, worker seconds. None: not known.

    `remaining_at` tells what is left by now."""
    source: Source = Source.TIME_LIMIT
    """Where `remaining_work` comes from."""
    batch: Range | None = None
    """Aggregate batches that it accepts; None: only the script's own."""
    samples: int = 0
    """The aggregate batch that it trains with; 0: the script's own, or it waits."""
    last_change_at: float = 0.0
    """When its shares last changed."""
    change_cost_s: float = 0.0
    """Training time that one change of its shares costs."""
    start_cost_s: float = 0.0
    """Training time that a start costs."""
    most_workers: int = 0
    """The most workers that it has ever run with."""
    tenant: str = ""
    """Whose quota it counts against: the account that is charged, or a trace's virtual cluster."""
    opportunistic: bool = False
    """Declared so: its base, too, may be taken at any time (AntMan)."""
    guaranteed: bool = False
    """It runs within its tenant's quota, and is not taken for others (AntMan)."""
    fungible: bool = False
    """Its workers may run on another GPU type in another run."""
    heterogeneous: bool = False
    """Its workers may be of several GPU types in one run."""
    weight: float = 1.0
    """What its user's flexible demand counts for (the user's fairshare factor, where that is set)."""
    application: str = ""
    """What it runs, where that is known: jobs of one user and application are alike."""
    as_of: float | None = None
    """When `service_gpu_s` and `remaining_work` were so, of a running job; None: at the snapshot's instant.

    A cluster does not look at every job each time that something happens to one of them."""
    resumes_at: float = 0.0
    """It pays for its start or last change until then, and trains from then on."""
    history: tuple[Held, ...] = ()
    """All that it has ever held, oldest first; empty where nobody has kept that."""
    pace: float = 1.0
    """Of the GPUs that it has, to those that `speed` is of: below 1 on a slower type."""
    checkpoints: bool = True
    """Preempted, it goes on where it was; else it begins anew."""

    def service_at(self, now: float) -> float:
        """GPU seconds that it has had by `now`: what was last known, and what it has held since."""
        if self.as_of is None:
            return self.service_gpu_s
        return self.service_gpu_s + self.gpus * (now - self.as_of)

    def remaining_at(self, now: float) -> float | None:
        """Work that is left at `now`: what was last known, less what it has done since. None: not known."""
        if self.remaining_work is None or self.as_of is None or not self.shares:
            return self.remaining_work
        trained_s = now - max(self.as_of, self.resumes_at)
        if trained_s <= 0:
            return self.remaining_work
        return max(0.0, self.remaining_work - trained_s * self.rate_now)

    @property
    def rate_now(self) -> float:
        """Work that it does a second with what it has, its costs paid."""
        if self.speed is None:
            return self.allocated * self.pace
        return self.speed.rate(self.allocated, len(self.shares), self.samples) * self.pace

    @property
    def elastic(self) -> bool:
        """Whether it can have different numbers of workers."""
        return self.workers.max > self.workers.min

    @property
    def allocated(self) -> int:
        """Workers that it has now."""
        workers = 0
        for share in self.shares:  # a simulation asks often, and this takes half as long as sum()
            workers += share.workers
        return workers

    @property
    def gpus(self) -> int:
        """GPUs that it holds now."""
        return self.allocated * self.shape.gpus


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs that a tenant is guaranteed (AntMan, section 3.3)."""

    tenant: str
    gpus: int
    used: int = 0
    """Of those, by jobs that run and are not among those that a policy is shown."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the inference cluster needs, as one source says."""

    at: float
    """When that was so."""
    servers: float
    """Whole servers' worth, in use or asked for; not necessarily a whole number."""
    source: str
    """Who says so, for people."""


class LoanState(enum.Enum):
    """Where an inference server that was lent is on its way back."""

    LENT = "lent"
    CALLED_BACK = "called back"
    """Closed to newcomers; satellites are being scaled in."""
    PREEMPTING = "preempting"
    """Bases on it are being preempted and requeued."""
    ESCALATED = "escalated"
    """Its deadline is near or past: whatever is left there is ended by the cluster's own preemption."""


@dataclass(frozen=True, slots=True)
class Loan:
    """An inference server lent to training (Lyra, slides): in the borrowed partition and still in its own."""

    node: str
    since_at: float
    why: str
    state: LoanState = LoanState.LENT
    called_back_at: float | None = None
    deadline_at: float | None = None
    """When it is to be empty; None: nobody has asked for it."""
    why_back: str = ""
    workers_scaled_in: int = 0
    """Told to leave it so far."""
    bases_preempted: int = 0
    """For it so far."""
    servers_emptied_beside: int = 0
    """Other servers on loan that those preemptions emptied, though nobody wanted them back."""

    @property
    def closed(self) -> bool:
        """Nothing new may be placed there."""
        return self.state is not LoanState.LENT


@dataclass(frozen=True, slots=True)
class PastLoan:
    """A loan that is over. Times are seconds since the epoch."""

    node: str
    since_at: float
    why: str
    called_back_at: float | None
    """None: it ended without a call, as when its node was removed from the cluster."""
    deadline_at: float | None
    why_back: str
    empty_at: float
    """When the last worker had left it."""
    ended_at: float
    """When it was out of the borrowed partition as well."""
    workers_scaled_in: int
    bases_preempted: int
    servers_emptied_beside: int = 0
    """Other servers on loan that those preemptions emptied, though nobody wanted them back."""

    @property
    def reclaim_s(self) -> float | None:
        """From the call to the empty server."""
        return None if self.called_back_at is None else max(0.0, self.empty_at - self.called_back_at)

    @property
    def late(self) -> bool:
        """Whether it missed its deadline."""
        return self.deadline_at is not None and self.empty_at > self.deadline_at


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """An inference server that somebody has taken back by hand: it is not lent again before `until_at`."""

    node: str
    until_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes, jobs, grants at one instant: all that a policy may look at."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[QueuedJob, ...]
    elastic: tuple[ElasticJob, ...]
    satellite_partition: str
    """Where satellites on training nodes are submitted."""
    passed_over: frozenset[int] = frozenset()
    """Pending jobs that had resources set aside for long and did not start: nothing is kept for them."""
    slow_gpus: tuple[SlowGpu, ...] = ()
    """Those remembered at this instant."""
    training: tuple[TrainingJob, ...] = ()
    """All jobs that train or wait to, in the order in which they were submitted."""
    quotas: tuple[Quota, ...] = ()
    """Of tenants; a tenant that is not named has none."""
    decided_at: float = 0.0
    """When a plan last changed something."""
    ended_since: int = 0
    """Jobs that have ended since `decided_at`."""
    loans: tuple[Loan, ...] = ()
    """Inference servers that are lent to training at this instant, or on their way back."""
    borrowed_partition: str = ""
    """Where jobs on lent servers are submitted; "": nothing is ever lent."""
    stay_s: float = math.inf
    """How long GPUs that a job is given beyond its base are likely to stay with it, as they lately did.

    Infinite: nothing is known."""


@dataclass(frozen=True, slots=True)
class Grow:
    """Give `job` `workers` on `node`. `why` is one sentence for people."""

    job: JobKey
    node: str
    workers: int
    partition: str
    why: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take `grant_id` back from `job`; the unit of return is the whole satellite."""

    job: JobKey
    grant_id: str
    why: str
    of_itself: bool = False
    """The job may not have it by its own range or its owner's cap: nobody else wants it."""


Action = Grow | Shrink


@dataclass(frozen=True, slots=True)
class Allocate:
    """Let `job` have exactly `shares`: start it, change it, or, with none, preempt it.

    For clusters that can (`ClusterTraits.allocates`). All of a plan happen at once, so that what one job
    gives up another may have. `samples` is the aggregate batch from then on; 0: as the script says.
    """

    job: JobKey
    shares: tuple[Share, ...]
    why: str
    samples: int = 0
    guaranteed: bool = False
    """From then on within its tenant's quota (AntMan)."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Refuse a pending `job` for good (IBM, section III-D, where jobs are dropped instead of queued)."""

    job: JobKey
    why: str


@dataclass(frozen=True, slots=True)
class Note:
    """Why a job does not get more, or keeps what it has: what `flexo why` prints."""

    job: JobKey
    text: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The aggregate batch that `job` is to train with: samples of all its workers in one step."""

    job: JobKey
    samples: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants changed, and its reasons for what it leaves alone."""

    actions: tuple[Action, ...] = ()
    batches: tuple[Batch, ...] = ()
    """Of jobs that accept a range of batches; the others train with what their scripts say."""
    notes: tuple[Note, ...] = ()
    set_aside: tuple[int, ...] = ()
    """Pending jobs that idle or returning resources are kept for."""
    allocations: tuple[Allocate, ...] = ()
    """What jobs are to have, of those for which that changes."""
    drops: tuple[Drop, ...] = ()
    again_at: float | None = None
    """When to ask the policy again although nothing has happened; None: once something has."""
