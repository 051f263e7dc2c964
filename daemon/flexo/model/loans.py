"""Inference servers on loan to training, and what the inference cluster needs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of the inference cluster, by one source."""

    at: float
    """The time at which this was the demand."""
    servers: float
    """Servers in use or asked for; not necessarily a whole number."""
    source: str
    """The source's name, for people."""


class LoanState(enum.Enum):
    """The progress of a loan: from lent to empty."""

    LENT = "lent"
    RECLAIMING = "called back"
    """The server takes no new workers; flexod scales its satellites in."""
    PREEMPTING = "preempting"
    """flexod asks the base jobs on the server for checkpoints, or preempts and requeues them."""
    ESCALATED = "escalated"
    """The deadline is near or past: the cluster's own preemption ends whatever is left on the server."""


@dataclass(frozen=True, slots=True)
class Loan:
    """An inference server lent to training (Lyra, slides): in the borrowed partition as well as in its
    own."""

    node: str
    since_at: float
    why: str
    state: LoanState = LoanState.LENT
    called_back_at: float | None = None
    deadline_at: float | None = None
    """Time by which the server must be empty; None: it is not being reclaimed."""
    why_back: str = ""
    workers_scaled_in: int = 0
    """Workers that were told to leave the server so far."""
    bases_preempted: int = 0
    """Base jobs that were preempted for the server so far."""
    servers_emptied_beside: int = 0
    """Other lent servers that these preemptions emptied, although they were not reclaimed."""

    @property
    def closed(self) -> bool:
        """Whether the server is being reclaimed: nothing new may be placed there."""
        return self.state is not LoanState.LENT


@dataclass(frozen=True, slots=True)
class PastLoan:
    """A loan that is over. Times are seconds since the epoch."""

    node: str
    since_at: float
    why: str
    called_back_at: float | None
    """Start of the reclaim; None: the loan ended without one, as when its node was removed from the
    cluster."""
    deadline_at: float | None
    why_back: str
    empty_at: float
    """Time when the last worker had left the server."""
    ended_at: float
    """Time when the server had left the borrowed partition as well."""
    workers_scaled_in: int
    bases_preempted: int
    servers_emptied_beside: int = 0
    """Other lent servers that these preemptions emptied, although they were not reclaimed."""

    @property
    def reclaim_s(self) -> float | None:
        """Seconds from the start of the reclaim to the empty server; None: there was no reclaim."""
        return None if self.called_back_at is None else max(0.0, self.empty_at - self.called_back_at)

    @property
    def late(self) -> bool:
        """Whether the server was empty only after its deadline."""
        return self.deadline_at is not None and self.empty_at > self.deadline_at


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """An inference server that somebody has taken back by hand: it is not lent again before `until_at`."""

    node: str
    until_at: float
