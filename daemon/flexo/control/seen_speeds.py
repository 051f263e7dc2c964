"""Observes how fast jobs train at the sizes that they have had, from the progress that leaders report.

Policies use these speeds for jobs without a profile. The unit of work is a part of the whole training.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from flexo.model.elastic import LeaderReport
from flexo.model.measured import ScalingPoint
from flexo.model.queue import JobKey

_ENOUGH_S: Final = 60.0
"""The least time at one size before its speed counts. Leaders report progress every few seconds, and progress
may come in steps."""
_MOST_S: Final = 3600.0
"""The time after which the observations of one size count half: machines and data change."""


@dataclass(slots=True)
class _Seen:
    """The work done at one size, and the time that it took."""

    work: float = 0.0
    seconds: float = 0.0

    def add(self, work: float, seconds: float) -> None:
        self.work, self.seconds = self.work + work, self.seconds + seconds
        if self.seconds > _MOST_S:
            self.work, self.seconds = self.work / 2, self.seconds / 2


@dataclass(slots=True)
class _Job:
    """The observations of one job: its steps of progress, each measured from the step before in the same
    generation."""

    generation: int = -1
    progress: float = 0.0
    stepped_at: float | None = None
    sizes: dict[int, _Seen] = field(default_factory=dict)

    def follow(self, report: LeaderReport, now: float) -> None:
        steady = report.scalable and not report.changing and not report.pending_command
        if not steady or report.generation != self.generation or report.progress < self.progress:
            self.generation = report.generation if steady else -1
            self.progress, self.stepped_at = report.progress, None
        elif report.progress > self.progress:
            if self.stepped_at is not None and now > self.stepped_at:
                seen = self.sizes.setdefault(report.training_workers, _Seen())
                seen.add(report.progress - self.progress, now - self.stepped_at)
            self.progress, self.stepped_at = report.progress, now


class SeenSpeeds:
    """The observed speeds of all running jobs. For the controller's thread alone."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def see(self, reports: Mapping[JobKey, LeaderReport], running: Container[JobKey], now: float) -> None:
        """Process one poll. A job whose leader is away for a while is not forgotten as long as it runs."""
        self._jobs = {key: job for key, job in self._jobs.items() if key in running}
        for key, report in reports.items():
            if key in running and report.training_workers > 0:
                self._jobs.setdefault(key, _Job()).follow(report, now)

    def points(self, now: float) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """The speed of each job at each size that was seen for long enough.

        The points are those of a profile, but in the job's own unit of work.
        """
        return {
            key: tuple(
                ScalingPoint(workers, seen.work / seen.seconds, 0.0, 0.0, 0.0, 0, now)
                for workers, seen in sorted(job.sizes.items())
                if seen.seconds >= _ENOUGH_S
            )
            for key, job in self._jobs.items()
        }
