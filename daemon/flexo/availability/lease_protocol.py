"""How one flexod takes, keeps and gives up the lease of the active one: what to write, when to act. Pure.

The store keeps one lease and changes it by compare-and-swap. The active flexod swaps it for one with the next
`beat` several times in `lease_s`; whoever waits measures with a clock of its own for how long it has not
changed. No two clocks are ever compared, so what must hold needs only clocks that run equally fast (within
SAFE_PART of each other):

* Who is active may act for SAFE_PART of `lease_s` after it *began* to write its last beat.
* Who waits takes over a whole `lease_s` after it has *finished* reading that beat, so later than it was
  written.
* Both change the lease by the same compare-and-swap, so a beat that is late loses against a takeover, and a
  takeover that is rash loses against a beat.

So a flexod that was stopped, cut off or that just hangs may not act long before another one may, whatever it
believes of itself; and there is no lock that it could keep.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from flexo_protos.leader_leases.lease import Found, HeldLease, LeaderLease

SAFE_PART: Final = 0.8
"""Of `lease_s`, in which the holder may act: the rest is for clocks that do not run equally fast."""


class LeaseProtocol:
    """Times are seconds of one clock that nobody sets, and that goes on while the host is suspended."""

    def __init__(self, name: str, address: str, lease_s: float) -> None:
        """`name`: of this process and of this try, so that a flexod that is started again is another one.

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
        """Under which this flexod acts; 0 before it is the holder."""

    @property
    def seen(self) -> LeaderLease | None:
        """The lease as last read or written."""
        return self._seen

    @property
    def won(self) -> bool:
        """Whether it has ever been the holder."""
        return self.term > 0

    def holds(self, now: float) -> bool:
        """Whether it may act now. Once it has lost what it had won, it never may again."""
        if self._held is not None and not self._held.certain(now):
            self._ended = True
        return self.won and not self._ended

    def wanted(self, found: Found, now: float, wall: float) -> LeaderLease | None:
        """What to swap `found` for, if anything; `now` is after it was read.

        `wall`, seconds since the epoch: terms go on from there where the store was emptied.
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
        """`lease` is in the store now; `began`: before it was written."""
        self._seen = lease
        if self._held is None:
            self._held = HeldLease(lease, began, SAFE_PART * self._lease_s)
        else:
            self._held.heard(lease, began)
        self.term = lease.term  # last: other threads go by it, and would find the turn to be over

    def farewell(self, found: LeaderLease | None, now: float) -> LeaderLease | None:
        """What to swap `found` for when this flexod acts no more, so that nobody waits; None: nothing."""
        if self._held is None or not self.holds(now) or found is None or not self._held.is_in(found):
            return None
        self._ended = True
        return replace(self._held.lease, beat=found.beat + 1, released=True)
