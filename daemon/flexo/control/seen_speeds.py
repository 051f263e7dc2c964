"""How fast jobs train at the sizes that they have had, from the progress that their leaders report.

Where nobody has profiled a job, this is what is measured of it. Work is parts of its whole training.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from flexo.model.elastic import LeaderReport
from flexo.model.measured import ScalingPoint
from flexo.model.queue import JobKey

_ENOUGH_S: Final = 60.0
"""At one size, before anything is made of it: progress is told every few seconds, and may come in steps."""
_MOST_S: Final = 3600.0
"""What was seen of one size for so long counts half from then on: machines and data change."""


@dataclass(slots=True)
class _Seen:
    """Of one size."""

    work: float = 0.0
    seconds: float = 0.0

    def add(self, work: float, seconds: float) -> None:
        self.work, self.seconds = self.work + work, self.seconds + seconds
        if self.seconds > _MOST_S:
            self.work, self.seconds = self.work / 2, self.seconds / 2


@dataclass(slots=True)
class _Job:
    """What is followed of one job: each step of its progress, from the one before, of the same generation."""

    generation: int = -1
    progress: float = 0.0
    stepped_at: float | None = None
    sizes: dict[int, _Seen] = field(default_factory=dict)

    def follow(self, report: LeaderReport, now: float) -> None:
        steady = report.scalable and not report.changing and not report.errand
        if not steady or report.generation != self.generation or report.progress < self.progress:
            self.generation = report.generation if steady else -1
            self.progress, self.stepped_at = report.progress, None
        elif report.progress > self.progress:
            if self.stepped_at is not None and now > self.stepped_at:
                seen = self.sizes.setdefault(report.training_workers, _Seen())
                seen.add(report.progress - self.progress, now - self.stepped_at)
            self.progress, self.stepped_at = report.progress, now


class SeenSpeeds:
    """Of all jobs that run. For the controller's thread alone."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def see(self, reports: Mapping[JobKey, LeaderReport], running: Container[JobKey], now: float) -> None:
        """One look. A job whose leader is away for a while is not forgotten as long as it runs."""
        self._jobs = {key: job for key, job in self._jobs.items() if key in running}
        for key, report in reports.items():
            if key in running and report.training_workers > 0:
                self._jobs.setdefault(key, _Job()).follow(report, now)

    def points(self, now: float) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """By job, each size that was seen for long enough; as in a profile, but in its own unit of work."""
        return {
            key: tuple(
                ScalingPoint(workers, seen.work / seen.seconds, 0.0, 0.0, 0.0, 0, now)
                for workers, seen in sorted(job.sizes.items())
                if seen.seconds >= _ENOUGH_S
            )
            for key, job in self._jobs.items()
        }
