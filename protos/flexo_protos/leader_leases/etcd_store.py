"""A leader lease in etcd: one key, whose revision is what a transaction compares.

A lease that is to end by itself is attached to one of etcd's own leases. To write it again unchanged, the
store renews the etcd lease, which costs etcd no write. To release it, the store deletes its key. Leases of
flexods are attached to no etcd lease. A waiting flexod measures how long such a lease stays unchanged, as
with a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flexo_protos.etcd import EtcdKey, EtcdUnavailable, Seen
from flexo_protos.leader_leases.lease import Found, LeaderLease, LeaseFormat, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, LeasePlace


@dataclass(frozen=True, slots=True)
class _Written:
    """The last lease that this store wrote, and the etcd lease that it is attached to."""

    lease: LeaderLease
    version: int
    etcd_lease: int


class EtcdLeaseStore:
    """A LeaseStore: the key `key` in the etcd at `place`. A call takes about `answer_within_s` at most."""

    def __init__(
        self, place: LeasePlace, key: str, access: EtcdAccess, answer_within_s: float, kept_as: LeaseFormat
    ) -> None:
        self._key = EtcdKey(place, key, access, answer_within_s)
        self._format = kept_as
        self._written: _Written | None = None
        self.name = f"{self._key.server}, key {self._key.name}"

    def read(self) -> Found:
        """See LeaseStore. etcd is not asked for the remaining time of a lease: `left_s` is its whole time."""
        with _explained():
            return self._found(self._key.look())

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """See LeaseStore. If an answer is lost and the request repeated, the content afterwards counts."""
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
    """A context that turns EtcdUnavailable into StoreUnavailable."""
    try:
        yield
    except EtcdUnavailable as error:
        raise StoreUnavailable(str(error)) from error
