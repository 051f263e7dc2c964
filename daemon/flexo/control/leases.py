"""Keeps the leases of satellites alive for as long as their grants stand.

A thousand leases take a cluster seconds, which the loop need not wait for: they are extended beside it. And
the more there are the longer they become: each is a request to the cluster, which is not to be asked more and
more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import chain
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterState, ClusterUnreachable, MayNotAct
from flexo.control.refusals import Refusals
from flexo.events import Event
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey, JobState, QueuedJob

_RETRY_S: Final = 30.0
"""Between two tries to extend the same lease."""
MOST_AT_ONCE: Final = 20
"""Leases extended with one command, which has to end in time: each is a request of its own, and a cluster may
limit how many a user makes, as in 30 at once and then 2 a second."""
BETWEEN_S: Final = 1.0
"""From one lease that is extended to the next, in the mean: with `lease_s` of 300 leases grow longer from 150
satellites on."""
LONGEST_S: Final = 3600
"""But for a longer `lease_s`: so long a GPU may be held by what neither flexod nor a leader looks after."""
_LASTING: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED})
"""Of bases: the grants of one that is suspended for long are withdrawn (suspended.py)."""
_TRAINING: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})


@dataclass(frozen=True, slots=True)
class _Asked:
    """One command, with the job of each time limit that it is about."""

    time_limits: Mapping[str, JobKey]
    answer: Future[None]


def lease_for(lease_s: int, satellites: int) -> int:
    """How long a lease becomes where there are so many; `lease_s` is what the settings say."""
    return max(lease_s, min(LONGEST_S, math.ceil(2 * BETWEEN_S * satellites)))


class Leases:
    """When leaders were last heard and leases last extended. For the controller's thread alone."""

    def __init__(
        self, cluster: Cluster, refusals: Refusals, lease_s: int, started_at: float, beside: Executor
    ) -> None:
        """`beside` runs the commands, one after another."""
        self._cluster = cluster
        self._refusals = refusals
        self._lease_s = lease_s
        self._started_at = started_at
        self._beside = beside
        self._attached_at: dict[JobKey, float] = {}
        self._tried_at: dict[str, float] = {}
        """By time limit."""
        self._asked: list[_Asked] = []

    def extend(
        self, state: ClusterState, jobs: Sequence[ElasticJob], attached: Collection[JobKey]
    ) -> list[Event]:
        """Leases of which less than half is left, under grants that stand; those first that end first.

        A leader that is not attached keeps its satellites for one lease more: flexod or the network may
        have been away. After that they run out. What the cluster refuses is known in a later cycle.
        """
        now = state.at
        queue = {job.job_id: job for job in state.jobs}
        running = {job.key for job in jobs}
        self._attached_at = {key: at for key, at in self._attached_at.items() if key in running}
        self._attached_at.update((key, now) for key in attached if key in running)
        there = {job.time_limit_id for job in state.jobs if job.satellite is not None}
        self._tried_at = {limit: at for limit, at in self._tried_at.items() if limit in there}
        kept = [job for job in jobs if self._is_kept(job, queue, now)]
        lease_s = lease_for(self._lease_s, sum(len(job.grants) for job in kept))
        due = sorted(chain.from_iterable(self._due(job, queue, now, lease_s) for job in kept))
        limits = {limit: job for _, _, limit, job in due}
        self._ask(limits, now, lease_s)
        return [*self._told(limits, now, lease_s), *self._take_answers(now)]

    def forget(self) -> None:
        """Ask for nothing more of what has not been asked yet."""
        for asked in self._asked:
            asked.answer.cancel()

    def _is_kept(self, job: ElasticJob, queue: Mapping[int, QueuedJob], now: float) -> bool:
        seen_at = self._attached_at.get(job.key, self._started_at)
        return queue[job.key.job_id].state in _LASTING and now - seen_at <= self._lease_s

    def _due(
        self, job: ElasticJob, queue: Mapping[int, QueuedJob], now: float, lease_s: int
    ) -> Iterator[tuple[float, int, str, JobKey]]:
        """When the lease ends, the satellite, its time limit, and the job that it is of."""
        for grant in job.grants:
            satellite = queue.get(grant.satellite_job_id)
            if grant.state not in _TRAINING or satellite is None or satellite.state is not JobState.RUNNING:
                continue
            if satellite.started_at is None or satellite.time_limit_s is None:
                continue
            ends_at = satellite.started_at + satellite.time_limit_s
            if ends_at - now < lease_s / 2 and self._may_try(satellite.time_limit_id, now):
                yield ends_at, satellite.job_id, satellite.time_limit_id, job.key

    def _may_try(self, limit: str, now: float) -> bool:
        asked = any(limit in each.time_limits for each in self._asked)
        return not asked and now - self._tried_at.get(limit, 0.0) >= _RETRY_S

    def _ask(self, limits: Mapping[str, JobKey], now: float, lease_s: int) -> None:
        self._tried_at.update(dict.fromkeys(limits, now))
        ordered = list(limits)
        for start in range(0, len(ordered), MOST_AT_ONCE):
            some = tuple(ordered[start : start + MOST_AT_ONCE])
            answer = self._beside.submit(self._cluster.extend, some, lease_s)
            self._asked.append(_Asked({each: limits[each] for each in some}, answer))

    def _told(self, limits: Mapping[str, JobKey], now: float, lease_s: int) -> Iterator[Event]:
        of_jobs: dict[JobKey, list[str]] = {}
        for limit in sorted(limits, key=lambda limit: (len(limit), limit)):
            of_jobs.setdefault(limits[limit], []).append(limit)
        for key, its_own in of_jobs.items():
            names = ", ".join(its_own)
            text = f"the grant stands: the lease of {names} is to end {lease_s} s from now"
            yield Event(now, "extend", key, text)

    def _take_answers(self, now: float) -> list[Event]:
        here = [(asked, asked.answer.done()) for asked in self._asked]
        self._asked = [asked for asked, done in here if not done]
        answered = [asked for asked, done in here if done]
        events = [event for asked in answered for event in self._why_not(asked, now)]
        if any(asked.answer.exception() is None for asked in answered):
            self._refusals.forget()
        return events

    def _why_not(self, asked: _Asked, now: float) -> tuple[Event, ...]:
        error = asked.answer.exception()
        if error is None or isinstance(error, MayNotAct):
            return ()  # whoever acts instead extends them
        if isinstance(error, ActionRefused):
            named = error.jobs & asked.time_limits.keys()
            key = asked.time_limits[min(named or asked.time_limits)]
            return self._refusals.note(str(error), key, now)
        if isinstance(error, ClusterUnreachable):
            return self._refusals.note(str(error), None, now, f"{self._cluster.software} did not answer")
        raise error
