"""The interface of observers that count the loop's cycles and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from flexo.events import Event
from flexo.model.loans import PastLoan

DONE: Final = "done"
UNREACHABLE: Final = "unreachable"
"""The cluster did not answer."""
MISTAKE: Final = "mistake"
"""flexod itself made an error."""


class Watch(Protocol):
    """Counts cycles and events. No method raises or waits."""

    def cycle_began(self) -> None:
        """Note that a cycle begins."""
        ...

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """Note a cycle that took `seconds`. `outcome`: DONE, UNREACHABLE or MISTAKE."""
        ...

    def happened(self, events: Iterable[Event]) -> None:
        """Note events that are in the event store, or would be if it could be written."""
        ...

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """Note that these loans are over."""
        ...


class Unwatched:
    """A Watch that counts nothing."""

    def cycle_began(self) -> None:
        """Do nothing."""

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """Do nothing."""

    def happened(self, events: Iterable[Event]) -> None:
        """Do nothing."""

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """Do nothing."""
