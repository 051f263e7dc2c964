"""The right to act, asked for by all that act: commands to the cluster, leaders' streams, the journal."""

from __future__ import annotations

from typing import Final, Protocol


class Mandate(Protocol):
    """May be asked from any thread."""

    @property
    def epoch(self) -> int:
        """Grows with each flexod that becomes active; 0 where there is only one."""
        ...

    def holds(self) -> bool:
        """Whether this flexod may act now. Once it may not, it never may again under this mandate."""
        ...

    def check(self) -> None:
        """Raises clusters.base.MayNotAct where this flexod may not act now."""
        ...


class Alone:
    """The mandate of a flexod that has no other beside it."""

    epoch: Final = 0

    def holds(self) -> bool:
        """Always."""
        return True

    def check(self) -> None:
        """Never raises."""


ALONE: Final = Alone()
