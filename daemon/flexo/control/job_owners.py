"""Tells the event store whose each elastic job is, so that flexod knows it after the job's end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flexo.control.state_store import StateStore
from flexo.event_store.job_owners import JobOwner
from flexo.model.queue import QueuedJob

_AGAIN_S: Final = 3600.0
"""How often the owners of all jobs are written: the event store forgets those it has long not heard of."""


class JobOwners:
    """The owners that the event store knows. For the controller's thread alone."""

    def __init__(self, event_store: StateStore) -> None:
        self._event_store = event_store
        self._kept: frozenset[JobOwner] = frozenset()
        self._all_at = 0.0
        """When all were written."""

    def look(self, queue: Iterable[QueuedJob], now: float) -> None:
        """Process one poll: each elastic job is written, and again each hour. What the disk refuses is tried
        again."""
        here = frozenset(JobOwner(job.job_id, job.owner, job.user) for job in queue if job.elastic)
        every = not 0 <= now - self._all_at < _AGAIN_S
        new = here if every else here - self._kept
        if not new or self._event_store.set_owners(new, now):
            self._kept = here
            self._all_at = now if every else self._all_at
