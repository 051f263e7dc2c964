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
    """The batches at each size; 0: the leader decides."""


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Write the state at the next mini-batch boundary (Amoeba, Table 1)."""

    path: str


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Cancel the command of this id: nobody waits for it any more."""


Order = ProfileOrder | CheckpointOrder | CancelOrder


@dataclass(frozen=True, slots=True)
class Command:
    """A command for a leader, sent once."""

    command_id: int
    order: Order


class Result(enum.Enum):
    """The ways in which a command ends."""

    DONE = "done"
    FAILED = "failed"
    BUSY = "busy"
    LOST = "lost"
    """The command's leader has gone, and nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A message of the leader about a command under way."""

    text: str
    points: tuple[ScalingPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The leader's last message about a command."""

    result: Result
    text: str
    points: tuple[ScalingPoint, ...] = ()


class PendingCommand:
    """One command under way, as the call that asked for it sees it."""

    def __init__(self, order: Order) -> None:
        # a leader may outlive this flexod: the next one's commands must not have the same ids
        self.command = Command(secrets.randbits(63), order)
        self._words: asyncio.Queue[Progress | CommandOutcome] = asyncio.Queue()

    def hear(self, word: Progress | CommandOutcome) -> None:
        """Note a message of the leader."""
        self._words.put_nowait(word)

    async def next_word(self) -> Progress | CommandOutcome:
        """Wait for the leader's next message; nothing comes after a CommandOutcome."""
        return await self._words.get()
