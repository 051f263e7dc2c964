"""The first policy: every elastic job is to have all that it may, in even shares (docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement


@dataclass(frozen=True, slots=True)
class Greedy(Policy):
    """It says nothing of who starts, and knows nothing of speeds, running times and weights.

    Applied again and again it comes to rest: each step raises the smallest share that it touches, and there
    are only so many shares.
    """

    name: ClassVar[str] = "greedy"
    uses_running_times: ClassVar[bool] = False
    starts_jobs: ClassVar[bool] = False

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Its maximum for each job that runs, as far as there is enough for all."""
        return Targets(tuple(Target(job.key, job.workers.max) for job in jobs.running()), evenly=True)
