"""The rules by which a job's agents take, refresh and pass on the leader lease (Amoeba, Algorithm 1).

The functions work over any store, and run where the store is: in the agent itself if etcd keeps the lease, in
flexod or `flexo run` if one of those does (leases.proto carries the same three calls there).

`pb.AcquireRequest` is an agent's request. Its field `job` names a store and means nothing here.
"""

from __future__ import annotations

from dataclasses import replace

from flexo_protos.leader_leases.lease import Found, LeaderLease, LeaseStore
from flexo_protos.v1 import leases_pb2 as pb


def acquire(store: LeaseStore, request: pb.AcquireRequest) -> Found:
    """Take the lease if it is vacant, or refresh it if it is the caller's own. Return the lease in the store
    afterwards."""
    found = store.read()
    wanted = wanted_of(found, request)
    return found if wanted is None else store.swap(found.version, wanted)


def release(store: LeaseStore, holder: str, successor: str) -> Found:
    """Give up `holder`'s lease, to `successor` if one is named. No effect if another process holds it."""
    found = store.read()
    lease = found.lease
    if lease is None or lease.holder != holder:
        return found
    return store.swap(found.version, _passed_on(found, lease, successor))


def wanted_of(found: Found, request: pb.AcquireRequest) -> LeaderLease | None:
    """The lease to swap `found` for; None if another process holds it, or it cannot be taken now."""
    lease = found.lease
    if lease is not None and _refreshes(lease, request):
        # Also when the lease has run out: no other process has taken it meanwhile.
        return replace(lease, address=request.address, expires_in_s=request.ttl_s, released=False)
    if not _may_take(found, request):
        return None
    term = found.term_above(request.seen)
    return LeaderLease(request.holder, request.address, term, lease.term if lease else 0, request.ttl_s)


def told(found: Found) -> LeaderLease:
    """The answer to a request. A vacant lease has its last term, and the time until it can be taken."""
    lease = found.lease
    if lease is None:
        return LeaderLease("", "", 0, 0, found.left_s)
    if lease.vacant:
        return LeaderLease("", "", lease.term, lease.previous, 0.0)
    return replace(lease, expires_in_s=found.left_s)


def _refreshes(lease: LeaderLease, request: pb.AcquireRequest) -> bool:
    """Whether a request refreshes the caller's own lease.

    A successor gives its address with its first request. A caller that claims to hold the lease is no
    successor: it led before, and another process has led since.
    """
    if lease.holder != request.holder:
        return False
    return lease.address == request.address or (not lease.address and request.claim != pb.CLAIM_HOLDER)


def _may_take(found: Found, request: pb.AcquireRequest) -> bool:
    lease = found.lease
    if lease is None and found.left_s > 0:
        return request.claim != pb.CLAIM_UNSPECIFIED
    if request.claim == pb.CLAIM_HOLDER:
        return False
    # A holder of the same name was started again: the earlier process is dead.
    return lease is None or lease.vacant or lease.holder == request.holder


def _passed_on(found: Found, lease: LeaderLease, successor: str) -> LeaderLease:
    if not successor:
        return replace(lease, holder="", address="", released=True)
    term = found.term_above(0)
    return replace(lease, holder=successor, address="", term=term, previous=lease.term, released=False)
