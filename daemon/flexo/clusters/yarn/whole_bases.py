"""Bases whose gang was complete stay so while YARN does not show all of it.

After a restart of the ResourceManager, or after another one has become active, each node comes back when its
NodeManager next looks for it: every 30 s by default. The base's containers run all the time, and so do its
satellites. The same holds while YARN starts another ApplicationMaster, or replaces one container.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from flexo.model.queue import JobState, QueuedJob

PATIENCE_S: Final = 120.0
"""How long a base may be incomplete before it counts as waiting."""


class WholeBases:
    """The bases that were complete when they were last seen so. Times are those of time.monotonic."""

    def __init__(self) -> None:
        self._whole: dict[str, QueuedJob] = {}
        """By identifier."""
        self._incomplete_since: dict[str, float] = {}

    def steady(self, job: QueuedJob, containers: int, now: float) -> QueuedJob:
        """A base as it is or, if it is incomplete for less than PATIENCE_S, as it was.

        `containers`: those of its gang that YARN shows. They tell a job that has begun anew.
        """
        known = self._whole.get(job.identifier)
        if job.state is JobState.RUNNING:
            self._whole[job.identifier] = job
            self._incomplete_since.pop(job.identifier, None)
            return job
        began_anew = known is not None and containers > 0 and job.restart_count != known.restart_count
        if known is None or began_anew:
            return job
        since = self._incomplete_since.setdefault(job.identifier, now)
        return known if now - since < PATIENCE_S else job

    def keep_only(self, identifiers: Collection[str]) -> None:
        """Forget all bases but these."""
        for table in (self._whole, self._incomplete_since):
            for gone in table.keys() - set(identifiers):
                del table[gone]
