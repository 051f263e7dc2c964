"""Inference servers on loan to training, and what the inference cluster needs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """What the inference cluster needs, as one source says."""

    at: float
    """When that was so."""
    servers: float
    """Whole servers' worth, in use or asked for; not necessarily a whole number."""
    source: str
    """Who says so, for people."""


class LoanState(enum.Enum):
    """Where an inference server that was lent is on its way back."""

    LENT = "lent"
    CALLED_BACK = "called back"
    """Closed to newcomers; satellites are being scaled in."""
    PREEMPTING = "preempting"
    """Bases on it are being preempted and requeued."""
    ESCALATED = "escalated"
    """Its deadline is near or past: whatever is left there is ended by the cluster's own preemption."""


@dataclass(frozen=True, slots=True)
class Loan:
    """An inference server lent to training (Lyra, slides): in the borrowed partition and still in its own."""

    node: str
    since_at: float
    why: str
    state: LoanState = LoanState.LENT
    called_back_at: float | None = None
    deadline_at: float | None = None
    """When it is to be empty; None: nobody has asked for it."""
    why_back: str = ""
    workers_scaled_in: int = 0
    """Told to leave it so far."""
    bases_preempted: int = 0
    """For it so far."""
    servers_emptied_beside: int = 0
    """Other servers on loan that those preemptions emptied, though nobody wanted them back."""

    @property
    def closed(self) -> bool:
        """Nothing new may be placed there."""
        return self.state is not LoanState.LENT


@dataclass(frozen=True, slots=True)
class PastLoan:
    """A loan that is over. Times are seconds since the epoch."""

    node: str
    since_at: float
    why: str
    called_back_at: float | None
    """None: it ended without a call, as when its node was removed from the cluster."""
    deadline_at: float | None
    why_back: str
    empty_at: float
    """When the last worker had left it."""
    ended_at: float
    """When it was out of the borrowed partition as well."""
    workers_scaled_in: int
    bases_preempted: int
    servers_emptied_beside: int = 0
    """Other servers on loan that those preemptions emptied, though nobody wanted them back."""

    @property
    def reclaim_s(self) -> float | None:
        """From the call to the empty server."""
        return None if self.called_back_at is None else max(0.0, self.empty_at - self.called_back_at)

    @property
    def late(self) -> bool:
        """Whether it missed its deadline."""
        return self.deadline_at is not None and self.empty_at > self.deadline_at


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """An inference server that somebody has taken back by hand: it is not lent again before `until_at`."""

    node: str
    until_at: float
