"""Records why pending jobs wait, why running jobs have no more workers, and which ones commit no batch: one
event when a reason begins.

The pages lead from a reason to its event. A reason that begins with a decision of flexod's, such as a grant,
has an event already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flexo.clusters.base import ClusterState
from flexo.control.due_events import Cause, DueEvents, Record
from flexo.control.pending import headline_of_pending
from flexo.control.safeguards import STARTUP_BARRIER_S
from flexo.control.silence import silent_for
from flexo.control.views import JobView
from flexo.events import Event
from flexo.model.plans import Note
from flexo.model.queue import JobKey, JobState, QueuedJob

MOST_IN_A_CYCLE: Final = 100
"""The most reasons that one cycle records: thousands of jobs may be pending when flexod begins."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """The reason of one job, as of this cycle."""

    cause: Cause
    source: QueuedJob | Note
    """What the text of the event is made of."""


class Reasons:
    """The reasons of all jobs. For the controller's thread alone."""

    def __init__(self) -> None:
        self._due = DueEvents[JobKey]()
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
        told = [view for view in running if view.attached or self._lacks_leader(view, state.at)]
        reasons = dict((*_of_running(told, notes), *_of_pending(pending)))
        causes = {key: reason.cause for key, reason in reasons.items()}
        keep = (*(job.key for job in pending), *(view.job.key for view in running))
        due = self._due.due(causes, keep, state.at, MOST_IN_A_CYCLE)
        events = [(Event(state.at, "wait", key, _text(reasons[key].source, state)), (key,)) for key in due]
        self._due.record(events, record)
        return self._due.numbers()

    def _lacks_leader(self, view: JobView, now: float) -> bool:
        """Whether the leader is away for a reason. It is not while the job or flexod begins."""
        begun = self._begun_at or 0.0
        return not view.begins(now) and now - begun >= STARTUP_BARRIER_S


class Silences:
    """The jobs that commit no batch for long (silence.py). For the controller's thread alone."""

    def __init__(self) -> None:
        self._due = DueEvents[JobKey]()

    def look(self, jobs: Iterable[JobView], now: float, record: Record) -> Mapping[JobKey, int]:
        """Record the jobs that have become silent, and return the numbers of the events of all that are."""
        since = {view.job.key: view.silent_since for view in jobs}
        causes = {key: at for key, at in since.items() if at}
        due = self._due.due(causes, since, now, MOST_IN_A_CYCLE)
        events = [(Event(now, "silent", key, silent_for(now - since[key])), (key,)) for key in due]
        self._due.record(events, record)
        return self._due.numbers()


def _is_pending(job: QueuedJob) -> bool:
    return job.state is JobState.PENDING and job.elastic is not None and job.satellite is None


def _text(source: QueuedJob | Note, state: ClusterState) -> str:
    return source.text if isinstance(source, Note) else headline_of_pending(source, state)


def _of_pending(jobs: Iterable[QueuedJob]) -> Iterator[tuple[JobKey, _Reason]]:
    for job in jobs:
        yield job.key, _Reason((job.wait, job.reason), job)


def _of_running(jobs: Iterable[JobView], notes: Iterable[Note]) -> Iterator[tuple[JobKey, _Reason]]:
    """The reasons for the sizes of jobs: of each job the last note that is one."""
    granted = {view.job.key: view.job.granted_workers for view in jobs}
    last = {note.job: note for note in notes if note.brief or note.cause}
    for key, note in last.items():
        if note.cause and key in granted:
            yield key, _Reason((note.cause, granted[key]), note)
