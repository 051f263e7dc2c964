"""Pure: notices a pool's Aggregator that makes all wait, such as one on a slow link.

For each round of a key, a node knows how long after its own push the last result of each root came. The
others would need more time with the slowest root's parts on top. If they would still be much faster, round
after round, the job does without the slowest one. A node that is slow, or has a slow link, delays all roots
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ROUNDS = 5
"""So many rounds in succession."""
LEAST_GAIN_S = 0.5
"""Seconds of a round that would have to be gained. Less is left to flexod, which knows the other jobs."""


@dataclass(frozen=True, slots=True)
class SlowRoot:
    """The slowest root, and what its last round took: with it, and at the next slowest one."""

    root: int
    seconds: float
    others_s: float


@dataclass(slots=True)
class _Round:
    begun: float
    shares: Mapping[int, int]
    last: dict[int, float] = field(default_factory=dict)


class SlowRoots:
    """The rounds of one node. The caller serialises all calls; times are seconds of one clock."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Round] = {}
        self._slowest = -1
        self._times = 0

    def begins(self, key: int, shares: Mapping[int, int], now: float) -> None:
        """Note that this node's sum of a key is there. `shares`: of the pool's Aggregators that live."""
        self._rounds[key] = _Round(now, shares)

    def has_part(self, key: int, root: int, now: float) -> None:
        """Note that the result of a part is there, which this root has made."""
        if key in self._rounds:
            self._rounds[key].last[root] = now

    def ends(self, key: int) -> SlowRoot | None:
        """Note that all results are there. The root that is to be left out, if there is one."""
        this = self._rounds.pop(key, None)
        if this is None or len(this.shares) < 2 or this.last.keys() != this.shares.keys():
            return None  # not every root has a part: they cannot be compared
        *_, next_s, slowest_s = sorted(last - this.begun for last in this.last.values())
        slowest = max(this.last, key=lambda root: this.last[root])
        total = sum(this.shares.values())
        without_s = next_s * total / (total - this.shares[slowest])
        would_gain = slowest_s - without_s >= LEAST_GAIN_S
        again = would_gain and slowest == self._slowest
        self._slowest = slowest if would_gain else -1
        self._times = self._times + 1 if again else int(would_gain)
        return SlowRoot(slowest, slowest_s, next_s) if self._times >= ROUNDS else None
