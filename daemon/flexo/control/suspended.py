"""Reclaims the satellites of a suspended base job: its workers stand still, and other jobs can use the GPUs.

Gang scheduling suspends jobs for one time slice after another, so a grace period comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster
from flexo.control.recent_errors import RecentErrors
from flexo.events import Event
from flexo.grants import GrantLedger
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.plans import Note
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.words import duration, held_by

_RETRY_S: Final = 30.0
"""The interval between two attempts to cancel the same satellite."""


class SuspendedBases:
    """The base jobs that the queue shows as suspended, each with the time since when. For the controller's
    thread alone."""

    def __init__(self, cluster: Cluster, recent_errors: RecentErrors, grace_s: float) -> None:
        self._cluster = cluster
        self._recent_errors = recent_errors
        self._grace_s = grace_s
        self._since: dict[JobKey, float] = {}
        self._ending: dict[int, JobKey] = {}
        """The satellites of grants that this class withdrew, with their jobs."""
        self._tried_at: dict[int, float] = {}

    def look(self, jobs: Iterable[ElasticJob], now: float) -> None:
        """Process one poll. A base job that runs again, if only for a moment, gets a new grace period."""
        self._since = {job.key: self._since.get(job.key, now) for job in jobs if job.suspended}

    def take_back(self, jobs: Sequence[ElasticJob], book: GrantLedger, now: float) -> list[Event]:
        """Withdraw the grants of jobs whose grace period is over. Returns the events."""
        events: list[Event] = []
        for job in jobs:
            if not self._is_over(job.key, now):
                continue
            for grant in job.all_grants:
                if grant.state is not SatelliteState.LEAVING:
                    book.withdraw(job.key, grant.grant_id, now)
                    if grant.satellite_job_id:
                        self._ending[grant.satellite_job_id] = job.key
                    events.append(Event(now, "shrink", job.key, f"give back {_what(grant)}: {self._why()}"))
        return events

    def cancel(self, queue: Sequence[QueuedJob], now: float) -> list[Event]:
        """Cancel the satellites of the withdrawn grants: the job's leader may be suspended, too, and cannot
        do it."""
        there = {job.job_id: job for job in queue if job.state is not JobState.COMPLETING}
        self._ending = {satellite: key for satellite, key in self._ending.items() if satellite in there}
        self._tried_at = {job: at for job, at in self._tried_at.items() if job in self._ending}
        events: list[Event] = []
        for satellite, key in self._ending.items():
            if now - self._tried_at.get(satellite, -math.inf) < _RETRY_S:
                continue
            self._tried_at[satellite] = now
            try:
                self._cluster.cancel(there[satellite].identifier)
            except ActionRefused as error:
                events += self._recent_errors.note(str(error), key, now)
                continue
            events.append(Event(now, "cancel", key, f"satellite {satellite} is cancelled: {self._why()}"))
        return events

    def notes(self, jobs: Iterable[ElasticJob], now: float, resume_command: str = "") -> tuple[Note, ...]:
        """The notes on suspended jobs. `resume_command`: see ClusterTraits."""
        held = (job for job in jobs if job.key in self._since)
        return tuple(Note(job.key, self._note(job, now, resume_command), cause="suspended") for job in held)

    def _is_over(self, key: JobKey, now: float) -> bool:
        since = self._since.get(key)
        return since is not None and now - since >= self._grace_s

    def _why(self) -> str:
        return f"its base has been suspended for {self._grace_s:.0f} s ([controller] suspend_grace_s)"

    def _note(self, job: ElasticJob, now: float, resume_command: str) -> str:
        left_s = self._since[job.key] + self._grace_s - now
        standing = any(grant.state is not SatelliteState.LEAVING for grant in job.all_grants)
        back = f"gives its satellites back in {duration(left_s)}, and " if standing and left_s > 0 else ""
        text = f"its base is suspended: the job {back}is granted nothing until it is resumed"
        return f"{text} (`{resume_command} {job.key.job_id}`)" if resume_command else text


def without_reasons_of(notes: Sequence[Note], jobs: Iterable[ElasticJob]) -> tuple[Note, ...]:
    """The policy's notes, without those on suspended jobs: the policy does not know why these do not grow."""
    suspended = {job.key for job in jobs if job.suspended}
    return tuple(note for note in notes if note.job not in suspended)


def _what(grant: Grant) -> str:
    return f"{held_by(grant.workers)} on {grant.node}"
