"""What holds under every policy: what comes too soon is held back, what is in vain ends.

Grants wait for room in the cluster's turns, and, after a start, for the leaders that know of earlier ones.
Resources that were kept for a pending job in vain are given up. Satellites whose base is gone are cancelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import structlog

from flexo.clusters.base import ActionRefused, Cluster, StartBounds
from flexo.control.refusals import Refusals
from flexo.events import Event
from flexo.grants import Sight
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.plans import Action, Grow, Note, Plan
from flexo.model.queue import JobKey, JobState, QueuedJob

_WAITING = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})


def not_more_than_start(
    plan: Plan, jobs: Iterable[ElasticJob], bounds: StartBounds, start_within_s: float
) -> Plan:
    """`plan`, without the new grants by which more satellites of a partition would wait than start in time.

    A cluster starts so many jobs of a partition in each of its turns (`StartBounds`). A thousand satellites
    submitted at once would nearly all be cancelled after `start_within_s` and submitted anew, over and over.
    What is left out is planned again when some have started.
    """
    most = bounds.within(start_within_s)
    if most is None:
        return plan
    waiting = Counter(grant.partition for job in jobs for grant in job.grants if grant.state in _WAITING)
    actions: list[Action] = []
    notes = []
    for action in plan.actions:
        if isinstance(action, Grow):
            if waiting[action.partition] >= most:
                notes.append(Note(action.job, _why_too_many(action, most, bounds.setting)))
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


ROLL_CALL_S: Final = 45.0
"""Leaders dial again every 30 s at the latest (horovod_elastic/leader/daemon_link.py). Those that have not by
then are gone, and what they were granted is in the queue or nowhere."""


class RollCall:
    """Who is still waited for: after a start jobs that run have to say what they were granted before.

    A grant that its leader has heard and not submitted yet is known to nobody but that leader. Until it has
    attached to this flexod, the GPUs look idle and would be promised a second time. A job of one size was
    never granted any. For the controller's thread alone.
    """

    def __init__(self) -> None:
        self._awaited: frozenset[JobKey] | None = None
        """None: nobody has looked yet."""
        self._until = 0.0

    def held_back(
        self, plan: Plan, jobs: Iterable[ElasticJob], attached: Container[JobKey], now: float
    ) -> Plan:
        """`plan`, without new grants for as long as a job is waited for that ran at the first look."""
        running = frozenset(job.key for job in jobs if job.workers.max > job.workers.min)
        if self._awaited is None:
            self._awaited, self._until = running, now + ROLL_CALL_S
        here = frozenset(key for key in self._awaited if key not in running or key in attached)
        self._awaited = frozenset() if now > self._until else self._awaited - here
        held = [action for action in plan.actions if isinstance(action, Grow)] if self._awaited else []
        if not held:
            return plan
        notes = tuple(Note(action.job, _why_too_soon(action, len(self._awaited))) for action in held)
        actions = tuple(action for action in plan.actions if action not in held)
        return replace(plan, actions=actions, notes=(*plan.notes, *notes))


def _why_too_soon(grow: Grow, missing: int) -> str:
    leaders = "one leader" if missing == 1 else f"{missing} leaders"
    return f"{grow.node} is not granted yet: flexod has just begun, and waits to hear from {leaders}"


_PASS_OVER_S: Final = 1800.0


class Patience:
    """How long resources have been set aside for pending jobs, and who has had enough."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._passed_until: dict[int, float] = {}

    def passed_over(self, now: float) -> frozenset[int]:
        """Jobs for which nothing is set aside now."""
        self._passed_until = {job_id: until for job_id, until in self._passed_until.items() if until > now}
        return frozenset(self._passed_until)

    def give_up(self, set_aside: Iterable[int], patience_s: float, now: float) -> list[Event]:
        """Pass over those of the jobs that something is set aside for that have not started for too long.

        A job that does not start although there is room waits for something that flexo does not know.
        """
        self._since = {job_id: self._since.get(job_id, now) for job_id in set_aside}
        late = [job_id for job_id, since in self._since.items() if now - since > patience_s]
        self._passed_until.update((job_id, now + _PASS_OVER_S) for job_id in late)
        return [
            Event(
                now,
                "wait",
                None,
                f"pending job {job_id} did not start within {patience_s:.0f} s although there was room;"
                f" nothing is kept for it for {_PASS_OVER_S / 60:.0f} min",
            )
            for job_id in late
        ]


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
    """Satellites whose base is gone from the queue, and jobs that only say that they are satellites.

    A user writes the comments of his own jobs. So nobody else's job is ever cancelled for a comment, and
    nothing is written into the history of the job that a comment names. One cycle cancels a few only:
    thousands of jobs with comments must not keep flexod busy. For the controller's thread alone.
    """

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
