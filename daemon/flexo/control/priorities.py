"""Puts the pending jobs of a cluster in the policy's order, by their priorities.

Ordinary jobs and elastic bases alike; never held jobs, satellites, jobs without GPUs, or jobs of partitions
that training does not use. Somebody who changes a priority that flexod has set to one outside flexod's band
has a reason: that job is left alone from then on, also after a restart, until it starts or is held and
released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, Prioritizes, Priority
from flexo.control.logbook import Logbook
from flexo.control.refusals import Refusals
from flexo.events import Event
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.policies.pending import waits_for_resources

MOST_AT_ONCE: Final = 100
"""Priorities set in one cycle: each is a request of its own to the cluster."""
MOST_RANKED: Final = 500
"""Jobs that are put in order, from the first on: a scheduler looks at no more. The
others wait below them, in the cluster's own order."""
_RETRY_S: Final = 60.0
"""After the cluster has refused a priority."""
_NAMED: Final = 5


class Priorities:
    """What priorities flexod has set. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, journal: Logbook, refusals: Refusals, *, dry_run: bool) -> None:
        self._cluster = cluster
        self._able = cluster if isinstance(cluster, Prioritizes) else None
        self._journal = journal
        self._refusals = refusals
        self._dry_run = dry_run
        self._set = journal.priorities()
        self._left_alone: set[JobKey] = set()
        self._not_before = 0.0
        self._said: tuple[Priority, ...] = ()

    def follow(self, order: Sequence[JobKey], jobs: Sequence[QueuedJob], now: float) -> list[Event]:
        """Let the pending `jobs` of `order` start in that order. What is to be written down."""
        if self._able is None:
            why = f"{self._cluster.software} cannot be told in which order jobs start"
            return list(self._refusals.note(why, None, now))
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
        """Those that are put in order: held ones and those that somebody else has a word on are not."""
        jobs = (pending[key] for key in order if key in pending and key not in self._left_alone)
        waiting = (job for job in jobs if job.priority and waits_for_resources(job))
        return [
            job for place, job in enumerate(waiting) if place < MOST_RANKED or cluster.in_band(job.priority)
        ]

    def _look(self, cluster: Prioritizes, pending: Mapping[JobKey, int], now: float) -> list[Event]:
        """Learn from the queue what was set, and what others have changed since."""
        # a job that is held starts anew once it is released: the cluster gives it a priority of its own then
        gone = [key for key in self._set if not pending.get(key)]
        for key in gone:
            del self._set[key]
        # set, and the cluster refused another or flexod was killed before it was written down
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
            return list(self._refusals.note(str(error), None, now))
        self._remember([(key, priority.priority) for key, priority in changes], ())
        return [Event(now, "order", None, f"sets {text}")]

    def _remember(self, given: Sequence[tuple[JobKey, int]], forgotten: Sequence[JobKey]) -> None:
        if given or forgotten:
            self._set.update(given)
            self._journal.set_priorities(given, forgotten)


def in_training(snapshot: Snapshot) -> frozenset[JobKey]:
    """Pending jobs that may only start where training does.

    That is in the partitions that share nodes with the satellites', and on servers that are lent.
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
