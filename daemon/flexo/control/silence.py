"""Notices jobs that have committed no batch for long, from what their leaders report anyway.

flexod cannot tell why: such a job may evaluate, write a checkpoint, or be stuck.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import LeaderReport
from flexo.model.queue import JobKey
from flexo.words import duration

SILENT_S: Final = 300.0
"""The least time without a batch that is long."""
_TIMES_AS_LONG: Final = 2.0
"""A time is long if it is so many times as long as any before: some scripts commit, or evaluate, every 10
minutes."""


def silent_for(seconds: float) -> str:
    """The sentence on a job that has committed no batch for so long."""
    return f"it has committed no batch for {duration(seconds)}: it may evaluate, or be stuck"


@dataclass(slots=True)
class _Job:
    """What is known of one job's batches."""

    trains_as: tuple[int, int] = (-1, 0)
    """The generation and its workers; no generation while the job does not train."""
    committed: int = 0
    since_at: float = 0.0
    """Time of the last batch that was seen, or since when the job trains at its present size."""
    longest_s: float = 0.0
    """The longest time between two batches so far."""

    def follow(self, report: LeaderReport, now: float) -> None:
        begun = report.scalable or bool(report.unscalable_why)
        trains = begun and not (report.changing or report.paused or report.pending_command)
        trains_as = (report.generation, report.training_workers) if trains else (-1, 0)
        if not trains or trains_as != self.trains_as:
            self.trains_as, self.since_at = trains_as, now
        elif report.batches_committed != self.committed:
            self.longest_s = max(self.longest_s, now - self.since_at)
            self.since_at = now
        self.committed = report.batches_committed

    def is_silent(self, now: float) -> bool:
        silent_s = now - self.since_at
        return self.committed > 0 and silent_s >= max(SILENT_S, _TIMES_AS_LONG * self.longest_s)


class SilentJobs:
    """The times of the last batches of all running jobs. For the controller's thread alone."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}

    def see(
        self, reports: Mapping[JobKey, LeaderReport], running: Container[JobKey], now: float
    ) -> Mapping[JobKey, float]:
        """Process one poll. Returns since when jobs whose leaders report have committed no batch, if that is
        long for the job, and if it has ever committed any."""
        known = self._jobs
        self._jobs = {key: known.get(key) or _Job() for key in reports if key in running}
        for key, job in self._jobs.items():
            job.follow(reports[key], now)
        return {key: job.since_at for key, job in self._jobs.items() if job.is_silent(now)}
