"""The lease of a job's leader in etcd, as Amoeba has it (Algorithm 1): a transaction is the compare-and-swap,
etcd's own leases are the time to live.

One key for a run of a job, PREFIX/UID/JOB.RESTART.RUN, so that a site can give each user a role for their
own part. Its value is a small JSON object. Terms are one more than etcd's revision, or than what the taker
has seen if that is higher, so they grow even if the site begins a new etcd.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flexo_protos.etcd import EtcdAway, EtcdKey, Seen
from flexo_protos.lease_place import EtcdAccess, LeasePlace
from flexo_protos.leases import Lease
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election.leases import ANSWER_WITHIN_S, JobRun, StoreAway


@dataclass(frozen=True, slots=True)
class _Record:
    """What the key holds, and where it stands in etcd."""

    lease: Lease
    revision: int
    etcd_lease: int


@dataclass(frozen=True, slots=True)
class _Look:
    """The record if there is one, and etcd's revision."""

    record: _Record | None
    revision: int

    @property
    def lease(self) -> Lease:
        return self.record.lease if self.record is not None else Lease("", "", 0, 0, 0.0)


class EtcdLeases:
    """LeaseStore of one job. `expires_in_s` is the whole time to live: what is left of it is not asked."""

    def __init__(self, place: LeasePlace, job: JobRun, access: EtcdAccess) -> None:
        name = f"{place.prefix}/{os.getuid()}/{job.job_id}.{job.restart_count}.{place.run}"
        self._key = EtcdKey(place, name, access, ANSWER_WITHIN_S)
        self._lock = threading.Lock()
        self._mine: int | None = None
        """The lease of etcd's that this store has written under."""

    def acquire(
        self,
        holder: str,
        address: str,
        ttl_s: float,
        claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
        seen: int = 0,
    ) -> Lease:
        """See LeaseStore. A holder whose lease ran out is told so (vacant): others may have led since."""
        with self._asking():
            found = self._read(self._key.look())
            record = found.record
            if record is None:
                if claim == pb.CLAIM_HOLDER:
                    return found.lease
                term = max(found.revision, seen) + 1
                return self._write(Lease(holder, address, term, 0, ttl_s), 0)
            old = record.lease
            if old.holder != holder or (claim == pb.CLAIM_HOLDER and old.address != address):
                return old
            if old.address == address and self._keep_alive(record):
                return old
            if old.address in ("", address):
                return self._write(Lease(holder, address, old.term, old.previous, ttl_s), record.revision)
            term = max(found.revision, old.term, seen) + 1  # this agent was started again
            return self._write(Lease(holder, address, term, old.term, ttl_s), record.revision)

    def look(self) -> Lease:
        """See LeaseStore."""
        with self._asking():
            return self._read(self._key.look()).lease

    def release(self, holder: str, successor: str = "") -> Lease:
        """See LeaseStore."""
        with self._asking():
            found = self._read(self._key.look())
            record = found.record
            if record is None or record.lease.holder != holder:
                return found.lease
            if successor:
                term = max(found.revision, record.lease.term) + 1
                reserved = Lease(successor, "", term, record.lease.term, record.lease.expires_in_s)
                return self._write(reserved, record.revision)
            self._mine = None  # etcd's lease under it runs out by itself
            return self._read(self._key.delete(record.revision)).lease

    def close(self) -> None:
        """See LeaseStore."""
        self._key.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """One thread at a time; an etcd that is away is a store that is."""
        with self._lock:
            try:
                yield
            except EtcdAway as error:
                raise StoreAway(str(error)) from error

    def _write(self, lease: Lease, expected: int) -> Lease:
        """Put `lease` under a new lease of etcd's if the key is still as it was; who holds it now."""
        granted = self._key.new_lease(lease.expires_in_s)
        now = self._read(self._key.write(_as_json(lease), expected, granted))
        if now.record is not None and now.record.etcd_lease == granted:
            self._mine = granted
        return now.lease

    def _keep_alive(self, record: _Record) -> bool:
        return self._mine == record.etcd_lease and self._key.refresh_lease(record.etcd_lease)

    def _read(self, seen: Seen) -> _Look:
        if seen.kept is None:
            return _Look(None, seen.revision)
        try:
            said = json.loads(seen.kept.value)
            terms = int(said["term"]), int(said["previous"])
            lease = Lease(str(said["holder"]), str(said["address"]), *terms, float(said["ttl_s"]))
        except (KeyError, ValueError, TypeError) as error:
            text = f"{self._key.server} says what cannot be read under {self._key.name}: {error!r}"
            raise StoreAway(text) from error
        return _Look(_Record(lease, seen.kept.revision, seen.kept.lease), seen.revision)


def _as_json(lease: Lease) -> str:
    said = {"holder": lease.holder, "address": lease.address, "term": lease.term}
    return json.dumps({**said, "previous": lease.previous, "ttl_s": lease.expires_in_s})
