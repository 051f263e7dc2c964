"""The protocol by which a flexod takes, keeps and gives up the lease of the active one. Pure.

The store keeps one lease and changes it by compare-and-swap. The active flexod swaps it for one with the next
`beat` several times in `lease_s`. The others measure with clocks of their own for how long it has not
changed. No two clocks are ever compared, so what must hold needs only clocks that run equally fast (within
SAFE_PART of each other):

* The active flexod may act for SAFE_PART of `lease_s` after it *began* to write its last beat.
* A waiting flexod takes over a whole `lease_s` after it has *finished* reading that beat. That is later
  than a whole `lease_s` after the beat was written.
* Both change the lease by the same compare-and-swap, so a beat that is late loses against a takeover, and a
  takeover that is rash loses against a beat.

So a flexod that was stopped, cut off or that hangs stops acting long before another one may begin, whatever
it believes of itself. There is no lock that it could keep.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from flexo_protos.leader_leases.lease import Found, HeldLease, LeaderLease

SAFE_PART: Final = 0.8
"""The part of `lease_s` in which the holder may act. The rest is for clocks that do not run equally fast."""


class LeaseProtocol:
    """The state of one flexod in the protocol. Times are seconds of one clock that nobody sets, and that goes
    on while the host is suspended."""

    def __init__(self, name: str, address: str, lease_s: float) -> None:
        """`name`: a name of this process and of this try, so that a flexod that is started again is another
        one.

        `address`: host:port of this flexod.
        """
        self._name = name
        self._address = address
        self._lease_s = lease_s
        self._seen: LeaderLease | None = None
        self._seen_since = math.inf
        self._held: HeldLease | None = None
        self._ended = False
        self.term = 0
        """The term under which this flexod acts; 0 before it holds the lease."""

    @property
    def seen(self) -> LeaderLease | None:
        """The lease as last read or written."""
        return self._seen

    @property
    def won(self) -> bool:
        """Whether this flexod has ever held the lease."""
        return self.term > 0

    def holds(self, now: float) -> bool:
        """Whether this flexod may act now. Once it has lost the lease, it never may again."""
        if self._held is not None and not self._held.certain(now):
            self._ended = True
        return self.won and not self._ended

    def wanted(self, found: Found, now: float, wall: float) -> LeaderLease | None:
        """The lease to swap `found` for, if any. `now`: a time after `found` was read.

        `wall`: seconds since the epoch. If the store was emptied, terms go on from there.
        """
        if found.lease != self._seen or math.isinf(self._seen_since):
            self._seen, self._seen_since = found.lease, now
        if self._held is not None:
            return self._renewal(self._held, found.lease, now)
        released = found.lease is not None and found.lease.released
        if released or now - self._seen_since >= self._lease_s:
            term = max(found.term_above(0), int(wall))
            return LeaderLease(self._name, self._address, term, since_at=wall)
        return None

    def _renewal(self, held: HeldLease, found: LeaderLease | None, now: float) -> LeaderLease | None:
        if not self.holds(now):
            return None
        if found is not None and not held.is_in(found):
            self._ended = True  # another holder won; only possible if our clock stalled
            return None
        beat = max(held.lease.beat, found.beat if found is not None else 0) + 1
        return replace(held.lease, beat=beat)

    def wrote(self, lease: LeaderLease, began: float) -> None:
        """Note that `lease` is in the store now. `began`: a time before it was written."""
        self._seen = lease
        if self._held is None:
            self._held = HeldLease(lease, began, SAFE_PART * self._lease_s)
        else:
            self._held.heard(lease, began)
        self.term = lease.term  # last: other threads go by it, and would find the turn to be over

    def farewell(self, found: LeaderLease | None, now: float) -> LeaderLease | None:
        """The lease to swap `found` for when this flexod stops acting, so that no other one waits; None: no
        swap."""
        if self._held is None or not self.holds(now) or found is None or not self._held.is_in(found):
            return None
        self._ended = True
        return replace(self._held.lease, beat=found.beat + 1, released=True)
