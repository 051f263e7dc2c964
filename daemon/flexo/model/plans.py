"""The snapshot of the cluster that a policy reads, and the plan that it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flexo.model.elastic import ElasticJob
from flexo.model.loans import Loan
from flexo.model.measured import SlowGpu
from flexo.model.nodes import Node, Partition
from flexo.model.queue import JobKey, QueuedJob
from flexo.model.training import NodeShare, Quota, TrainingJob
from flexo_protos.resources import Devices


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes, jobs and grants at one instant: all that a policy may read."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[QueuedJob, ...]
    elastic: tuple[ElasticJob, ...]
    satellite_partition: str
    """The partition to which satellites on training nodes are submitted."""
    passed_over: frozenset[int] = frozenset()
    """Pending jobs that did not start although resources were set aside for them for long. Nothing more is
    kept for these jobs."""
    slow_gpus: tuple[SlowGpu, ...] = ()
    """Slow GPUs that flexod remembers at this instant."""
    training: tuple[TrainingJob, ...] = ()
    """All jobs that train or wait to, in the order in which they were submitted."""
    quotas: tuple[Quota, ...] = ()
    """Quotas of tenants; a tenant that is not named has none."""
    decided_at: float = 0.0
    """Time when a plan last changed something."""
    ended_count: int = 0
    """Jobs that have ended since `decided_at`."""
    loans: tuple[Loan, ...] = ()
    """Inference servers that are lent to training at this instant, or being reclaimed."""
    borrowed_partition: str = ""
    """The partition to which jobs on lent servers are submitted; "": nothing is ever lent."""
    stay_s: float = math.inf
    """Seconds that GPUs beyond a job's base are likely to stay with it, as they lately did.

    Infinite: nothing is known."""


@dataclass(frozen=True, slots=True)
class Grow:
    """Give `job` a satellite with `workers` on `node`. `why` is one sentence for people."""

    job: JobKey
    node: str
    workers: int
    partition: str
    why: str
    shared_gpus: tuple[Devices, ...] = ()
    """See `Grant`."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take `grant_id` back from `job`; the unit of return is the whole satellite."""

    job: JobKey
    grant_id: str
    why: str
    of_itself: bool = False
    """Whether the job's own range or its owner's cap forbids the grant; no other job needs it."""


Action = Grow | Shrink


@dataclass(frozen=True, slots=True)
class Allocate:
    """Let `job` have exactly `shares`: start it, change it, or, with none, preempt it.

    Only a cluster with `ClusterTraits.allocates` carries it out. All allocations of a plan take effect at
    once, so that one job can have what another gives up. `samples`: the aggregate batch from then on; 0: the
    script's own.
    """

    job: JobKey
    shares: tuple[NodeShare, ...]
    why: str
    samples: int = 0
    guaranteed: bool = False
    """Whether the job runs within its tenant's quota from then on (AntMan)."""
    shared: bool = False
    """Whether `shares` are second seats (`TrainingJob.shared`)."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Refuse a pending `job` for good (IBM, section III-D, where jobs are dropped instead of queued)."""

    job: JobKey
    why: str


@dataclass(frozen=True, slots=True)
class Note:
    """The reason why a job does not get more, or keeps what it has; `flexo why` prints it."""

    job: JobKey
    text: str
    brief: str = ""
    """The reason in a few words, for a headline. "": the note is no reason for the job's size."""
    cause: str = ""
    """What stays the same for as long as the reason stands, while durations and nodes in the text change.
    "": the note is no reason, or the event of a decision has the reason."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The aggregate batch that `job` is to train with: samples of all its workers in one step."""

    job: JobKey
    samples: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that a policy decides, and its reasons for what it leaves alone."""

    actions: tuple[Action, ...] = ()
    batches: tuple[Batch, ...] = ()
    """Batches of the jobs that accept a range; the other jobs train with the batch of their scripts."""
    notes: tuple[Note, ...] = ()
    set_aside: tuple[int, ...] = ()
    """Pending jobs for which idle or returning resources are kept."""
    allocations: tuple[Allocate, ...] = ()
    """The new allocations of the jobs that change."""
    drops: tuple[Drop, ...] = ()
    again_at: float | None = None
    """Time to ask the policy again even if nothing has happened; None: not before something has happened."""
