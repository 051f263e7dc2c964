"""Measurements of jobs and GPUs: scaling, slow GPUs, running times."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from flexo.model.queue import JobKey
from flexo_protos.resources import Amount


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A leader's measurement of its job's training with one number of workers (Amoeba, section 3.1)."""

    workers: int
    samples_per_s: float
    """Samples per second of all workers together; 0: not known."""
    step_s: float
    sync_s: float
    """The part of `step_s` that a worker waits in collectives."""
    efficiency: float
    """Throughput per worker, divided by the best that was measured: 0 to 1."""
    batches: int
    """Number of mini-batches over which the medians were taken."""
    measured_at: float


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a step with one batch on one worker, without the exchange of gradients (IBM, section
    III-B)."""

    samples: int
    step_s: float
    """Median over `steps`."""
    steps: int


@dataclass(frozen=True, slots=True)
class TriedBatches:
    """A leader's report of its job's trials of several batches. Nothing of it is verified."""

    weights: int
    """Weights of the model whose gradients workers exchange; 0: not known."""
    largest: int
    """Samples that fit one pass of a worker; 0: not known."""
    times: tuple[BatchTime, ...] = ()
    """The times by samples, ascending; empty: the job tried nothing."""
    worker_s: float = 0.0
    """Worker seconds that the trials took."""


@dataclass(frozen=True, slots=True)
class ScriptKey:
    """Jobs that train alike: those of one user with the same command and script, on GPUs of one type."""

    user: str
    digest: str
    """The digest that leaders report; "": not known."""
    gpu_type: str


@dataclass(frozen=True, slots=True)
class TriedScript:
    """The remembered trials of a script."""

    script: ScriptKey
    tried: TriedBatches
    at: float


@dataclass(frozen=True, slots=True)
class SlowGpuReport:
    """A leader's report that a worker was slower than the others of its job (Amoeba, section 5.4)."""

    job: JobKey
    node: str
    gpus: tuple[int, ...]
    """The cluster's numbers of the GPUs on the node; empty: not known."""
    ratio: float
    """The worker's own time for a mini-batch, divided by that of the other workers."""


@dataclass(frozen=True, slots=True)
class FailedWorkers:
    """A leader's report that workers failed, and were started again."""

    job: JobKey
    node: str
    workers: int
    how: str
    """How they ended, in the leader's words."""
    trained: bool = False
    """Whether they had trained; else they were new."""
    lately: int = 0
    """Workers of the job that failed in the last 10 minutes, these included; 0: the leader does not count."""


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A `SlowGpuReport` that flexod remembers."""

    node: str
    gpus: tuple[int, ...]
    ratio: float
    job: JobKey
    seen_at: float
    until_at: float
    """flexod puts no satellite on the node before this time."""
    user: str = ""
    """The owner of `job`; "": an older release has not recorded the owner, and the report counts for every
    user."""

    def __str__(self) -> str:
        which = f"GPU {', '.join(map(str, self.gpus))}" if self.gpus else "a GPU"
        return f"{which} of {self.node} ({self.ratio:.1f} times as slow as others, says job {self.job})"


class Speed(Protocol):
    """One job's training speed, as far as it is known (docs/explanation/scalability.md). `scalability`
    implements this.

    An implementation is a pure function: equal arguments give equal results, so that policies are
    deterministic.
    """

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """Work per second of `workers` spread over `nodes`; 0 if the job cannot run so.

        The unit of work is the job's own, the same as in `TrainingJob.remaining_work`: samples, iterations,
        or seconds of one worker. `batch`: the batch of the whole job, in samples; 0: the best that the job
        accepts.
        """
        ...

    def best_batch(self, workers: int, nodes: int) -> int:
        """The aggregate batch at which `rate` is best; 0: the job accepts only its script's own batch."""
        ...

    def __hash__(self) -> int:
        """Equal speeds give equal results, so that callers may cache the results."""
        ...


class Source(enum.Enum):
    """The source of a running time, the best one first."""

    PROGRESS = "progress"
    """The job's own reported progress."""
    HISTORY = "history"
    """Earlier jobs of its user that were like it."""
    TIME_LIMIT = "time limit"
    ORACLE = "oracle"
    """A trace's true duration, which no scheduler can know."""


@dataclass(frozen=True, slots=True)
class RunningTime:
    """The running time of a job that has ended. `gpus`: the GPUs of its base."""

    user: str
    gpus: Amount
    seconds: float
    ended_at: float
