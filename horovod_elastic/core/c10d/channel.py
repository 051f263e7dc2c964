"""What a communicator says to rank 0 and hears from it; rank 0 (hub.py) and all others (spoke.py) alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from horovod_elastic.core.c10d.words import Heard, Step


class Listener(Protocol):
    """Who hears it. Called in the channel's threads, never two calls at once, and must not block."""

    def all_here(self) -> None:
        """Every rank has said hello."""

    def entry(self, key: str, value: bytes) -> None:
        """Somebody has put this on the shelf."""

    def heard(self, heard: Heard) -> None:
        """What is done next."""

    def all_left(self) -> None:
        """Every rank has said that it leaves."""

    def broken(self, why: str) -> None:
        """Somebody is gone, or has hung up. Nothing is heard after it."""


class Channel(Protocol):
    """Any thread may say something. What cannot be said any more is not: the listener hears why."""

    own_address: str
    """The IP address at which other ranks reach this machine."""

    def steps(self, steps: Sequence[Step]) -> None:
        """What this rank's program does, in its order."""

    def put(self, key: str, value: bytes) -> None:
        """On the shelf, for all."""

    def leave(self) -> None:
        """Nothing is outstanding, and nothing will be asked for."""

    def hang_up(self, why: str) -> None:
        """Everybody is to hear that it is broken."""

    def close(self) -> None:
        """Let go of all connections. Twice is once."""

    def forget(self) -> None:
        """In a forked process: close its copies of descriptors, and say nothing."""
