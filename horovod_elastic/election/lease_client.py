"""An agent's client for its job's leader lease: one interface, wherever the lease is kept.

StoredLease asks a store from this process (etcd), by the rules of flexo_protos/leader_leases/protocol.py.
With lease_grpc.py, flexod or `flexo run` asks its own store, by the same rules. election.py decides when an
agent refreshes the lease, waits or steps down.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from flexo_protos.leader_leases import protocol
from flexo_protos.leader_leases.lease import LeaderLease, LeaseStore
from flexo_protos.v1 import leases_pb2 as pb

ANSWER_WITHIN_S = 2.0
"""A server that does not answer within this time is away."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """The job that a lease is for: its id and its count of requeues."""

    job_id: str
    restart_count: int


class LeaseClient(Protocol):
    """One job's lease, for any thread. Without an answer, a call raises StoreUnavailable in time."""

    def acquire(
        self, holder: str, address: str, ttl_s: float, claim: pb.Claim.ValueType = ..., seen: int = 0
    ) -> LeaderLease:
        """Take the lease if it is vacant, or refresh `holder`'s own; return the lease now (leases.proto)."""
        ...

    def look(self) -> LeaderLease:
        """The present lease, with its holder."""
        ...

    def release(self, holder: str, successor: str = "") -> LeaderLease:
        """Give `holder`'s lease up, to `successor` if one is named; return the lease now."""
        ...

    def close(self) -> None:
        """Close the connection. The lease is left as it is."""
        ...


class StoredLease:
    """The LeaseClient of one job, over a store that this process reaches itself."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._lock = threading.Lock()

    def acquire(
        self,
        holder: str,
        address: str,
        ttl_s: float,
        claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
        seen: int = 0,
    ) -> LeaderLease:
        """See LeaseClient."""
        request = pb.AcquireRequest(holder=holder, address=address, ttl_s=ttl_s, claim=claim, seen=seen)
        with self._lock:
            return protocol.told(protocol.acquire(self._store, request))

    def look(self) -> LeaderLease:
        """See LeaseClient."""
        with self._lock:
            return protocol.told(self._store.read())

    def release(self, holder: str, successor: str = "") -> LeaderLease:
        """See LeaseClient."""
        with self._lock:
            return protocol.told(protocol.release(self._store, holder, successor))

    def close(self) -> None:
        """See LeaseClient."""
        self._store.close()
