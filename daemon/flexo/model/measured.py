"""What was measured of jobs and GPUs: scaling, slow GPUs, running times."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from flexo.model.queue import JobKey
from flexo_protos.resources import Amount


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
    gpus: Amount
    seconds: float
    ended_at: float
