"""Commands on their way through a leader: a profile or a checkpoint that somebody has asked for.

The call that asks and the leader's stream live in the same event loop; everything here is for that loop
alone.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from dataclasses import dataclass

from flexo.model.measured import ScalingPoint
from flexo.model.ranges import Range


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """Train with each size of a range for a while (Amoeba, Table 1)."""

    workers: Range
    batches: int
    """At each size; 0: as many as the leader thinks right."""


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Write the state at the next mini-batch boundary (Amoeba, Table 1)."""

    path: str


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Nobody waits for the command of this id any more."""


Order = ProfileOrder | CheckpointOrder | CancelOrder


@dataclass(frozen=True, slots=True)
class Command:
    """What a leader is told to do, once."""

    command_id: int
    order: Order


class Result(enum.Enum):
    """How a command ended."""

    DONE = "done"
    FAILED = "failed"
    BUSY = "busy"
    LOST = "lost"
    """Its leader has gone, and nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A word of the leader's in between."""

    text: str
    points: tuple[ScalingPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The leader's last word."""

    result: Result
    text: str
    points: tuple[ScalingPoint, ...] = ()


class Errand:
    """One command under way, as the call that asked for it sees it."""

    def __init__(self, order: Order) -> None:
        # a leader may outlive this flexod: the next one's commands must not have the same ids
        self.command = Command(secrets.randbits(63), order)
        self._words: asyncio.Queue[Progress | Outcome] = asyncio.Queue()

    def hear(self, word: Progress | Outcome) -> None:
        """The leader has said something."""
        self._words.put_nowait(word)

    async def next_word(self) -> Progress | Outcome:
        """Wait for the leader's next word; nothing comes after an Outcome."""
        return await self._words.get()
