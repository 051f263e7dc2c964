"""Keeps the leases of satellites alive for as long as their grants stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterState
from flexo.control.refusals import Refusals
from flexo.journal import Event
from flexo.model import ElasticJob, JobKey, JobState, SatelliteState, SlurmJob

_RETRY_S: Final = 30.0
"""Between two tries to extend the same lease."""
_TRAINING: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})


class Leases:
    """When leaders were last heard and leases last extended. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, refusals: Refusals, lease_s: int, started_at: float) -> None:
        self._cluster = cluster
        self._refusals = refusals
        self._lease_s = lease_s
        self._started_at = started_at
        self._attached_at: dict[JobKey, float] = {}
        self._extended_at: dict[int, float] = {}

    def extend(
        self, state: ClusterState, jobs: Sequence[ElasticJob], attached: Collection[JobKey]
    ) -> list[Event]:
        """Leases of which less than half is left, under grants that stand.

        A leader that is not attached keeps its satellites for one lease more: flexod or the network may
        have been away. After that they run out.
        """
        now = state.at
        queue = {job.job_id: job for job in state.jobs}
        running = {job.key for job in jobs}
        self._attached_at = {key: at for key, at in self._attached_at.items() if key in running}
        self._attached_at.update((key, now) for key in attached if key in running)
        self._extended_at = {job: at for job, at in self._extended_at.items() if job in queue}
        events: list[Event] = []
        for job in jobs:
            seen_at = self._attached_at.get(job.key, self._started_at)
            if queue[job.key.job_id].state is JobState.RUNNING and now - seen_at <= self._lease_s:
                events += self._extend_all(job, queue, now)
        return events

    def _extend_all(self, job: ElasticJob, queue: dict[int, SlurmJob], now: float) -> list[Event]:
        due = [
            grant.satellite_job_id
            for grant in job.grants
            if grant.state in _TRAINING and self._is_due(queue.get(grant.satellite_job_id), now)
        ]
        events: list[Event] = []
        extended = [satellite for satellite in due if self._extend(satellite, now, job.key, events)]
        if extended:
            names = ", ".join(map(str, extended))
            text = f"the grant stands: the lease of {names} ends {self._lease_s} s from now"
            events.append(Event(now, "extend", job.key, text))
        return events

    def _is_due(self, satellite: SlurmJob | None, now: float) -> bool:
        if satellite is None or satellite.state is not JobState.RUNNING:
            return False
        if satellite.started_at is None or satellite.time_limit_s is None:
            return False
        tried_at = self._extended_at.get(satellite.job_id, 0.0)
        left = satellite.started_at + satellite.time_limit_s - now
        return left < self._lease_s / 2 and now - tried_at >= _RETRY_S

    def _extend(self, satellite_job_id: int, now: float, key: JobKey, events: list[Event]) -> bool:
        self._extended_at[satellite_job_id] = now
        try:
            self._cluster.extend(satellite_job_id, self._lease_s)
        except ActionRefused as error:
            events += self._refusals.note(str(error), key, now)
            return False
        self._refusals.forget()
        return True
