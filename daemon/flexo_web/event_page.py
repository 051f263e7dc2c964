"""The page of one event, with the events before it: what flexod saw, decided or did, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon
from flexo_protos.v1 import admin_pb2
from flexo_web.privacy import Privacy

_SHOWN: Final = 20
LARGEST: Final = (1 << 62) - 1
"""The largest number that flexod accepts."""


def ask_events(daemon: Daemon, number: int) -> admin_pb2.ListEventsReply:
    """The event of this number and those before it. Raises Unreachable and Refusal."""
    return daemon.events(admin_pb2.ListEventsRequest(before=number + 1, limit=_SHOWN))


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
    """The whole page."""

    number: int
    event: ShownEvent | None
    """None: it is not in the event store, or the viewer may not see it."""
    before: tuple[ShownEvent, ...]
    unknown: str


def event_page(
    number: int, reply: admin_pb2.ListEventsReply | None, refusal: str, privacy: Privacy
) -> EventPage:
    """The page of the event `number`. `reply` None: flexod has not answered, for the reason `refusal`."""
    if reply is None:
        return EventPage(number, None, (), refusal)
    shown = [_shown(event, privacy) for event in reply.events if privacy.of_event(event)]
    event = next((each for each in shown if each.number == number), None)
    older = tuple(each for each in shown if each.number < number)
    unknown = "" if event else f"There is no event {number} that you may see. Old events are removed."
    return EventPage(number, event, older, unknown)


def _shown(event: admin_pb2.Event, privacy: Privacy) -> ShownEvent:
    return ShownEvent(
        number=event.number,
        at=event.at,
        kind=event.kind,
        text=privacy.text(event.text),
        job_id=event.job_id,
    )
