"""Jobs that train, as policies see them, and what tenants are guaranteed."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model.measured import Source, Speed
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo_protos.resources import Amount, Resources


@dataclass(frozen=True, slots=True)
class Share:
    """The workers of one job on one node."""

    node: str
    workers: int


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
    shape: Resources
    """What one worker (one rank) takes of a node."""
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
    def gpus(self) -> Amount:
        """GPUs that it holds now."""
        return self.allocated * self.shape.gpus


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs that a tenant is guaranteed (AntMan, section 3.3)."""

    tenant: str
    gpus: Amount
    used: Amount = 0
    """Of those, by jobs that run and are not among those that a policy is shown."""
