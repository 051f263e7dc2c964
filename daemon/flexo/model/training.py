"""Jobs that train, as policies see them, and the quotas of tenants."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model.measured import Source, Speed
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo_protos.resources import Amount, Resources


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The workers of one job on one node."""

    node: str
    workers: int


@dataclass(frozen=True, slots=True)
class Held:
    """An entry of a job's history: its workers and nodes from `at` until the next entry."""

    at: float
    workers: int
    nodes: int


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job that trains, elastic or not, pending or running, as policies see it.

    `shares`: the nodes of its workers; empty while the job waits. The workers in `base` stay where they are
    until the job ends. Where jobs grow by satellites, a running base is not moved, and is preempted only if
    `preemptible`.
    """

    key: JobKey
    user: str
    workers: Range
    """The range of its number of workers; min == max: not elastic."""
    shape: Resources
    """The resources of one worker (one rank) on a node."""
    submitted_at: float
    requested_workers: int = 0
    """The number of workers that it would run with if it were not elastic; 0: `workers.min`."""
    shares: tuple[NodeShare, ...] = ()
    base: tuple[NodeShare, ...] = ()
    """The part of `shares` that cannot be moved; empty where a cluster can move everything."""
    preemptible: bool = True
    """Whether the whole job may be preempted; it then waits again."""
    started_at: float | None = None
    """Time of its last start; None while it waits."""
    waiting_since: float = 0.0
    """Time when it last began to wait: when it was submitted or preempted."""
    service_gpu_s: float = 0.0
    """GPU seconds that the job had received by `as_of`, start-up included (Tiresias' attained service).

    `service_at` returns the value by now."""
    speed: Speed | None = None
    """The job's speed; None: not known, and policies take it as linear in the workers."""
    speeds: tuple[tuple[str, Speed], ...] = ()
    """The job's speed on each GPU type, as far as it is known; empty: `speed` is for whatever type it has."""
    remaining_work: float | None = None
    """Work left at `as_of`, in the unit of `speed.rate`, or worker seconds without a speed. None: not known.

    `remaining_at` returns the value by now."""
    source: Source = Source.TIME_LIMIT
    """The source of `remaining_work`."""
    batch: Range | None = None
    """Aggregate batches that the job accepts; None: only the script's own."""
    samples: int = 0
    """The aggregate batch that the job trains with; 0: the script's own, or the job waits."""
    last_change_at: float = 0.0
    """Time when `shares` last changed."""
    change_cost_s: float = 0.0
    """Training time that one change of its shares costs."""
    start_cost_s: float = 0.0
    """Training time that a start costs."""
    most_workers: int = 0
    """The most workers that it has ever run with."""
    tenant: str = ""
    """The owner of the quota that it counts against: the account that is charged, or a trace's virtual
    cluster."""
    opportunistic: bool = False
    """Whether its user declared it opportunistic: its base, too, may be preempted at any time (AntMan)."""
    guaranteed: bool = False
    """Whether it runs within its tenant's quota, and is not preempted for others (AntMan)."""
    fungible: bool = False
    """Whether its workers may run on another GPU type in another run."""
    heterogeneous: bool = False
    """Whether its workers may be of several GPU types in one run."""
    weight: float = 1.0
    """The weight of its user's flexible demand (the user's fairshare factor, where that is set)."""
    application: str = ""
    """The application that the job runs, if known. Jobs of one user and application are taken to be alike."""
    as_of: float | None = None
    """Time at which `service_gpu_s` and `remaining_work` of a running job held; None: the snapshot's instant.

    A cluster does not update every job each time that something happens to one of them."""
    resumes_at: float = 0.0
    """Time from which the job trains; until then it pays for its start or last change."""
    history: tuple[Held, ...] = ()
    """All allocations that the job has had, oldest first; empty where nobody has recorded them."""
    pace: float = 1.0
    """The speed of the job's GPUs, relative to the GPUs that `speed` is for: below 1 on a slower type."""
    checkpoints: bool = True
    """Whether the job continues after a preemption; otherwise it begins anew."""
    shared: bool = False
    """Whether `shares` are second seats: seats on GPUs that may have another job in their owner's seats.

    Only simulated clusters have second seats."""
    utilization: float = 1.0
    """The share of the time, 0 to 1, in which the job keeps a GPU of its own busy; 1 where nobody
    measures it."""

    def speed_on(self, gpu_type: str) -> Speed | None:
        """The job's speed on a GPU type; None: not known."""
        return dict(self.speeds).get(gpu_type) if self.speeds else self.speed

    def service_at(self, now: float) -> float:
        """GPU seconds received by `now`: the last known value, and the GPUs held since."""
        if self.as_of is None:
            return self.service_gpu_s
        return self.service_gpu_s + self.gpus * (now - self.as_of)

    def remaining_at(self, now: float) -> float | None:
        """Work left at `now`: the last known value, less the work done since. None: not known."""
        if self.remaining_work is None or self.as_of is None or not self.shares:
            return self.remaining_work
        trained_s = now - max(self.as_of, self.resumes_at)
        if trained_s <= 0:
            return self.remaining_work
        return max(0.0, self.remaining_work - trained_s * self.rate_now)

    @property
    def rate_now(self) -> float:
        """Work per second with the present workers, once the costs of the last change are paid."""
        if self.speed is None:
            return self.allocated * self.pace
        return self.speed.rate(self.allocated, len(self.shares), self.samples) * self.pace

    @property
    def elastic(self) -> bool:
        """Whether the job's number of workers can change."""
        return self.workers.max > self.workers.min

    @property
    def allocated(self) -> int:
        """Number of workers that the job has now."""
        workers = 0
        for share in self.shares:  # a simulation asks often, and this takes half as long as sum()
            workers += share.workers
        return workers

    @property
    def gpus(self) -> Amount:
        """GPUs that the job holds now."""
        return self.allocated * self.shape.gpus


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs that a tenant is guaranteed (AntMan, section 3.3)."""

    tenant: str
    gpus: Amount
    used: Amount = 0
    """GPUs of the quota in use by running jobs that are not among the jobs shown to a policy."""
