"""The pages of events: what flexod saw, decided or did, why, and what happened before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon
from flexo_protos.v1 import admin_pb2
from flexo_web.privacy import Privacy

_SHOWN_BEFORE: Final = 20
_SHOWN: Final = 200
LARGEST: Final = (1 << 62) - 1
"""The largest number that flexod accepts."""
_ROUTINE: Final = "extend"
"""The kind that happens again and again: flexod names it to those alone who ask for it."""


@dataclass(frozen=True, slots=True)
class Past:
    """flexod's answer on one event."""

    event: admin_pb2.Event | None
    """None: there is none of this number, or flexo-web may not see it."""
    before: tuple[admin_pb2.Event, ...]
    """What happened before, the newest first: to the same job, if it is about one."""


def ask_event(daemon: Daemon, number: int) -> Past:
    """The event of this number and those before it. Raises Unreachable and Refusal."""
    event = _ask_one(daemon, number) or _ask_one(daemon, number, _ROUTINE)
    job_id = event.job_id if event else 0
    asked = admin_pb2.ListEventsRequest(job_id=job_id, before=number, limit=_SHOWN_BEFORE)
    return Past(event, tuple(daemon.events(asked).events))


def ask_newest(daemon: Daemon, _: str) -> tuple[admin_pb2.Event, ...]:
    """The newest events. Raises Unreachable and Refusal."""
    return tuple(daemon.events(admin_pb2.ListEventsRequest(limit=_SHOWN)).events)


def _ask_one(daemon: Daemon, number: int, *kinds: str) -> admin_pb2.Event | None:
    asked = admin_pb2.ListEventsRequest(before=number + 1, after=number - 1, kinds=kinds, limit=1)
    found = (event for event in daemon.events(asked).events if event.number == number)
    return next(found, None)


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event on the page."""

    number: int
    at: float
    kind: str
    text: str
    job_id: int
    """0: it is about no single job."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """The whole page of one event."""

    number: int
    event: ShownEvent | None
    """None: it is not in the event store, or the viewer may not see it."""
    before: tuple[ShownEvent, ...]
    unknown: str


def event_page(number: int, past: Past | None, refusal: str, privacy: Privacy) -> EventPage:
    """The page of the event `number`. `past` None: flexod has not answered, for the reason `refusal`."""
    if past is None:
        return EventPage(number, None, (), refusal)
    event = next(iter(shown_events([past.event] if past.event else [], privacy)), None)
    if event is None:
        unknown = f"There is no event {number} that you may see. Old events are removed."
        return EventPage(number, None, (), unknown)
    return EventPage(number, event, shown_events(past.before, privacy), "")


def shown_events(events: Iterable[admin_pb2.Event], privacy: Privacy) -> tuple[ShownEvent, ...]:
    """Those of `events` that the viewer may see, in the same order."""
    return tuple(
        ShownEvent(
            number=event.number,
            at=event.at,
            kind=event.kind,
            text=privacy.text(event.text),
            job_id=event.job_id,
        )
        for event in events
        if privacy.of_event(event)
    )
