"""One notice: events that go out together, as JSON and as lines."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass

from flexo.events import Event
from flexo.words import one_line


class Undelivered(Exception):
    """A receiver did not take a notice; the message says why, without the receiver's secrets."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Events, the oldest first."""

    events: tuple[Event, ...]
    left_out: int = 0
    """The number of events before these that were not delivered: there were too many, or nobody took them."""

    @property
    def subject(self) -> str:
        """What happened, in a few words: ``flexo: 2 grow, 1 end``."""
        kinds = Counter(event.kind for event in self.events)
        return "flexo: " + ", ".join(f"{number} {kind}" for kind, number in kinds.items())

    def lines(self) -> list[str]:
        """One line for each event, and one on those that were left out."""
        left_out = f"{self.left_out} events before these were left out"
        return [*([left_out] if self.left_out else []), *map(_line, self.events)]

    def as_json(self) -> bytes:
        """The notice for programs. `text` is what chat servers show."""
        told = [
            {
                "at": event.at,
                "kind": event.kind,
                "job_id": event.job.job_id if event.job else None,
                "restart_count": event.job.restart_count if event.job else None,
                "text": one_line(event.text),
            }
            for event in self.events
        ]
        said = {"text": "\n".join(self.lines()), "events": told, "left_out": self.left_out}
        return json.dumps(said).encode()


def _line(event: Event) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(event.at))
    return f"{at}  {event.kind}  {f'job {event.job}: ' if event.job else ''}{one_line(event.text)}"
