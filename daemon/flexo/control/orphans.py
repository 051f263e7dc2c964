"""Cancels satellites whose base is gone from the queue, and jobs that only say that they are satellites.

A user writes the comments of his own jobs. So nobody else's job is ever cancelled for a comment, and nothing
is written into the history of the job that a comment names. One cycle cancels a few only: thousands of jobs
with comments must not keep flexod busy.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import Final

import structlog

from flexo.clusters.base import ActionRefused, Cluster
from flexo.control.refusals import Refusals
from flexo.events import Event
from flexo.grants import Sight
from flexo.model.queue import JobKey, JobState, QueuedJob

_RETRY_S: Final = 30.0
"""Between two tries to cancel the same satellite."""
UNKNOWN_AT_ONCE: Final = 3
"""Jobs without a grant that one cycle cancels: each is a command."""
_SAY_AGAIN_S: Final = 300.0
"""Between two lines in the log about jobs without a grant."""
_USERS: Final = 5
"""Who is named in such a line."""

_log = structlog.get_logger("flexo.controller")


class Orphans:
    """The orphans of the last cycle. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, refusals: Refusals, lease_s: float) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._unknown_for_s = lease_s / 2
        """A job without a grant that waits is cancelled after so long."""
        self._due_at: dict[int, float] = {}
        self._unknown_since: dict[int, float] = {}
        self._said_at = -_SAY_AGAIN_S

    def cancel(self, sight: Sight, running: Container[JobKey], now: float) -> list[Event]:
        """Cancel orphans that were orphans in the last cycle, too, and some of the jobs without a grant.

        `running`: jobs that may have satellites.
        """
        self._say(sight.unknown, now)
        queue = {job.job_id for job in (*sight.orphans, *sight.unknown)}
        self._due_at = {job: at for job, at in self._due_at.items() if job in queue}
        events: list[Event] = []
        for job in sight.orphans:
            if job.job_id not in self._due_at:
                self._due_at[job.job_id] = now
            elif self._is_due(job, now):
                base = job.satellite.base if job.satellite else job.key
                text = f"satellite {job.job_id} is cancelled: job {base} is gone from the queue"
                events += self._cancel(job, base, text, now)
        for job in islice(self._unwanted(sight.unknown, running, now), UNKNOWN_AT_ONCE):
            text = f"job {job.job_id} is cancelled: it says that it is a satellite, and flexod granted none"
            events += self._cancel(job, job.key, text, now)
        return events

    def _unwanted(
        self, unknown: Sequence[QueuedJob], running: Container[JobKey], now: float
    ) -> Iterator[QueuedJob]:
        """Those whose base is gone, and those that have waited for long; not yet tried ones first."""
        since = self._unknown_since
        self._unknown_since = {job.job_id: since.get(job.job_id, now) for job in unknown}
        for job in sorted(unknown, key=lambda job: (self._due_at.get(job.job_id, 0.0), job.job_id)):
            assert job.satellite is not None
            if job.satellite.base not in running:
                wanted = job.job_id not in since
            else:
                wanted = (
                    job.state is not JobState.PENDING
                    or now - self._unknown_since[job.job_id] < self._unknown_for_s
                )
            if not wanted and self._is_due(job, now):
                yield job

    def _is_due(self, job: QueuedJob, now: float) -> bool:
        return job.state is not JobState.COMPLETING and self._due_at.get(job.job_id, now) <= now

    def _cancel(self, job: QueuedJob, of: JobKey, text: str, now: float) -> list[Event]:
        """`of`: in whose history that stands."""
        self._due_at[job.job_id] = now + _RETRY_S
        try:
            self._cluster.cancel(job.identifier)
        except ActionRefused as error:
            return list(self._refusals.note(str(error), of, now))
        return [Event(now, "cancel", of, text)]

    def _say(self, unknown: Sequence[QueuedJob], now: float) -> None:
        if not unknown or now - self._said_at < _SAY_AGAIN_S:
            return
        self._said_at = now
        users = sorted({job.user for job in unknown})
        _log.warning(
            "jobs have a satellite's comment, but no grant of flexod's: they count as ordinary jobs",
            jobs=len(unknown),
            users=users[:_USERS],
            more_users=max(0, len(users) - _USERS),
        )
