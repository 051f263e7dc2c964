"""The place of a job's leader lease: the choice of the place, and the client for it.

The place is flexod by default, or etcd if the site configures it. It is the `flexo run` process itself if
neither answers when the job begins (a job without a daemon). `flexo run` chooses once and tells its agents
the place, so that all agents of a job ask the same server.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flexo_protos import flexods, lease_place
from flexo_protos.credentials import Authenticator, NotAuthentic
from flexo_protos.installing import Wheel, how_to_install
from flexo_protos.job_secret import for_flexod
from flexo_protos.leader_leases.lease import OF_JOBS, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from horovod_elastic.daemon_address import CONFIG, daemon_address
from horovod_elastic.election.lease_client import ANSWER_WITHIN_S, JobRun, LeaseClient, StoredLease
from horovod_elastic.election.lease_grpc import GrpcLease, LeaseServer

PLACE_VARIABLE = "FLEXO_LEASE"
"""Environment variable: the place of this job's lease, instead of the configured one (see lease_place.py)."""


def configured(environment: Mapping[str, str]) -> LeasePlace:
    """The configured place: $FLEXO_LEASE, else [lease] store in $FLEXO_CONFIG or /etc/flexo/flexo.toml, else
    flexod.

    Raises ValueError if that text names no place.
    """
    return lease_place.parse(
        environment.get(PLACE_VARIABLE) or _section(environment).get("store") or Kind.FLEXOD.value
    )


def open_lease(
    place: LeasePlace, job: JobRun, authenticator: Authenticator, environment: Mapping[str, str] = os.environ
) -> LeaseClient:
    """A client of the lease at `place`; it asks nothing yet. Raises StoreUnavailable without its library."""
    if not place.etcd:
        if place.kind is Kind.FLEXOD:
            try:
                authenticator = for_flexod(authenticator, place.hosts)
            except NotAuthentic as error:
                raise StoreUnavailable(str(error)) from error
        return GrpcLease(place, job, authenticator)
    try:
        from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
    except ImportError as error:
        text = f"{place.kind.value} keeps the leases, but its client is not installed here ({error})."
        raise StoreUnavailable(f"{text} {how_to_install(Wheel.USERS, 'etcd')}") from error
    # One key for a run of a job, so that a site can give each user a role for their own part.
    key = f"{place.prefix}/{os.getuid()}/{job.job_id}.{job.restart_count}.{place.run}"
    return StoredLease(EtcdLeaseStore(place, key, _etcd_access(environment), ANSWER_WITHIN_S, OF_JOBS))


@contextmanager
def settled(
    job: JobRun,
    own_address: str,
    authenticator: Authenticator,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> Iterator[LeasePlace]:
    """The place that the agents of this `flexo run` are to use, for as long as the context lasts.

    It is the configured place, if its server answers; else a small server in this process, on a free port of
    `own_address`. So a job starts whatever server is away, and it ends with this process anyway. Raises
    ValueError for a wrong configuration, and NoAddress.
    """
    run = secrets.token_hex(8)
    site = _with_host(configured(environment))
    if site is not None and _answers(replace(site, run=run), job, authenticator, say, environment):
        yield replace(site, run=run)
        return
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
        lease = open_lease(place, job, authenticator, environment)
        try:
            lease.look()
        finally:
            lease.close()
    except StoreUnavailable as error:
        say(f"{error}; this job keeps its leader's lease itself")
        return False
    return True


def _etcd_access(environment: Mapping[str, str]) -> EtcdAccess:
    section = _section(environment)
    return EtcdAccess(
        **{name: section.get(f"etcd_{name}", "") for name in ("ca", "cert", "key", "user", "password_file")}
    )


def _section(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The section [lease] of the configuration; empty if it is missing or cannot be read."""
    try:
        with Path(environment.get("FLEXO_CONFIG", CONFIG)).open("rb") as file:
            section = tomllib.load(file).get("lease")
    except (OSError, ValueError):
        return {}
    if not isinstance(section, dict):
        return {}
    return {name: value for name, value in section.items() if isinstance(value, str)}
