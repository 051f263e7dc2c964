"""The first policy: every elastic job gets all workers that it may have, in even shares
(docs/explanation/policies-greedy.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement


@dataclass(frozen=True, slots=True)
class Greedy(Policy):
    """Grows every running job to its maximum, as far as there are GPUs, in even shares.

    It starts no jobs, and uses no speeds, running times or weights. Applied again and again it comes to rest:
    each step raises the smallest share that it touches, and the number of shares is limited.
    """

    name: ClassVar[str] = "greedy"
    uses_running_times: ClassVar[bool] = False
    starts_jobs: ClassVar[bool] = False

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """The maximum of each running job; if there is not enough for all, jobs share evenly."""
        return Targets(tuple(Target(job.key, job.workers.max) for job in jobs.running()), evenly=True)
