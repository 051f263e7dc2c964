"""The right to act. All parts of flexod that act check it: commands to the cluster, leaders' streams, the
event store."""

from __future__ import annotations

from typing import Final, Protocol


class LeadershipGuard(Protocol):
    """Tells whether this flexod may act. May be asked from any thread."""

    @property
    def epoch(self) -> int:
        """A number that grows with each flexod that becomes active; 0 where there is only one."""
        ...

    def holds(self) -> bool:
        """Whether this flexod may act now. Once it may not, it never may again by this guard."""
        ...

    def check(self) -> None:
        """Raise clusters.base.MayNotAct if this flexod may not act now."""
        ...


class Alone:
    """The guard of a flexod that is the only one."""

    epoch: Final = 0

    def holds(self) -> bool:
        """Whether this flexod may act: always."""
        return True

    def check(self) -> None:
        """Do nothing: this flexod may always act."""


ALONE: Final = Alone()
