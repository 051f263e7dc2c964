"""How many inference servers to lend or to call back now, from demand, forecast, headroom and limits.

A pure function of numbers; which servers those are is `reclaim`'s and `lending`'s part. Demand is met before
anything else: only lending is limited in number and pace, calling back never is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Band(Protocol):
    """What is expected over some time, with its error band."""

    @property
    def highest(self) -> float:
        """The upper edge at its highest, in servers."""
        ...


class Outlook(Protocol):
    """A forecast of the inference cluster's demand."""

    def note(self, at: float, servers: float) -> None:
        """Demand as it was just read: called once in each interval."""
        ...

    def band(self, now: float, until: float) -> Band:
        """What will be needed between `now` and `until`."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What an administrator lets happen. Servers are whole nodes; times are in seconds."""

    headroom_servers: float = 1.0
    """Kept idle for the inference cluster beyond what it needs."""
    headroom_share: float = 0.0
    """The same, as a part of what it needs; both are added."""
    most_servers: int | None = None
    """On loan at once; None: as many as there are."""
    most_per_interval: int = 4
    """Lent in one interval."""
    interval_s: float = 60.0
    """Between two decisions."""
    rest_s: float = 300.0
    """After a change in one direction, before servers are lent again."""
    hysteresis_servers: float = 0.5
    """So much more than a server has to be spare before it is lent: demand that wavers moves nothing."""
    reclaim_s: float = 180.0
    """How long a server that is called back may take to come."""

    @property
    def horizon_s(self) -> float:
        """How long it takes at most until what is lent now could be back: until the next decision, and a
        reclaim.
        """
        return self.interval_s + self.reclaim_s

    def needed(self, demand: float, peak: float | None) -> float:
        """Servers that the inference cluster has to have, with headroom."""
        most = demand if peak is None else max(demand, peak)
        return most * (1.0 + self.headroom_share) + self.headroom_servers


@dataclass(frozen=True, slots=True)
class Picture:
    """Numbers of servers at one instant."""

    size: int
    """All usable servers of the inference cluster, lent ones included."""
    lent: int
    """On loan, and not called back."""
    lendable: int
    """Idle and not on loan."""
    undecided: int = 0
    """Called back for demand, with nothing preempted for it yet: the call can be taken back."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. At most one of the numbers is not 0, but for `reopen` and `lend` together."""

    lend: int = 0
    call_back: int = 0
    reopen: int = 0
    """Calls to take back: those servers stay on loan."""
    why: str = ""


def decide(rules: Rules, picture: Picture, demand: float, peak: float | None, *, rested: bool) -> Decision:
    """Lend what is spare beyond need, headroom and hysteresis; call back what is lent and not spare.

    `demand` in servers, at least 0, may be above the cluster's size; `peak` is the forecast's, over
    `rules.horizon_s`. `rested`: `rules.rest_s` have passed since the last change.
    """
    needed = rules.needed(demand, peak)
    spare = picture.size - needed
    why = _why(picture.size, demand, peak, needed)
    limit = picture.size if rules.most_servers is None else rules.most_servers
    short = picture.lent - min(limit, max(0, math.floor(spare + _ROUNDING)))
    if short > 0:
        return Decision(call_back=min(short, picture.lent), why=why)
    room = min(limit, math.floor(spare - rules.hysteresis_servers + _ROUNDING)) - picture.lent
    reopen = max(0, min(room, picture.undecided))
    lend = min(room - reopen, picture.lendable, rules.most_per_interval) if rested else 0
    return Decision(lend=max(0, lend), reopen=reopen, why=why)


_ROUNDING = 1e-9
"""Sums of fractions of servers are not exact."""


def _why(size: int, demand: float, peak: float | None, needed: float) -> str:
    expected = "no forecast" if peak is None else f"up to {peak:.1f} expected"
    return f"inference needs {demand:.1f} of its {size} servers now ({expected}), {needed:.1f} with headroom"
