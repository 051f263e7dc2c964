"""Records why pending jobs wait and why running jobs have no more workers: one event when a reason begins.

The pages lead from a reason to its event. A reason that begins with a decision of flexod's, such as a grant,
has an event already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo.clusters.base import ClusterState
from flexo.control.pending import headline_of_pending
from flexo.control.safeguards import STARTUP_BARRIER_S
from flexo.control.views import JobView
from flexo.events import Event
from flexo.model.plans import Note
from flexo.model.queue import JobKey, JobState, QueuedJob

EVENT_EVERY_S: Final = 300.0
"""The mean time between two events about one job whose reasons go on changing."""
_AT_ONCE: Final = 5
"""The events about one job that may come in a row."""
MOST_IN_A_CYCLE: Final = 100
"""The most reasons that one cycle records: thousands of jobs may be pending when flexod begins."""

Record = Callable[[tuple[Event, ...]], Sequence[int]]
"""Writes events. Returns the numbers of their entries: none if the store cannot write."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """The reason of one job, as of this cycle."""

    key: JobKey
    cause: tuple[object, ...]
    """It stays the same for as long as the reason stands."""
    source: QueuedJob | Note
    """What the text of the event is made of."""


@dataclass(slots=True)
class _Known:
    """What is known of one job's reasons."""

    seen: tuple[object, ...] = ()
    """The cause of the cycle before."""
    told: tuple[object, ...] = ()
    """The cause that the newest event is about."""
    number: int = 0
    """The number of that event's entry; 0: there is none."""
    earned_at: float = 0.0
    """The time at which all events of before are earned."""


class Reasons:
    """The reasons of all jobs. For the controller's thread alone."""

    def __init__(self) -> None:
        self._known: dict[JobKey, _Known] = {}
        self._begun_at: float | None = None

    def look(
        self, state: ClusterState, jobs: Iterable[JobView], notes: Iterable[Note], record: Record
    ) -> Mapping[JobKey, int]:
        """Record the reasons that are new, and return the numbers of the events of all that stand, by job.

        A reason is recorded in the second cycle that has it: many pass at once.
        """
        if self._begun_at is None:
            self._begun_at = state.at
        pending = [job for job in state.jobs if _is_pending(job)]
        running = tuple(jobs)
        keys = {*(job.key for job in pending), *(view.job.key for view in running)}
        self._known = {key: self._known.get(key) or _Known() for key in keys}
        told = [view for view in running if view.attached or self._lacks_leader(view, state.at)]
        reasons = (*_of_running(told, notes), *_of_pending(pending))
        new = [reason for reason in reasons if self._is_due(reason, state.at)][:MOST_IN_A_CYCLE]
        if new:
            self._record(new, state, record)
        for reason in reasons:
            self._known[reason.key].seen = reason.cause
        found = ((reason, self._known[reason.key]) for reason in reasons)
        return {reason.key: known.number for reason, known in found if known.told == reason.cause}

    def _lacks_leader(self, view: JobView, now: float) -> bool:
        """Whether the leader is away for a reason. It is not while the job or flexod begins."""
        begun = self._begun_at or 0.0
        return not view.begins(now) and now - begun >= STARTUP_BARRIER_S

    def _is_due(self, reason: _Reason, now: float) -> bool:
        known = self._known[reason.key]
        stands, is_new = known.seen == reason.cause, known.told != reason.cause
        return stands and is_new and known.earned_at - now <= (_AT_ONCE - 1) * EVENT_EVERY_S

    def _record(self, new: Sequence[_Reason], state: ClusterState, record: Record) -> None:
        now = state.at
        numbers = record(tuple(Event(now, "wait", each.key, _text(each.source, state)) for each in new))
        for reason, number in zip(new, numbers, strict=False):
            known = self._known[reason.key]
            known.told, known.number = reason.cause, number
        for reason in new:
            known = self._known[reason.key]
            known.earned_at = max(known.earned_at, now) + EVENT_EVERY_S


def _is_pending(job: QueuedJob) -> bool:
    return job.state is JobState.PENDING and job.elastic is not None and job.satellite is None


def _text(source: QueuedJob | Note, state: ClusterState) -> str:
    return source.text if isinstance(source, Note) else headline_of_pending(source, state)


def _of_pending(jobs: Iterable[QueuedJob]) -> Iterator[_Reason]:
    for job in jobs:
        yield _Reason(job.key, (job.wait, job.reason), job)


def _of_running(jobs: Iterable[JobView], notes: Iterable[Note]) -> Iterator[_Reason]:
    """The reasons for the sizes of jobs: of each job the last note that is one."""
    granted = {view.job.key: view.job.granted_workers for view in jobs}
    last = {note.job: note for note in notes if note.brief or note.cause}
    for key, note in last.items():
        if note.cause and key in granted:
            yield _Reason(key, (note.cause, granted[key]), note)
