"""Decides how many inference servers to lend or to reclaim now, from demand, forecast, headroom and limits.

It is a pure function of numbers; `reclaim` and `lending` choose the servers. Demand is met before anything
else: only lending is limited in number and pace, reclaiming never is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class ExpectedDemand(Protocol):
    """The demand that is expected over some time, with its error band."""

    @property
    def highest(self) -> float:
        """The largest value of the upper edge, in servers."""
        ...


class DemandForecast(Protocol):
    """A forecast of the inference cluster's demand."""

    def note(self, at: float, servers: float) -> None:
        """Record the demand as it was just read; called once in each interval."""
        ...

    def band(self, now: float, until: float) -> ExpectedDemand:
        """The expected demand between `now` and `until`."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that an administrator sets. Servers are whole nodes; times are in seconds."""

    headroom_servers: float = 1.0
    """Servers kept idle for the inference cluster beyond its need."""
    headroom_share: float = 0.0
    """Further servers kept idle, as a part of the need; both are added."""
    most_servers: int | None = None
    """The most servers on loan at once; None: as many as there are."""
    most_per_interval: int = 4
    """The most servers lent in one interval."""
    interval_s: float = 60.0
    """Seconds between two decisions."""
    rest_s: float = 300.0
    """Seconds after a reclaim before servers are lent again."""
    hysteresis_servers: float = 0.5
    """Spare servers beyond a whole one that are needed to lend it, so that small changes of demand move
    nothing."""
    reclaim_s: float = 180.0
    """Seconds that a server may take to become empty once its reclaim begins."""

    @property
    def horizon_s(self) -> float:
        """The most seconds until a server lent now could be back: until the next decision, and a reclaim."""
        return self.interval_s + self.reclaim_s

    def needed(self, demand: float, peak: float | None) -> float:
        """Servers that the inference cluster needs, with headroom."""
        most = demand if peak is None else max(demand, peak)
        return most * (1.0 + self.headroom_share) + self.headroom_servers


@dataclass(frozen=True, slots=True)
class Picture:
    """Numbers of servers at one instant."""

    size: int
    """All usable servers of the inference cluster, lent ones included."""
    lent: int
    """Servers on loan and not under reclaim."""
    lendable: int
    """Servers that are idle and not on loan."""
    undecided: int = 0
    """Servers reclaimed for demand, with nothing preempted for them yet: the reclaim can be undone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions that are due now. At most one of the numbers is not 0, but for `reopen` and `lend`
    together."""

    lend: int = 0
    reclaim: int = 0
    reopen: int = 0
    """Reclaims to undo: these servers stay on loan."""
    why: str = ""


def decide(rules: Rules, picture: Picture, demand: float, peak: float | None, *, rested: bool) -> Decision:
    """Lend servers that are spare beyond need, headroom and hysteresis; reclaim lent servers that are not
    spare.

    `demand`: in servers, at least 0; it may exceed the cluster's size. `peak`: the forecast's highest value,
    over `rules.horizon_s`. `rested`: `rules.rest_s` have passed since the last reclaim.
    """
    needed = rules.needed(demand, peak)
    spare = picture.size - needed
    why = _why(picture.size, demand, peak, needed)
    limit = picture.size if rules.most_servers is None else rules.most_servers
    short = picture.lent - min(limit, max(0, math.floor(spare + _ROUNDING)))
    if short > 0:
        return Decision(reclaim=min(short, picture.lent), why=why)
    room = min(limit, math.floor(spare - rules.hysteresis_servers + _ROUNDING)) - picture.lent
    reopen = max(0, min(room, picture.undecided))
    lend = min(room - reopen, picture.lendable, rules.most_per_interval) if rested else 0
    return Decision(lend=max(0, lend), reopen=reopen, why=why)


_ROUNDING = 1e-9
"""Tolerance of rounding, because sums of fractions of servers are not exact."""


def _why(size: int, demand: float, peak: float | None, needed: float) -> str:
    expected = "no forecast" if peak is None else f"up to {peak:.1f} expected"
    return f"inference needs {demand:.1f} of its {size} servers now ({expected}), {needed:.1f} with headroom"
