"""Keeps the results of profiles (`flexo profile`) for as long as their jobs are in the queue.

A job's own leader reports the measurements. So flexod bounds the points of a job by its range, and the number
of profiles of a user.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from flexo.control.state_store import StateStore
from flexo.model.elastic import ElasticJob
from flexo.model.measured import ScalingPoint
from flexo.model.queue import JobKey, QueuedJob

MOST_OF_A_USER: Final = 32
"""The most profiles of one user. One more replaces the user's oldest."""
_OUTLIVES_JOB_S: Final = 600.0
"""The time that a profile outlives its job in the queue: a cluster that restarts may show an empty queue
once."""

_Points = tuple[ScalingPoint, ...]


class Profiles:
    """The newest profile of each job. May be used from any thread."""

    def __init__(self, event_store: StateStore, now: float) -> None:
        self._event_store = event_store
        self._lock = threading.Lock()
        self._known = {key: points for key, points in event_store.scaling().items() if points}
        self._seen_at = dict.fromkeys(self._known, now)
        """The time when each job was last in the queue."""
        self._users: dict[JobKey, str] = {}

    @property
    def known(self) -> dict[JobKey, _Points]:
        """The points of each job, sorted by the number of workers."""
        with self._lock:
            return dict(self._known)

    def take(self, job: ElasticJob, measured: Iterable[ScalingPoint], now: float) -> _Points:
        """Remember the measurements of `job`. Returns the points within the job's range."""
        points = tuple(each for each in measured if job.workers.min <= each.workers <= job.workers.max)
        with self._lock:
            self._users[job.key] = job.user
            others = [key for key in self._known if key != job.key and self._users.get(key) == job.user]
            others.sort(key=lambda key: self._known[key][0].measured_at)
            dropped = others[: max(0, len(others) - MOST_OF_A_USER + 1)]
            for key in dropped:
                self._forget(key)
            if points:
                self._known[job.key], self._seen_at[job.key] = points, now
            else:
                self._forget(job.key)
        for key in dropped:
            self._event_store.set_scaling(key, ())
        self._event_store.set_scaling(job.key, points)
        return points

    def look(self, queue: Iterable[QueuedJob], now: float) -> None:
        """Forget the profiles of jobs that have been gone from the queue for long."""
        with self._lock:
            if not self._known:
                return
            for job in queue:
                if job.key in self._known:
                    self._seen_at[job.key], self._users[job.key] = now, job.user
            old = [key for key, seen_at in self._seen_at.items() if abs(now - seen_at) > _OUTLIVES_JOB_S]
            for key in old:
                self._forget(key)
        for key in old:
            self._event_store.set_scaling(key, ())

    def _forget(self, key: JobKey) -> None:
        for known in (self._known, self._seen_at, self._users):
            known.pop(key, None)
