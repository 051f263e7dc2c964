"""One flexod's claim to be the active one: what it writes into the register when, and when it may act. Pure.

The register (register.py) holds one record and changes it by compare-and-swap. The active flexod swaps it for
one with the next `beat` several times in a lease; whoever waits measures with a clock of its own for how long
it has not changed. No two clocks are ever compared, so what must hold needs only clocks that run equally fast
(within SAFE_PART of each other):

* Who is active may act for SAFE_PART of the lease after it *began* to write its last beat.
* Who waits takes over a whole lease after it has *finished* reading that beat, so later than it was written.
* Both change the record by the same compare-and-swap, so a beat that is late loses against a takeover, and a
  takeover that is rash loses against a beat.

So a flexod that was stopped, cut off or that just hangs may not act long before another one may, whatever it
believes of itself; and there is no lock that it could keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

SAFE_PART: Final = 0.8
"""Of a lease, in which its holder may act: the rest is for clocks that do not run equally fast."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the register holds."""

    holder: str
    """Address of the flexod, host:port."""
    token: str
    """Of its process and of this claim: a flexod that is started again is another one."""
    epoch: int
    """Grows with each holder: whoever has heard of a later one does not listen to an earlier one."""
    beat: int
    """Grows with each renewal."""
    since_at: float
    """When it became the holder, seconds since the epoch by its own clock: for people."""
    released: bool = False
    """Its holder has left, and acts no more: nobody has to wait."""


class Claim:
    """Times are seconds of one clock that nobody sets, and that goes on while the host is suspended."""

    def __init__(self, holder: str, token: str, lease_s: float) -> None:
        self._holder = holder
        self._token = token
        self._lease_s = lease_s
        self._seen: Record | None = None
        self._seen_since = math.inf
        self._mine: Record | None = None
        self._held_until = -math.inf
        self._ended = False
        self.epoch = 0
        """Of this holder; 0 before it is one."""

    @property
    def seen(self) -> Record | None:
        """The record as last read or written."""
        return self._seen

    @property
    def won(self) -> bool:
        """Whether it has ever been the holder."""
        return self.epoch > 0

    def holds(self, now: float) -> bool:
        """Whether it may act now. Once it has lost what it had won, it never may again."""
        if self.won and now >= self._held_until:
            self._ended = True
        return self.won and not self._ended

    def wanted(self, found: Record | None, now: float, wall: float) -> Record | None:
        """What to swap `found` for, if anything; `now` is after it was read.

        `wall`, seconds since the epoch: epochs go on from there where the register was emptied.
        """
        if found != self._seen or math.isinf(self._seen_since):
            self._seen, self._seen_since = found, now
        if self.won:
            return self._renewal(found, now)
        if (found is not None and found.released) or now - self._seen_since >= self._lease_s:
            epoch = max(found.epoch + 1 if found else 1, int(wall))
            return Record(self._holder, self._token, epoch, 0, wall)
        return None

    def _renewal(self, found: Record | None, now: float) -> Record | None:
        if not self.holds(now) or self._mine is None:
            return None
        if found is not None and found.token != self._token:
            self._ended = True  # somebody else was faster than our clock: it cannot be, unless it stood still
            return None
        beat = max(self._mine.beat, found.beat if found else 0) + 1
        return replace(self._mine, beat=beat)

    def wrote(self, record: Record, began: float) -> None:
        """`record` is in the register now; `began`: before it was written."""
        self._seen = self._mine = record
        self._held_until = began + SAFE_PART * self._lease_s
        self.epoch = record.epoch  # last: other threads go by it, and would find the turn to be over

    def farewell(self, found: Record | None, now: float) -> Record | None:
        """What to swap `found` for when this flexod acts no more, so that nobody waits; None: nothing."""
        if self._mine is None or not self.holds(now) or found is None or found.token != self._token:
            return None
        self._ended = True
        return replace(self._mine, beat=found.beat + 1, released=True)
