"""Puts the pending jobs of a cluster in the policy's order, by setting their priorities.

flexod orders ordinary jobs and elastic base jobs alike. It never orders held jobs, satellites, jobs without
GPUs, or jobs of partitions that training does not use. Somebody who changes a priority of flexod's to one
outside flexod's band has a reason. flexod leaves that job alone from then on, also after a restart, until the
job starts or is held and released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, Prioritizes, Priority
from flexo.control.recent_errors import RecentErrors
from flexo.control.state_store import StateStore
from flexo.events import Event
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.policies.pending import waits_for_resources

MOST_AT_ONCE: Final = 100
"""The most priorities set in one cycle. Each is a separate request to the cluster."""
MOST_RANKED: Final = 500
"""The most jobs that flexod puts in order, counted from the first: a scheduler considers no more. The other
jobs wait below them, in the cluster's own order."""
_RETRY_S: Final = 60.0
"""The pause after the cluster has refused a priority."""
_NAMED: Final = 5


class Priorities:
    """The priorities that flexod has set. For the controller's thread alone."""

    def __init__(
        self, cluster: Cluster, event_store: StateStore, recent_errors: RecentErrors, *, dry_run: bool
    ) -> None:
        self._cluster = cluster
        self._able = cluster if isinstance(cluster, Prioritizes) else None
        self._event_store = event_store
        self._recent_errors = recent_errors
        self._dry_run = dry_run
        self._set = event_store.priorities()
        self._left_alone: set[JobKey] = set()
        self._not_before = 0.0
        self._said: tuple[Priority, ...] = ()

    def follow(self, order: Sequence[JobKey], jobs: Sequence[QueuedJob], now: float) -> list[Event]:
        """Set priorities so that the pending `jobs` of `order` start in that order. Returns the events."""
        if self._able is None:
            why = f"{self._cluster.software} cannot be told in which order jobs start"
            return list(self._recent_errors.note(why, None, now))
        return self._follow(self._able, order, jobs, now)

    def _follow(
        self, cluster: Prioritizes, order: Sequence[JobKey], jobs: Sequence[QueuedJob], now: float
    ) -> list[Event]:
        pending = {job.key: job for job in jobs if job.state is JobState.PENDING and job.satellite is None}
        events = self._look(cluster, {key: job.priority for key, job in pending.items()}, now)
        if now < self._not_before:
            return events
        ranked = self._ranked(cluster, order, pending)
        wanted = cluster.arrange([job.priority for job in ranked])
        changes = [
            (job.key, Priority(job.identifier, priority))
            for job, priority in zip(ranked, wanted, strict=True)
            if job.priority != priority
        ]
        return events + self._send(cluster, changes[:MOST_AT_ONCE], now)

    def _ranked(
        self, cluster: Prioritizes, order: Sequence[JobKey], pending: Mapping[JobKey, QueuedJob]
    ) -> list[QueuedJob]:
        """The jobs to put in order, without held jobs and jobs whose priority somebody else has set. Jobs
        after the first MOST_RANKED are included only if they are in flexod's band."""
        jobs = (pending[key] for key in order if key in pending and key not in self._left_alone)
        waiting = (job for job in jobs if job.priority and waits_for_resources(job))
        return [
            job for place, job in enumerate(waiting) if place < MOST_RANKED or cluster.in_band(job.priority)
        ]

    def _look(self, cluster: Prioritizes, pending: Mapping[JobKey, int], now: float) -> list[Event]:
        """Learn from the queue which priorities flexod has set, and which ones others have changed since."""
        # a held job starts anew: the cluster gives it a new priority when it is released
        gone = [key for key in self._set if not pending.get(key)]
        for key in gone:
            del self._set[key]
        # set, but not recorded: the cluster refused another one, or flexod was killed before it could record
        found = [
            (key, priority)
            for key, priority in pending.items()
            if cluster.in_band(priority) and self._set.get(key) != priority
        ]
        self._remember(found, gone)
        changed = {key for key, priority in self._set.items() if pending[key] != priority}
        news = sorted(changed - self._left_alone)
        self._left_alone = changed
        return [
            Event(now, "order", key, f"somebody set its priority to {pending[key]}: it is left alone")
            for key in news
        ]

    def _send(
        self, cluster: Prioritizes, changes: Sequence[tuple[JobKey, Priority]], now: float
    ) -> list[Event]:
        priorities = tuple(priority for _, priority in changes)
        if not priorities or (self._dry_run and priorities == self._said):
            return []
        self._said = priorities
        text = f"the priority of pending jobs, by the policy's order: {_names([key for key, _ in changes])}"
        if self._dry_run:
            return [Event(now, "order", None, f"would set {text}")]
        try:
            cluster.prioritize(priorities)
        except ActionRefused as error:
            self._not_before = now + _RETRY_S
            return list(self._recent_errors.note(str(error), None, now))
        self._remember([(key, priority.priority) for key, priority in changes], ())
        return [Event(now, "order", None, f"sets {text}")]

    def _remember(self, given: Sequence[tuple[JobKey, int]], forgotten: Sequence[JobKey]) -> None:
        if given or forgotten:
            self._set.update(given)
            self._event_store.set_priorities(given, forgotten)


def in_training(snapshot: Snapshot) -> frozenset[JobKey]:
    """Pending jobs that can start only where training does.

    Their partitions are those that share nodes with the satellites' partition, and the one of lent servers.
    """
    names = {snapshot.satellite_partition}
    shared = frozenset(chain.from_iterable(each.nodes for each in snapshot.partitions if each.name in names))
    names = {each.name for each in snapshot.partitions if each.nodes & shared} - names
    names |= {snapshot.borrowed_partition}
    waiting = (job for job in snapshot.jobs if job.state is JobState.PENDING)
    return frozenset(job.key for job in waiting if names.issuperset(job.partitions))


def _names(keys: Sequence[JobKey]) -> str:
    """``12, 15 and 3 more``."""
    shown = ", ".join(map(str, keys[:_NAMED]))
    return shown if len(keys) <= _NAMED else f"{shown} and {len(keys) - _NAMED} more"
