"""A leader lease: what it says, how a store keeps it as text, and how it is changed, by compare-and-swap.

A lease says who leads, and under which term. Each run of `flexo run` has one, and several flexods share one.
A store (file_store.py, etcd_store.py, table.py) keeps a lease and knows no rules. The rules of a job's agents
are in protocol.py, those of flexods in flexo/availability/lease_protocol.py. They differ in whose clock ends
a lease:

* Jobs: the store's. It ends a lease that is not written again within `expires_in_s`.
* flexods: that of whoever waits. `expires_in_s` is 0, so a store without a clock, such as a folder, suffices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol


class StoreAway(Exception):
    """The store cannot be used now, or what it holds is no lease; the message says which store, and why."""


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """Who leads."""

    holder: str
    """Name of the leading process, nobody else's; "": nobody leads."""
    address: str
    """host:port at which it is reached; "": it was named the successor, and has not come yet."""
    term: int
    """The fencing term. It grows with each holder. Whoever knows a later term obeys no earlier one."""
    previous: int = 0
    """The term before; 0: none, as far as is known."""
    expires_in_s: float = 0.0
    """How long it stands in the store unless it is written again; of one that a caller is told: what is left
    of that, at most. 0: the store ends no lease."""
    beat: int = 0
    """Grows with each renewal where a renewal has to be seen by who waits."""
    since_at: float = 0.0
    """When its holder became the leader, seconds since the epoch by the holder's clock; 0: not kept."""
    released: bool = False
    """Nobody has to wait for its end: its holder has left, or the store's clock has ended it."""

    @property
    def vacant(self) -> bool:
        """Nobody holds it."""
        return self.released or not self.holder


@dataclass(frozen=True, slots=True)
class Found:
    """What a store holds, as one call has found it."""

    lease: LeaderLease | None
    """None: none, and the store knows of no earlier one."""
    version: int
    """Names what was found, for `swap`; 0: nothing."""
    next_term: int = 1
    """A new holder's term is at least this one: it goes on from leases that the store holds no more."""
    left_s: float = 0.0
    """Until the store ends the lease, at most. Without a lease: how long a store that has just begun keeps it
    for whoever held it."""

    def term_above(self, seen: int) -> int:
        """The term of a new holder that knows of `seen`."""
        known = self.lease.term if self.lease is not None else 0
        return max(self.next_term, known + 1, seen + 1)


class LeaseStore(Protocol):
    """Keeps one lease. For one thread. Each call may take as long as the storage does; raises StoreAway."""

    name: str
    """For people: where it is."""

    def read(self) -> Found:
        """What it holds. May be old, but never older than what was read here before."""
        ...

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """Let it hold `lease` if it still holds what a call named `version`. What it holds now: `lease`, or
        another one, if somebody else was faster.
        """
        ...

    def close(self) -> None:
        """Let go of it. The lease is left as it is."""
        ...


class HeldLease:
    """A lease that this process holds, and for how long that is certain. Times are one monotonic clock's."""

    def __init__(self, lease: LeaderLease, began: float, certain_s: float) -> None:
        """`began`: before it was asked for; `certain_s`: how long after that nobody else can have it."""
        self._lease = lease
        self._certain_s = certain_s
        self._certain_from = began
        self._certain_until = began + certain_s

    @property
    def lease(self) -> LeaderLease:
        """As it was last written."""
        return self._lease

    def certain(self, now: float) -> bool:
        """Whether nobody else can have it."""
        return self._certain_from <= now < self._certain_until

    def is_in(self, lease: LeaderLease | None) -> bool:
        """Whether `lease`, in the store, is still this process's."""
        own = self._lease
        return lease is not None and (lease.holder, lease.address) == (own.holder, own.address)

    def heard(self, lease: LeaderLease, began: float) -> bool:
        """`lease` is what a renewal begun at `began` has found in the store: whether it is held.

        A new term says that the store had forgotten the lease. If that was not certain any more, another
        process may have taken it before the store forgot. That one is certain for `certain_s` at the longest.
        """
        if not self.is_in(lease):
            return False
        if lease.term != self._lease.term and began >= self._certain_until:
            self._certain_from = began + self._certain_s
        self._lease = lease
        self._certain_until = began + self._certain_s
        return True


@dataclass(frozen=True, slots=True)
class LeaseFormat:
    """A lease as one JSON object. What one release writes, those before and after it read."""

    keys: Mapping[str, str]
    """By field: its key. A field without one is not kept."""

    def as_text(self, lease: LeaderLease) -> str:
        """One line."""
        return json.dumps({key: getattr(lease, field) for field, key in self.keys.items()})

    def from_text(self, text: str, where: str) -> LeaderLease:
        """The lease that `text` is. Raises StoreAway, which names `where`."""
        try:
            said = json.loads(text)
            return LeaderLease(**{field: _TYPES[field](said[key]) for field, key in self.keys.items()})
        except (ValueError, KeyError, TypeError) as error:
            raise StoreAway(f"{where} holds no leader lease that can be read: {error!r}") from error


_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "holder": str,
    "address": str,
    "term": int,
    "previous": int,
    "expires_in_s": float,
    "beat": int,
    "since_at": float,
    "released": bool,
}
OF_JOBS: Final = LeaseFormat(
    {
        "holder": "holder",
        "address": "address",
        "term": "term",
        "previous": "previous",
        "expires_in_s": "ttl_s",
    }
)
OF_FLEXODS: Final = LeaseFormat(
    {
        "address": "holder",
        "holder": "token",
        "term": "epoch",
        "beat": "beat",
        "since_at": "since_at",
        "released": "released",
    }
)
