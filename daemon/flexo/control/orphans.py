"""Ends satellites whose base is gone from the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster
from flexo.control.refusals import Refusals
from flexo.journal import Event
from flexo.model import JobState, SlurmJob

_RETRY_S: Final = 30.0
"""Between two tries to cancel the same satellite."""


class Orphans:
    """The orphans of the last cycle. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, refusals: Refusals) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._due_at: dict[int, float] = {}

    def cancel(self, orphans: Sequence[SlurmJob], now: float) -> list[Event]:
        """End those of `orphans` that were orphans in the last cycle, too."""
        events: list[Event] = []
        due_at = {job.job_id: self._due_at.get(job.job_id, now) for job in orphans}
        for job in orphans:
            first = job.job_id not in self._due_at
            if first or job.state is JobState.COMPLETING or due_at[job.job_id] > now:
                continue
            assert job.satellite is not None
            due_at[job.job_id] = now + _RETRY_S
            try:
                self._cluster.cancel(job.job_id)
            except ActionRefused as error:
                events += self._refusals.note(str(error), job.satellite.base, now)
                continue
            text = f"satellite {job.job_id} is cancelled: job {job.satellite.base} is gone from the queue"
            events.append(Event(now, "cancel", job.satellite.base, text))
        self._due_at = due_at
        return events
