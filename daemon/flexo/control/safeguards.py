"""Rules that hold under every policy: they hold premature changes back and end useless ones.

New grants wait until the cluster can start their satellites, and, after a start of flexod, for the leaders
that know of earlier grants. flexod gives up resources that it has kept for a pending job in vain. flexod
cancels satellites whose base job is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import structlog

from flexo.clusters.base import ActionRefused, Cluster, StartBounds
from flexo.control.recent_errors import RecentErrors
from flexo.events import Event
from flexo.grants import ReconciledState
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.plans import Action, Grow, Note, Plan
from flexo.model.queue import JobKey, JobState, QueuedJob

_WAITING = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})


def not_more_than_start(
    plan: Plan, jobs: Iterable[ElasticJob], bounds: StartBounds, start_within_s: float
) -> Plan:
    """`plan` without the new grants whose satellites could not start in time.

    A cluster starts a limited number of jobs of a partition in each scheduling pass (`StartBounds`). Of a
    thousand satellites submitted at once, leaders would cancel nearly all after `start_within_s` and submit
    them anew, over and over. A later cycle plans the omitted grants again, when some satellites have started.
    """
    most = bounds.within(start_within_s)
    if most is None:
        return plan
    waiting = Counter(grant.partition for job in jobs for grant in job.all_grants if grant.state in _WAITING)
    actions: list[Action] = []
    notes = []
    for action in plan.actions:
        if isinstance(action, Grow):
            if waiting[action.partition] >= most:
                brief = f"{most} satellites wait already in {action.partition}"
                why = _why_too_many(action, most, bounds.setting)
                notes.append(Note(action.job, why, brief, cause=brief))
                continue
            waiting[action.partition] += 1
        actions.append(action)
    return replace(plan, actions=tuple(actions), notes=(*plan.notes, *notes)) if notes else plan


def _why_too_many(grow: Grow, most: int, setting: str) -> str:
    text = (
        f"{grow.node} is not granted yet: {most} satellites wait in {grow.partition} already, as many as"
        " the cluster starts in the time that they have"
    )
    return f"{text} ({setting})" if setting else text


STARTUP_BARRIER_S: Final = 45.0
"""The time for leaders to attach after a start. Leaders reconnect every 30 s at the latest
(horovod_elastic/leader/daemon_link.py). A leader that has not by then is gone: its satellites are in the
queue or do not exist."""


class StartupBarrier:
    """Holds new grants back after a start, until running jobs have reported their earlier grants.

    Only the leader knows a grant whose satellite it has not submitted yet. Until the leader has attached to
    this flexod, the GPUs look idle and would be granted a second time. A job of one size never has grants.
    For the controller's thread alone.
    """

    def __init__(self) -> None:
        self._awaited: frozenset[JobKey] | None = None
        """The jobs whose leaders are awaited; None before the first poll."""
        self._until = 0.0

    def held_back(
        self, plan: Plan, jobs: Iterable[ElasticJob], attached: Container[JobKey], now: float
    ) -> Plan:
        """`plan`, without new grants for as long as the leader of a job that ran at the first poll is
        awaited."""
        running = frozenset(job.key for job in jobs if job.workers.max > job.workers.min)
        if self._awaited is None:
            self._awaited, self._until = running, now + STARTUP_BARRIER_S
        here = frozenset(key for key in self._awaited if key not in running or key in attached)
        self._awaited = frozenset() if now > self._until else self._awaited - here
        held = [action for action in plan.actions if isinstance(action, Grow)] if self._awaited else []
        if not held:
            return plan
        why, missing = "flexod has just begun", len(self._awaited)
        notes = tuple(Note(action.job, _why_too_soon(action, missing), why, cause=why) for action in held)
        actions = tuple(action for action in plan.actions if action not in held)
        return replace(plan, actions=actions, notes=(*plan.notes, *notes))


def _why_too_soon(grow: Grow, missing: int) -> str:
    leaders = "one leader" if missing == 1 else f"{missing} leaders"
    return f"{grow.node} is not granted yet: flexod has just begun, and waits to hear from {leaders}"


_PASS_OVER_S: Final = 1800.0


class StarvationGuard:
    """Tracks how long resources are set aside for pending jobs, and passes over jobs that do not start."""

    def __init__(self) -> None:
        self._since: dict[JobKey, float] = {}
        self._passed_until: dict[int, float] = {}

    def passed_over(self, now: float) -> frozenset[int]:
        """Jobs for which nothing is set aside now."""
        self._passed_until = {job_id: until for job_id, until in self._passed_until.items() if until > now}
        return frozenset(self._passed_until)

    def give_up(self, set_aside: Iterable[JobKey], patience_s: float, now: float) -> list[Event]:
        """Pass over the jobs of `set_aside` that have not started within `patience_s`. Returns the events.

        A job that does not start although there is room waits for something that flexo does not know.
        """
        self._since = {key: self._since.get(key, now) for key in set_aside}
        late = [key for key, since in self._since.items() if now - since > patience_s]
        self._passed_until.update((key.job_id, now + _PASS_OVER_S) for key in late)
        return [
            Event(
                now,
                "wait",
                key,
                f"pending job {key.job_id} did not start within {patience_s:.0f} s although there was room;"
                f" nothing is kept for it for {_PASS_OVER_S / 60:.0f} min",
            )
            for key in late
        ]


_RETRY_S: Final = 30.0
"""The interval between two attempts to cancel the same satellite."""
UNKNOWN_AT_ONCE: Final = 3
"""The most jobs without a grant that one cycle cancels. Each takes a command."""
_SAY_AGAIN_S: Final = 300.0
"""The least time between two log lines about jobs without a grant."""
_USERS: Final = 5
"""The most users that such a line names."""

_log = structlog.get_logger("flexo.controller")


class Orphans:
    """Cancels satellites whose base job is gone, and jobs that only claim to be satellites.

    Users write the comments of their own jobs. So flexod never cancels another user's job because of a
    comment, and writes nothing into the history of the job that a comment names. One cycle cancels only a few
    jobs: thousands of jobs with comments must not keep flexod busy. For the controller's thread alone.
    """

    def __init__(self, cluster: Cluster, recent_errors: RecentErrors, time_limit_s: float) -> None:
        self._cluster = cluster
        self._recent_errors = recent_errors
        self._unknown_for_s = time_limit_s / 2
        """A pending job without a grant is cancelled after this time."""
        self._due_at: dict[int, float] = {}
        self._unknown_since: dict[int, float] = {}
        self._said_at = -_SAY_AGAIN_S

    def cancel(self, reconciled: ReconciledState, running: Container[JobKey], now: float) -> list[Event]:
        """Cancel orphans that were orphans in the last cycle, too, and some of the jobs without a grant.

        `running`: the jobs that may have satellites. Returns the events.
        """
        self._say(reconciled.unknown, now)
        queue = {job.job_id for job in (*reconciled.orphans, *reconciled.unknown)}
        self._due_at = {job: at for job, at in self._due_at.items() if job in queue}
        events: list[Event] = []
        for job in reconciled.orphans:
            if job.job_id not in self._due_at:
                self._due_at[job.job_id] = now
            elif self._is_due(job, now):
                base = job.satellite.base if job.satellite else job.key
                text = f"satellite {job.job_id} is cancelled: job {base} is gone from the queue"
                events += self._cancel(job, base, text, now)
        for job in islice(self._unwanted(reconciled.unknown, running, now), UNKNOWN_AT_ONCE):
            text = f"job {job.job_id} is cancelled: it says that it is a satellite, and flexod granted none"
            events += self._cancel(job, job.key, text, now)
        return events

    def _unwanted(
        self, unknown: Sequence[QueuedJob], running: Container[JobKey], now: float
    ) -> Iterator[QueuedJob]:
        """Jobs without a grant whose base job is gone, or that have been pending for long. Jobs that were not
        tried yet come first."""
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
        """Cancel `job`. `of`: the job whose history gets the event."""
        self._due_at[job.job_id] = now + _RETRY_S
        try:
            self._cluster.cancel(job.identifier)
        except ActionRefused as error:
            return list(self._recent_errors.note(str(error), of, now))
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
