"""Which entry of the event store explains a job's size, its place in the queue, or a reason of flexod's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon
from flexo_protos.v1 import admin_pb2

_GREW, _SHRANK, _GAVE_BACK, _LOST, _SCALED, _ORDERED = "grow", "shrink", "failure", "lost", "scale", "order"
_RESIZED: Final = (_GREW, _SHRANK, _GAVE_BACK, _LOST)
"""The kinds of events that change a job's size and say why. A satellite that has left was to, so that
another event has the reason."""
_ADOPTED: Final = "adopt"
"""After a restart flexod takes a job over at the size that it has: this explains that only where nothing
else does."""
_REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "capped at": (_SCALED,),
    "is granted": (_GREW,),
    "gives workers back now": (_SHRANK,),
    "on the way out": (_SHRANK,),
    "before its next resize": _RESIZED,
    "its last grant came to nothing": (_GAVE_BACK, _LOST),
    "failed it and is tried again": (_GAVE_BACK, _LOST),
    "all that it can use": _RESIZED,
}
"""flexod's words for a reason that is a decision of its own, and the kinds of events that may have it.

Of other reasons flexod names the event."""
_TROUBLES: Final = ("trouble", "daemon")
"""The kinds of events that say what is wrong with flexod, or with its configuration."""
_MOST_EVENTS: Final = 1000
_NUMBER: Final = re.compile(r"\b\d+\b")


def ask_reasons(daemon: Daemon, _: str) -> tuple[admin_pb2.Event, ...]:
    """The newest events that may explain something. Raises Unreachable and Refusal.

    Resizes are asked for by themselves, so that they leave room for what happens seldom and counts for long.
    """
    kinds = ((*_RESIZED, _ADOPTED), (_SCALED, _ORDERED, *_TROUBLES))
    replies = [daemon.events(admin_pb2.ListEventsRequest(kinds=each, limit=_MOST_EVENTS)) for each in kinds]
    events = (event for reply in replies for event in reply.events)
    return tuple(sorted(events, key=lambda event: -event.number))


@dataclass(frozen=True, slots=True)
class Because:
    """A reason, and the event that has it."""

    text: str
    event: int
    """The number of its entry in the event store; 0: not found there."""


class Explained:
    """The newest events that explain something, by job."""

    def __init__(self, events: Iterable[admin_pb2.Event] = ()) -> None:
        """`events`: newest first, and no more than the viewer may see."""
        self._resized: dict[tuple[int, int], int] = {}
        self._adopted: dict[tuple[int, int], int] = {}
        self._newest: dict[tuple[int, int, str], int] = {}
        self._ordered: dict[int, int] = {}
        self._troubles: list[tuple[int, str]] = []
        for event in events:
            run = event.job_id, event.restart_count
            if event.kind in _TROUBLES:
                self._troubles.append((event.number, event.text))
            if event.kind == _ORDERED:
                named = {int(number) for number in _NUMBER.findall(event.text.rpartition(":")[2])}
                for job_id in named if not event.job_id else (event.job_id,):
                    self._ordered.setdefault(job_id, event.number)
            if event.kind in _RESIZED and event.HasField("grant"):
                self._resized.setdefault(run, event.number)
            if event.kind == _ADOPTED:
                self._adopted.setdefault(run, event.number)
            self._newest.setdefault((*run, event.kind), event.number)

    def size(self, job_id: int, restart: int) -> int:
        """The number of the event that gave this run of the job its size; 0: none is known."""
        run = job_id, restart
        return self._resized.get(run) or self._adopted.get(run, 0)

    def place(self, job_id: int) -> int:
        """The number of the event that gave the pending job its priority; 0: none is known."""
        return self._ordered.get(job_id, 0)

    def because(self, text: str, job_id: int, restart: int, otherwise: int = 0) -> Because:
        """The reason `text` of this run of the job, with its event: that of the first cause that it names.

        `otherwise`: the event that flexod names for the job's reason; 0: none.
        """
        named = [(text.find(words), kinds) for words, kinds in _REASONS.items() if words in text]
        kinds = min(named)[1] if named else ()
        found = max((self._newest.get((job_id, restart, kind), 0) for kind in kinds), default=0)
        return Because(text, found or otherwise)

    def of_job(self, job: admin_pb2.ElasticJob) -> Because:
        """Why a running job has no more workers."""
        return self.because("; ".join(job.reasons), job.job_id, job.restart_count, job.reason_event)

    def trouble(self, text: str) -> Because:
        """What is wrong with flexod, with the newest event that says it."""
        said = (number for number, told in self._troubles if text in told)
        return Because(text, next(said, 0) if text else 0)
