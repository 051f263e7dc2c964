"""A snapshot of the cluster, and what a policy wants changed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flexo.model.elastic import ElasticJob
from flexo.model.loans import Loan
from flexo.model.measured import SlowGpu
from flexo.model.nodes import Node, Partition
from flexo.model.queue import JobKey, QueuedJob
from flexo.model.training import Quota, Share, TrainingJob


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
