"""A leader lease: its fields, its text in a store, and the compare-and-swap that changes it.

A lease says who leads, and under which term. Each run of `flexo run` has one, and several flexods share one.
A store (file_store.py, etcd_store.py, table.py) keeps a lease and knows no rules. The rules of a job's agents
are in protocol.py, those of flexods in flexo/availability/lease_protocol.py. They differ in whose clock ends
a lease:

* Jobs: the store's. It ends a lease that is not written again within `expires_in_s`.
* flexods: the clock of the waiting one. `expires_in_s` is 0, so a store without a clock, such as a folder,
  suffices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol


class StoreUnavailable(Exception):
    """The store cannot be used now, or its content is no lease; the message says which store, and why."""


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """The holder of a leader lease, and its term."""

    holder: str
    """Name of the leading process, which no other process has; "": no process leads."""
    address: str
    """host:port of the holder; "": the holder was named the successor, and has not come yet."""
    term: int
    """The fencing term. It grows with each holder. A process that knows a later term obeys no earlier one."""
    previous: int = 0
    """The term before this one; 0: none, as far as is known."""
    expires_in_s: float = 0.0
    """Seconds for which the record stays in the store unless it is written again; 0: the store ends no lease.
    In an answer to a caller: the seconds that are left, at most."""
    beat: int = 0
    """Number that grows with each renewal, where waiting processes must see renewals."""
    since_at: float = 0.0
    """Time when its holder became the leader, in seconds since the epoch by its clock; 0: not kept."""
    released: bool = False
    """Whether the lease is free at once: its holder has left, or the store's clock has ended it."""

    @property
    def vacant(self) -> bool:
        """Whether no process holds the lease."""
        return self.released or not self.holder


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a store at one call."""

    lease: LeaderLease | None
    """The lease; None if there is none, and the store knows of no earlier one."""
    version: int
    """Version of the content, for `swap`; 0: no content."""
    next_term: int = 1
    """Lowest term of a new holder. It counts on from leases that the store does not hold any more."""
    left_s: float = 0.0
    """Seconds until the store ends the lease, at most. Without a lease: seconds for which a store that has
    just begun reserves the lease for its last holder."""

    def term_above(self, seen: int) -> int:
        """The term of a new holder that knows of the term `seen`."""
        known = self.lease.term if self.lease is not None else 0
        return max(self.next_term, known + 1, seen + 1)


class LeaseStore(Protocol):
    """A store of one lease, for one thread. Calls take as long as the storage, and raise StoreUnavailable."""

    name: str
    """Description of the store's place, for people."""

    def read(self) -> Found:
        """The present content. It may be old, but never older than what this object has read before."""
        ...

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """Write `lease` if the store's content still has this version. Return the content afterwards:
        `lease`, or another lease, if another caller was faster.
        """
        ...

    def close(self) -> None:
        """Close the store. The lease is left as it is."""
        ...


class HeldLease:
    """A lease that this process holds, and the time for which that is certain, by one monotonic clock."""

    def __init__(self, lease: LeaderLease, began: float, certain_s: float) -> None:
        """`began`: time before the lease was asked for. `certain_s`: seconds from then on in which no other
        process can have it.
        """
        self._lease = lease
        self._certain_s = certain_s
        self._certain_from = began
        self._certain_until = began + certain_s

    @property
    def lease(self) -> LeaderLease:
        """The lease as it was last written."""
        return self._lease

    def certain(self, now: float) -> bool:
        """Whether no other process can have the lease at `now`."""
        return self._certain_from <= now < self._certain_until

    def is_in(self, lease: LeaderLease | None) -> bool:
        """Whether `lease`, in the store, is still this process's."""
        own = self._lease
        return lease is not None and (lease.holder, lease.address) == (own.holder, own.address)

    def heard(self, lease: LeaderLease, began: float) -> bool:
        """Take the lease that a renewal, begun at `began`, has found in the store; return whether it is held.

        A new term shows that the store had forgotten the lease. If the lease was not certain any more,
        another process may have taken it before the store forgot it. That process is certain for at most
        `certain_s`.
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
    """The format of a lease as one JSON object. Earlier and later releases must read it."""

    keys: Mapping[str, str]
    """The JSON key of each field. A field without a key is not kept."""

    def as_text(self, lease: LeaderLease) -> str:
        """The lease as one line."""
        return json.dumps({key: getattr(lease, field) for field, key in self.keys.items()})

    def from_text(self, text: str, where: str) -> LeaderLease:
        """The lease in `text`. Raises StoreUnavailable, which names `where`."""
        try:
            said = json.loads(text)
            return LeaderLease(**{field: _TYPES[field](said[key]) for field, key in self.keys.items()})
        except (ValueError, KeyError, TypeError) as error:
            raise StoreUnavailable(f"{where} holds no leader lease that can be read: {error!r}") from error


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
