"""The leases of many jobs, in the memory of flexod or of `flexo run`, and the calls that reach them.

Pure: time is an argument, no call waits, and callers take turns. flexod serves the table to all jobs of the
cluster (flexo/service/lease_service.py), `flexo run` to its own job
(horovod_elastic/election/lease_grpc.py).

Two rules always hold. At one moment of the table's clock, a lease has one holder. A term belongs to one
holder, and later holders have higher terms.

A table is lost when its process ends. The next table draws its terms from further on (`first_term`, the clock
in milliseconds). For `grace_s` it gives no lease to ordinary candidates: they might depose a leader that just
has not refreshed its lease yet. That leader refreshes within that time, and so takes its lease again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flexo_protos.leader_leases import protocol
from flexo_protos.leader_leases.lease import Found, LeaderLease
from flexo_protos.v1 import leases_pb2 as pb

SHORTEST_TTL_S, LONGEST_TTL_S = 0.1, 60.0
LONGEST_NAME = 255
"""Most characters of a holder's name, an address or a run's name."""
LEASES_PER_USER = 4096
FORGET_AFTER_S = 600.0
"""Time for which the table remembers a vacant lease: its last term, and that it was held at all."""
_HIGHEST_TERM = 1 << 62


class BadRequest(Exception):
    """A request that no table can serve; the message says what is wrong with it."""


class TooManyLeases(Exception):
    """The caller has LEASES_PER_USER leases already."""


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """The key of a lease: the user whom MUNGE named, and the run of a job."""

    uid: int
    job_id: int
    restart_count: int
    run: str


@dataclass(frozen=True, slots=True)
class _Entry:
    lease: LeaderLease
    version: int
    expires_at: float


_Name = tuple[int, int, str]


class LeaseTable:
    """All leases of one server. `now`: time of one monotonic clock, in seconds, in all methods."""

    def __init__(self, now: float, *, grace_s: float = 0.0, first_term: int = 1) -> None:
        self._young_until = now + grace_s
        self._next_term = first_term
        self._versions = 0
        self._users: dict[int, dict[_Name, _Entry]] = {}
        self._forgot_at = now

    def acquire(self, key: LeaseKey, request: pb.AcquireRequest, now: float) -> LeaderLease:
        """Take a vacant lease, or refresh the caller's own. Raises TooManyLeases."""
        return protocol.told(protocol.acquire(self.store(key, now), request))

    def look(self, key: LeaseKey, now: float) -> LeaderLease:
        """The present lease, with its holder."""
        return protocol.told(self.store(key, now).read())

    def release(self, key: LeaseKey, holder: str, successor: str, now: float) -> LeaderLease:
        """Give up a lease that `holder` holds. No effect if another process holds it."""
        return protocol.told(protocol.release(self.store(key, now), holder, successor))

    def store(self, key: LeaseKey, now: float) -> TableStore:
        """A LeaseStore for one lease of the table at `now`."""
        return TableStore(self, key, now)

    def find(self, key: LeaseKey, now: float) -> Found:
        """See LeaseStore.read."""
        entry = self._entry(key)
        if entry is None:
            return Found(None, 0, self._next_term, max(0.0, self._young_until - now))
        if now >= entry.expires_at:
            return Found(replace(entry.lease, released=True), entry.version, self._next_term)
        left_s = entry.expires_at - now if entry.lease.expires_in_s else 0.0
        return Found(entry.lease, entry.version, self._next_term, left_s)

    def change(self, key: LeaseKey, version: int, lease: LeaderLease, now: float) -> Found:
        """See LeaseStore.swap. Raises TooManyLeases."""
        entry = self._entry(key)
        if version == (entry.version if entry is not None else 0):
            self._write(key, lease, now)
            if entry is None or lease.term != entry.lease.term:
                self._next_term += 1  # not lease.term + 1: one user's `seen` is nothing to the others
        return self.find(key, now)

    def _entry(self, key: LeaseKey) -> _Entry | None:
        return self._users.get(key.uid, {}).get((key.job_id, key.restart_count, key.run))

    def _write(self, key: LeaseKey, lease: LeaderLease, now: float) -> None:
        name = (key.job_id, key.restart_count, key.run)
        if now - self._forgot_at > FORGET_AFTER_S / 10:
            self._forget(now)
        leases = self._users.setdefault(key.uid, {})
        if name not in leases and len(leases) >= LEASES_PER_USER:
            raise TooManyLeases(f"uid {key.uid} has {LEASES_PER_USER} leases already")
        self._versions += 1
        lasts_s = 0.0 if lease.vacant else lease.expires_in_s or math.inf
        leases[name] = _Entry(lease, self._versions, now + lasts_s)

    def _forget(self, now: float) -> None:
        self._forgot_at = now
        for uid, leases in list(self._users.items()):
            for name, entry in list(leases.items()):
                if now - entry.expires_at > FORGET_AFTER_S:
                    del leases[name]
            if not leases:
                del self._users[uid]


class TableStore:
    """A LeaseStore: one lease of a table, at one moment."""

    name = "the table of leases"

    def __init__(self, table: LeaseTable, key: LeaseKey, now: float) -> None:
        self._table = table
        self._key = key
        self._now = now

    def read(self) -> Found:
        """See LeaseStore."""
        return self._table.find(self._key, self._now)

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """See LeaseStore. Raises TooManyLeases."""
        return self._table.change(self._key, version, lease, self._now)

    def close(self) -> None:
        """See LeaseStore: nothing is held."""


def answer_acquire(table: LeaseTable, uid: int, request: pb.AcquireRequest, now: float) -> pb.Lease:
    """Answer LeaseService.Acquire for the proven user `uid`. Raises BadRequest, TooManyLeases."""
    key = _key(uid, request.job)
    _check_name("holder", request.holder)
    _check_name("address", request.address)
    if not (math.isfinite(request.ttl_s) and SHORTEST_TTL_S <= request.ttl_s <= LONGEST_TTL_S):
        raise BadRequest(
            f"ttl_s is {request.ttl_s}: a lease lasts from {SHORTEST_TTL_S} to {LONGEST_TTL_S:.0f} seconds"
        )
    if request.seen >= _HIGHEST_TERM:
        raise BadRequest(f"seen is {request.seen}: terms are below 2^62")
    return message(table.acquire(key, request, now))


def answer_look(table: LeaseTable, uid: int, request: pb.LookRequest, now: float) -> pb.Lease:
    """Answer LeaseService.Look for the proven user `uid`. Raises BadRequest."""
    return message(table.look(_key(uid, request.job), now))


def answer_release(table: LeaseTable, uid: int, request: pb.ReleaseRequest, now: float) -> pb.Lease:
    """Answer LeaseService.Release for the proven user `uid`. Raises BadRequest."""
    key = _key(uid, request.job)
    _check_name("holder", request.holder)
    if request.successor:
        _check_name("successor", request.successor)
    return message(table.release(key, request.holder, request.successor, now))


def message(lease: LeaderLease) -> pb.Lease:
    """The message for `lease`."""
    return pb.Lease(
        holder=lease.holder,
        address=lease.address,
        term=lease.term,
        previous=lease.previous,
        expires_in_s=lease.expires_in_s,
    )


def from_message(said: pb.Lease) -> LeaderLease:
    """The lease in a message."""
    return LeaderLease(said.holder, said.address, said.term, said.previous, said.expires_in_s)


def _key(uid: int, job: pb.JobKey) -> LeaseKey:
    if not job.job_id:
        raise BadRequest("the request names no job")
    if len(job.run) > LONGEST_NAME:
        raise BadRequest(f"run has {len(job.run)} characters: {LONGEST_NAME} are allowed")
    return LeaseKey(uid, job.job_id, job.restart_count, job.run)


def _check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise BadRequest(f"{what} is {name[:40]!r}: it takes 1 to {LONGEST_NAME} printable characters")
