"""The records of the jobs of a simulation; results and pictures are made from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flexo.model.training import Held
from flexo_simulation.workload import TraceJob


class End(enum.Enum):
    """The way in which a job's story ends."""

    FINISHED = "finished"
    DROPPED = "dropped"
    """The policy refused the job."""
    LIMIT = "time limit"
    """The time limit ended the job before it was done."""
    NEVER_FITS = "never fits"
    """The job's smallest size is larger than the cluster: it was not even submitted."""
    NEVER_STARTED = "never started"
    """The job still waited when nothing could happen any more."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job's story. Times are seconds since the workload's beginning."""

    job: TraceJob
    end: End
    first_start_at: float | None = None
    """Time of the first start; None: the job never had GPUs."""
    ended_at: float | None = None
    """Time when the job finished, was dropped or was ended; None: it never came to that."""
    gpu_s: float = 0.0
    """GPU seconds that the job held, in seats of either kind, costs included."""
    resizes: int = 0
    """Number of changes of where its workers were, while it ran."""
    preemptions: int = 0
    """Number of times that the whole job was preempted."""
    timeline: tuple[Held, ...] = ()
    on_loan: bool = False
    """Whether the job ever had GPUs of inference servers on loan."""
    beside_s: float = 0.0
    """Seconds that the job trained in owners' seats with another job in the second seat of one of its
    GPUs."""
    lost_s: float = 0.0
    """The part of `beside_s` that the job lost by that."""

    @property
    def jct_s(self) -> float | None:
        """Seconds from submission to completion; None unless the job finished."""
        if self.end is not End.FINISHED or self.ended_at is None:
            return None
        return self.ended_at - self.job.submitted_at

    @property
    def slowdown(self) -> float | None:
        """The part by which steps took longer while the job shared its GPUs; None: it never did."""
        if self.beside_s <= self.lost_s:
            return None
        return self.lost_s / (self.beside_s - self.lost_s)

    @property
    def queue_s(self) -> float | None:
        """Seconds from submission until the job first had GPUs; None: it never had."""
        return None if self.first_start_at is None else self.first_start_at - self.job.submitted_at
