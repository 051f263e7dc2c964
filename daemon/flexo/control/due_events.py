"""Decides which reasons get an event, and has it written: each reason once, when a second cycle has it, and
seldom if it keeps changing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flexo.events import Event

EVENT_EVERY_S: Final = 300.0
"""The mean time between two events about one thing whose reasons go on changing."""
_AT_ONCE: Final = 5
"""The events about one thing that may come in a row."""

K = TypeVar("K", bound=Hashable)
Cause = Hashable
"""It stays the same for as long as the reason stands."""
Record = Callable[[tuple[Event, ...]], Sequence[int]]
"""Writes events. Returns the numbers of their entries: none if the store cannot write."""


@dataclass(slots=True)
class _Known:
    """What is known of one thing's reasons."""

    seen: Cause = None
    """The cause of the cycle before; None: there was none."""
    told: Cause = None
    """The cause that the newest event is about; None: there is no event."""
    number: int = 0
    """The number of that event's entry."""
    earned_at: float = 0.0
    """The time at which all events of before are earned."""


class DueEvents(Generic[K]):
    """The reasons of all things of one kind, such as jobs or nodes. For the controller's thread alone."""

    def __init__(self) -> None:
        self._known: dict[K, _Known] = {}

    def due(self, causes: Mapping[K, Cause], keep: Iterable[K], now: float, most: int) -> list[K]:
        """Process one cycle. Returns whose reasons are to be recorded now, at most `most` of them.

        `keep`: the things that are remembered, with a cause or without.
        """
        self._known = {key: self._known.get(key) or _Known() for key in keep}
        due = [key for key, cause in causes.items() if self._is_due(self._known[key], cause, now)]
        for key, known in self._known.items():
            known.seen = causes.get(key)
        return due[:most]

    def record(self, events: Sequence[tuple[Event, Sequence[K]]], record: Record) -> None:
        """Write events, each with the things whose present reasons it says. If the store cannot write, they
        are due again."""
        if not events:
            return
        numbers = record(tuple(event for event, _ in events)) or (0,) * len(events)
        for (event, keys), number in zip(events, numbers, strict=True):
            for key in keys:
                known = self._known[key]
                known.earned_at = max(known.earned_at, event.at) + EVENT_EVERY_S
                if number:
                    known.told, known.number = known.seen, number

    def numbers(self) -> Mapping[K, int]:
        """The numbers of the events of all reasons that stand."""
        found = self._known.items()
        return {
            key: known.number for key, known in found if known.told is not None and known.told == known.seen
        }

    def _is_due(self, known: _Known, cause: Cause, now: float) -> bool:
        stands, is_new = known.seen == cause, known.told != cause
        return stands and is_new and known.earned_at - now <= (_AT_ONCE - 1) * EVENT_EVERY_S
