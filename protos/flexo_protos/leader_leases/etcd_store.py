"""A leader lease in etcd: one key, whose revision is what a transaction compares.

A lease that is to end by itself lives under one of etcd's own leases. To write it again unchanged is to keep
etcd's lease alive, which costs etcd no write. When it is released, its key is deleted. The other leases,
flexods', live under no lease of etcd's: whoever waits measures how long one stands, as with a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flexo_protos.etcd import EtcdAway, EtcdKey, Seen
from flexo_protos.leader_leases.lease import Found, LeaderLease, LeaseFormat, StoreAway
from flexo_protos.lease_place import EtcdAccess, LeasePlace


@dataclass(frozen=True, slots=True)
class _Written:
    """What this store wrote last, and the lease of etcd's that it lives under."""

    lease: LeaderLease
    version: int
    etcd_lease: int


class EtcdLeaseStore:
    """A LeaseStore: `key` in the etcd at `place`. A call takes about `answer_within_s` at most."""

    def __init__(
        self, place: LeasePlace, key: str, access: EtcdAccess, answer_within_s: float, kept_as: LeaseFormat
    ) -> None:
        self._key = EtcdKey(place, key, access, answer_within_s)
        self._format = kept_as
        self._written: _Written | None = None
        self.name = f"{self._key.server}, key {self._key.name}"

    def read(self) -> Found:
        """See LeaseStore. What is left of a lease's time is not asked: `left_s` is all of it."""
        with _explained():
            return self._found(self._key.look())

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """See LeaseStore. An answer that was lost, and asked for again, counts by what then stands there."""
        with _explained():
            if not lease.expires_in_s:
                return self._found(self._key.write(self._format.as_text(lease), version))
            if lease.vacant:
                return self._found(self._key.delete(version))  # etcd's lease runs out by itself
            if self._keeps_alive(version, lease):
                return Found(lease, version, version + 1, lease.expires_in_s)
            return self._write(version, lease)

    def close(self) -> None:
        """See LeaseStore."""
        self._key.close()

    def _keeps_alive(self, version: int, lease: LeaderLease) -> bool:
        written = self._written
        if written is None or (written.lease, written.version) != (lease, version):
            return False
        return self._key.refresh_lease(written.etcd_lease)

    def _write(self, version: int, lease: LeaderLease) -> Found:
        granted = self._key.new_lease(lease.expires_in_s)
        seen = self._key.write(self._format.as_text(lease), version, granted)
        if seen.kept is not None and seen.kept.lease == granted:
            self._written = _Written(lease, seen.kept.revision, granted)
        return self._found(seen)

    def _found(self, seen: Seen) -> Found:
        if seen.kept is None:
            return Found(None, 0, seen.revision + 1)
        lease = self._format.from_text(seen.kept.value, self.name)
        return Found(lease, seen.kept.revision, seen.revision + 1, lease.expires_in_s)


@contextmanager
def _explained() -> Iterator[None]:
    """An etcd that is away is a store that is."""
    try:
        yield
    except EtcdAway as error:
        raise StoreAway(str(error)) from error
