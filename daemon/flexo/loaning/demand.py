"""Where the demand of the inference cluster comes from: one small interface, and what it may say.

A source tells how many servers inference needs now, and may demand some back by a deadline. It knows nothing
of what is lent but what it is told. Missing or stale data is an error and never a number: who asks then lends
nothing more, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexo.model.loans import Demand, Loan
from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob


class DemandMissing(Exception):
    """A source cannot say what is needed now; the message says why, and since when where that is known."""


@dataclass(frozen=True, slots=True)
class CallBack:
    """Servers that inference wants back by a deadline: those named, or so many of those lent."""

    call_id: str
    """Chosen by who asks, so that asking twice is asking once."""
    asked_at: float
    deadline_at: float
    why: str
    nodes: tuple[str, ...] = ()
    """Those named that are still lent."""
    servers: int = 0
    """Where none are named: how many have yet to come back, those under way included."""


class DemandSource(Protocol):
    """What lending needs of a source. One thread calls; no call blocks."""

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """What the inference cluster needs at `now`. Raises DemandMissing.

        `nodes` and `jobs` are the last look at the cluster. The result may be above the cluster's size, where
        jobs wait for more than there is.
        """
        ...

    def call_backs(self, now: float) -> tuple[CallBack, ...]:
        """What is demanded back and not back yet, the earliest deadline first; also those past it."""
        return ()

    def heed(self, now: float, loans: Sequence[Loan]) -> None:
        """All loans that stand: a server that was among them and is not is empty and back."""
        return
