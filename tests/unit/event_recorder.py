"""A store for events, for tests of what records them."""

from __future__ import annotations

from collections.abc import Sequence

from flexo.events import Event


class Recorder:
    """An event store that numbers events from 1."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.full = False

    def __call__(self, events: tuple[Event, ...]) -> Sequence[int]:
        if self.full:
            return ()
        self.events += events
        return range(len(self.events) - len(events) + 1, len(self.events) + 1)
