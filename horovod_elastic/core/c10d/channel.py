"""The interface by which a communicator exchanges messages with rank 0.

Rank 0 (hub.py), every other rank (spoke.py) and a rank that is alone (alone.py) implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from horovod_elastic.core.c10d.messages import Heard, Step


class Listener(Protocol):
    """The receiver of a channel's messages. The channel's threads make one call at a time.

    A method must not block.
    """

    @property
    def outlives(self) -> bool:
        """Whether the communicator can still go on without a rank. Asked once Channel.outlive was called."""

    def all_here(self) -> None:
        """Every rank has said hello."""

    def entry(self, key: str, value: bytes) -> None:
        """A rank has put this value into the store."""

    def heard(self, heard: Heard) -> None:
        """Rank 0 has decided on the next operation of this rank."""

    def all_left(self) -> None:
        """Every rank has said that it leaves."""

    def gone(self, rank: int) -> None:
        """A rank is gone, and the others go on without it. Only rank 0 hears of it."""

    def broken(self, why: str) -> None:
        """A rank is gone, or has hung up. No further call follows."""


class Channel(Protocol):
    """A rank's connection to rank 0. Any thread may call it.

    A message that can no longer be sent is dropped. The listener is told why.
    """

    own_address: str
    """The IP address at which other ranks reach this machine."""

    def steps(self, steps: Sequence[Step]) -> None:
        """Send the next steps of this rank's program, in the program's order."""

    def put(self, key: str, value: bytes) -> None:
        """Put a value into the store of all ranks."""

    def leave(self) -> None:
        """Say that this rank has nothing outstanding and will request nothing more."""

    def outlive(self) -> None:
        """From now on, go on without ranks that are gone, unless it is rank 0. Only rank 0 can do so."""

    def hang_up(self, why: str) -> None:
        """Tell all ranks that the communicator is broken, and why."""

    def close(self) -> None:
        """Close all connections. A second call does nothing."""

    def forget(self) -> None:
        """Close a forked process's copies of the descriptors, and send nothing."""
