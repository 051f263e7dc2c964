"""Who is told of each thing that happens in the loop, and counts it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from flexo.events import Event
from flexo.model.loans import PastLoan

DONE: Final = "done"
UNREACHABLE: Final = "unreachable"
"""The cluster did not answer."""
MISTAKE: Final = "mistake"
"""flexod's own."""


class Watch(Protocol):
    """None of it raises or waits."""

    def cycle_began(self) -> None:
        """A cycle begins."""
        ...

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """A cycle took so long: DONE, or what it came to nothing by."""
        ...

    def happened(self, events: Iterable[Event]) -> None:
        """This is in the journal, or would be if that could be written."""
        ...

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """These servers are back."""
        ...


class Unwatched:
    """Nobody counts."""

    def cycle_began(self) -> None:
        """Nothing."""

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """Nothing."""

    def happened(self, events: Iterable[Event]) -> None:
        """Nothing."""

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """Nothing."""
