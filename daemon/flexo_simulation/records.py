"""What became of each job of a simulation: what results and pictures are made from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flexo.model.training import Held
from flexo_simulation.workload import TraceJob


class End(enum.Enum):
    """How a job's story ends."""

    FINISHED = "finished"
    DROPPED = "dropped"
    """Refused by the policy."""
    LIMIT = "time limit"
    """Ended by its time limit before it was done."""
    NEVER_FITS = "never fits"
    """Its smallest size is larger than the cluster: it was not even submitted."""
    NEVER_STARTED = "never started"
    """It still waited when nothing could happen any more."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job's story. Times are seconds since the workload's beginning."""

    job: TraceJob
    end: End
    first_start_at: float | None = None
    """None: it never had GPUs."""
    ended_at: float | None = None
    """When it finished, was dropped or ended; None: it never came to that."""
    gpu_s: float = 0.0
    """GPU seconds that it held, costs included."""
    resizes: int = 0
    """Changes of where its workers were, while it ran."""
    preemptions: int = 0
    """How often all of it was taken."""
    timeline: tuple[Held, ...] = ()
    on_loan: bool = False
    """Whether it ever had GPUs of inference servers on loan."""

    @property
    def jct_s(self) -> float | None:
        """From submission to completion; None unless it finished."""
        if self.end is not End.FINISHED or self.ended_at is None:
            return None
        return self.ended_at - self.job.submitted_at

    @property
    def queue_s(self) -> float | None:
        """From submission until it first had its GPUs; None where it never had."""
        return None if self.first_start_at is None else self.first_start_at - self.job.submitted_at
