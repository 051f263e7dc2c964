"""Room kept for one base that has waited for long, as EASY backfilling does, in numbers of GPUs (Lyra).

Lifka, "The ANL/IBM SP scheduling system" (1995). Flexible workers may use that room meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flexo.model import TrainingJob


@dataclass(slots=True)
class Reservation:
    """For whom, when it will fit, and how many GPUs are left beside it then."""

    head: TrainingJob
    at: float
    """Infinite: by no estimate will it ever fit, and nothing is kept for it."""
    spare: int

    @classmethod
    def of(cls, head: TrainingJob, room: int, ends: Iterable[tuple[float, int]], now: float) -> Reservation:
        """`room`: GPUs that its base may have now; `ends`: when others will end, and GPUs that they give."""
        spare, at = room - head.workers.min * head.shape.gpus, now
        for ends_at, gpus in sorted(ends):
            if spare >= 0:
                break
            spare, at = spare + gpus, ends_at
        return cls(head, at if spare >= 0 else math.inf, max(0, spare))

    def allows(self, job: TrainingJob, ends_at: float) -> bool:
        """Whether the base of `job` may start now, to end so: it does not delay the head."""
        return ends_at <= self.at or job.workers.min * job.shape.gpus <= self.spare or self._is_elsewhere(job)

    def started(self, job: TrainingJob, ends_at: float) -> None:
        """The base of `job` has started."""
        if ends_at > self.at and not self._is_elsewhere(job):
            self.spare -= job.workers.min * job.shape.gpus

    def _is_elsewhere(self, job: TrainingJob) -> bool:
        """It never has a GPU that the head could have."""
        if any(each.fungible or each.heterogeneous for each in (job, self.head)):
            return False
        own, other = self.head.shape.gpu_type, job.shape.gpu_type
        return bool(own and other and own != other)
