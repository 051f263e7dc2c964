"""Where a job's agents keep the lease of their leader: one interface, and the choice of what is behind it.

flexod by default, etcd where the site says so, and the `flexo run` process itself where neither answers when
the job begins (a job without a daemon). `flexo run` chooses once and tells its agents the place, so that all
of a job ask the same one. Who refreshes, waits and steps down when is election.py's.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flexo_protos import flexods, lease_place
from flexo_protos.credentials import Authenticator
from flexo_protos.installing import how_to_install
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from flexo_protos.leases import Lease
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.leader.daemon_link import CONFIG, daemon_address

PLACE_VARIABLE = "FLEXO_LEASE"
"""Says where this job's lease is to be kept, over what the configuration says (see lease_place.py)."""
ANSWER_WITHIN_S = 2.0
"""A server that says nothing for so long is away."""


class StoreAway(Exception):
    """The server of the lease cannot be asked now; the message says which one, and why."""


class LeaseStore(Protocol):
    """One job's lease. Safe from any thread; a call without answer raises StoreAway in ANSWER_WITHIN_S."""

    def acquire(
        self, holder: str, address: str, ttl_s: float, claim: pb.Claim.ValueType = ..., seen: int = 0
    ) -> Lease:
        """Take the lease if it is vacant, refresh it if it is `holder`'s; who holds it now (leases.proto)."""
        ...

    def look(self) -> Lease:
        """Who holds it."""
        ...

    def release(self, holder: str, successor: str = "") -> Lease:
        """Give `holder`'s lease up, to `successor` if one is named."""
        ...

    def close(self) -> None:
        """Hang up. The lease is left as it is."""
        ...


@dataclass(frozen=True, slots=True)
class JobRun:
    """The job that a lease is for: its id and its count of requeues."""

    job_id: str
    restart_count: int


def configured(environment: Mapping[str, str]) -> LeasePlace:
    """$FLEXO_LEASE, else [lease] store in $FLEXO_CONFIG or /etc/flexo/flexo.toml, else flexod.

    Raises ValueError if what stands there names no place.
    """
    return lease_place.parse(
        environment.get(PLACE_VARIABLE) or _section(environment).get("store") or Kind.FLEXOD.value
    )


def open_store(
    place: LeasePlace, job: JobRun, authenticator: Authenticator, environment: Mapping[str, str] = os.environ
) -> LeaseStore:
    """The store at `place`; nothing is asked yet. Raises StoreAway where its client library is missing."""
    if place.etcd:
        try:
            from horovod_elastic.election.lease_etcd import EtcdLeases
        except ImportError as error:
            text = f"{place.kind.value} keeps the leases, but its client is not installed here ({error})."
            raise StoreAway(f"{text} {how_to_install('etcd')}") from error

        return EtcdLeases(place, job, _etcd_access(environment))
    from horovod_elastic.election.lease_grpc import GrpcLeases

    return GrpcLeases(place, job, authenticator)


@contextmanager
def settled(
    job: JobRun,
    own_address: str,
    authenticator: Authenticator,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> Iterator[LeasePlace]:
    """For `flexo run`: the place that its agents are to use, for as long as the context lasts.

    What is configured, if it answers; else a small server in this process, on a free port of `own_address`.
    So a job starts whatever is away; and it ends with this process anyway. Raises ValueError for a wrong
    configuration, NoAddress.
    """
    run = secrets.token_hex(8)
    site = _with_host(configured(environment))
    if site is not None and _answers(replace(site, run=run), job, authenticator, say, environment):
        yield replace(site, run=run)
        return
    from horovod_elastic.election.lease_grpc import LeaseServer

    with LeaseServer(own_address, authenticator) as server:
        yield LeasePlace(Kind.RUN, (server.endpoint,), run=run)


def _with_host(site: LeasePlace) -> LeasePlace | None:
    """`site` with flexod's address where it only says "flexod"; None if there is no server to ask."""
    if site.kind is Kind.RUN:
        return None
    if site.hosts:
        return site
    address = daemon_address()
    return replace(site, hosts=flexods.several(address)) if address else None


def _answers(
    place: LeasePlace,
    job: JobRun,
    authenticator: Authenticator,
    say: Callable[[str], None],
    environment: Mapping[str, str],
) -> bool:
    try:
        store = open_store(place, job, authenticator, environment)
        try:
            store.look()
        finally:
            store.close()
    except StoreAway as error:
        say(f"{error}; this job keeps its leader's lease itself")
        return False
    return True


def _etcd_access(environment: Mapping[str, str]) -> EtcdAccess:
    section = _section(environment)
    return EtcdAccess(
        **{name: section.get(f"etcd_{name}", "") for name in ("ca", "cert", "key", "user", "password_file")}
    )


def _section(environment: Mapping[str, str]) -> Mapping[str, str]:
    """[lease] of the configuration; empty where there is none that can be read."""
    try:
        with Path(environment.get("FLEXO_CONFIG", CONFIG)).open("rb") as file:
            section = tomllib.load(file).get("lease")
    except (OSError, ValueError):
        return {}
    if not isinstance(section, dict):
        return {}
    return {name: value for name, value in section.items() if isinstance(value, str)}
