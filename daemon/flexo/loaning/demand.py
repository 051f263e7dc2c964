"""The interface of a source of inference demand, and what a source can report.

A source reports how many servers inference needs now, and may demand some back by a deadline. It knows about
loans only what it is told. Missing or stale data is an error and never a number: the caller then lends
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
    """The error of a source that does not know the demand now; the message says why and, if known, since
    when."""


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """Servers that inference demands back by a deadline: named ones, or a number of the lent ones."""

    call_id: str
    """An identifier chosen by the requester, so that asking twice is asking once."""
    asked_at: float
    deadline_at: float
    why: str
    nodes: tuple[str, ...] = ()
    """The named servers that are still lent."""
    servers: int = 0
    """The number of servers that have yet to come back, those under reclaim included; 0: servers are
    named."""


class DemandSource(Protocol):
    """The interface between lending and a source of demand. One thread makes all calls; no call blocks."""

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """The demand of the inference cluster at `now`. Raises DemandMissing.

        `nodes` and `jobs` are from the last poll of the cluster. The result may exceed the cluster's size if
        jobs wait for more than there is.
        """
        ...

    def reclaim_requests(self, now: float) -> tuple[ReclaimRequest, ...]:
        """The open demands for servers, the earliest deadline first, also those past it."""
        return ()

    def heed(self, now: float, loans: Sequence[Loan]) -> None:
        """Tell the source all loans that stand. A server that is missing since the last call is empty and
        back."""
        return
