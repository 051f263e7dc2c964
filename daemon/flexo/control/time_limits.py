"""Extends the time limits of satellites for as long as their grants stand.

A cluster takes seconds to extend a thousand time limits. The loop does not await that: a serial executor runs
the commands. Each extension is a request to the cluster. So time limits grow with the number of satellites,
and the rate of requests does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import chain
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterState, ClusterUnreachable, MayNotAct
from flexo.control.recent_errors import RecentErrors
from flexo.events import Event
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey, JobState, QueuedJob

_RETRY_S: Final = 30.0
"""The interval between two attempts to extend the same time limit."""
MOST_AT_ONCE: Final = 20
"""The most time limits extended with one command, which has to end in time. Each is a separate request, and a
cluster may limit a user's requests, for example to 30 at once and then 2 a second."""
BETWEEN_S: Final = 1.0
"""The mean time from one extension to the next. With `time_limit_s` of 300, time limits grow from 150
satellites on."""
LONGEST_S: Final = 3600
"""The longest time limit, unless `time_limit_s` is longer. A satellite can hold a GPU for this time after
flexod and its leader are gone."""
_LASTING: Final = frozenset({JobState.RUNNING, JobState.SUSPENDED})
"""The states of a base job in which satellites are kept. flexod withdraws the grants of a base job that is
suspended for long (suspended.py)."""
_TRAINING: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})


@dataclass(frozen=True, slots=True)
class _Asked:
    """One command to the cluster: its time limits, each with its job."""

    time_limits: Mapping[str, JobKey]
    answer: Future[None]


def time_limit_for(time_limit_s: int, satellites: int) -> int:
    """The time limit when there are `satellites` satellites. `time_limit_s`: the configured time limit."""
    return max(time_limit_s, min(LONGEST_S, math.ceil(2 * BETWEEN_S * satellites)))


class TimeLimits:
    """Extends time limits; knows when leaders were last heard and time limits last extended. For the
    controller's thread alone."""

    def __init__(
        self,
        cluster: Cluster,
        recent_errors: RecentErrors,
        time_limit_s: int,
        started_at: float,
        beside: Executor,
    ) -> None:
        """`beside`: serial executor for the commands, which the cycle does not await."""
        self._cluster = cluster
        self._recent_errors = recent_errors
        self._least_s = time_limit_s
        self._started_at = started_at
        self._beside = beside
        self._attached_at: dict[JobKey, float] = {}
        self._tried_at: dict[str, float] = {}
        """The time of the last attempt to extend each time limit."""
        self._asked: list[_Asked] = []

    def extend(
        self, state: ClusterState, jobs: Sequence[ElasticJob], attached: Collection[JobKey]
    ) -> list[Event]:
        """Extend the time limits that have less than half left, for grants that stand: the earliest first.

        A leader that is not attached keeps its satellites for one more time limit: flexod or the network may
        have been away. After that the satellites end. A later cycle knows whether the cluster has refused.
        Returns the events.
        """
        now = state.at
        queue = {job.job_id: job for job in state.jobs}
        running = {job.key for job in jobs}
        self._attached_at = {key: at for key, at in self._attached_at.items() if key in running}
        self._attached_at.update((key, now) for key in attached if key in running)
        there = {job.time_limit_id for job in state.jobs if job.satellite is not None}
        self._tried_at = {limit: at for limit, at in self._tried_at.items() if limit in there}
        kept = [job for job in jobs if self._is_kept(job, queue, now)]
        time_limit_s = time_limit_for(self._least_s, sum(len(job.all_grants) for job in kept))
        due = sorted(chain.from_iterable(self._due(job, queue, now, time_limit_s) for job in kept))
        limits = {limit: job for _, _, limit, job in due}
        self._ask(limits, now, time_limit_s)
        return [*self._told(limits, now, time_limit_s), *self._take_answers(now)]

    def forget(self) -> None:
        """Cancel the commands that have not been sent yet."""
        for asked in self._asked:
            asked.answer.cancel()

    def _is_kept(self, job: ElasticJob, queue: Mapping[int, QueuedJob], now: float) -> bool:
        seen_at = self._attached_at.get(job.key, self._started_at)
        return queue[job.key.job_id].state in _LASTING and now - seen_at <= self._least_s

    def _due(
        self, job: ElasticJob, queue: Mapping[int, QueuedJob], now: float, time_limit_s: int
    ) -> Iterator[tuple[float, int, str, JobKey]]:
        """The due time limits. Each: when it ends, the satellite, the name of the time limit, and the job."""
        for grant in job.all_grants:
            satellite = queue.get(grant.satellite_job_id)
            if grant.state not in _TRAINING or satellite is None or satellite.state is not JobState.RUNNING:
                continue
            if satellite.started_at is None or satellite.time_limit_s is None:
                continue
            ends_at = satellite.started_at + satellite.time_limit_s
            if ends_at - now < time_limit_s / 2 and self._may_try(satellite.time_limit_id, now):
                yield ends_at, satellite.job_id, satellite.time_limit_id, job.key

    def _may_try(self, limit: str, now: float) -> bool:
        asked = any(limit in each.time_limits for each in self._asked)
        return not asked and now - self._tried_at.get(limit, 0.0) >= _RETRY_S

    def _ask(self, limits: Mapping[str, JobKey], now: float, time_limit_s: int) -> None:
        self._tried_at.update(dict.fromkeys(limits, now))
        ordered = list(limits)
        for start in range(0, len(ordered), MOST_AT_ONCE):
            some = tuple(ordered[start : start + MOST_AT_ONCE])
            answer = self._beside.submit(self._cluster.extend, some, time_limit_s)
            self._asked.append(_Asked({each: limits[each] for each in some}, answer))

    def _told(self, limits: Mapping[str, JobKey], now: float, time_limit_s: int) -> Iterator[Event]:
        of_jobs: dict[JobKey, list[str]] = {}
        for limit in sorted(limits, key=lambda limit: (len(limit), limit)):
            of_jobs.setdefault(limits[limit], []).append(limit)
        for key, its_own in of_jobs.items():
            names = ", ".join(its_own)
            text = f"the grant stands: the time limit of {names} now ends in {time_limit_s} s"
            yield Event(now, "extend", key, text)

    def _take_answers(self, now: float) -> list[Event]:
        here = [(asked, asked.answer.done()) for asked in self._asked]
        self._asked = [asked for asked, done in here if not done]
        answered = [asked for asked, done in here if done]
        events = [event for asked in answered for event in self._why_not(asked, now)]
        if any(asked.answer.exception() is None for asked in answered):
            self._recent_errors.forget()
        return events

    def _why_not(self, asked: _Asked, now: float) -> tuple[Event, ...]:
        error = asked.answer.exception()
        if error is None or isinstance(error, MayNotAct):
            return ()  # the flexod that acts instead extends them
        if isinstance(error, ActionRefused):
            named = error.jobs & asked.time_limits.keys()
            key = asked.time_limits[min(named or asked.time_limits)]
            return self._recent_errors.note(str(error), key, now)
        if isinstance(error, ClusterUnreachable):
            return self._recent_errors.note(str(error), None, now, f"{self._cluster.software} did not answer")
        raise error
