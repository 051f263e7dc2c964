"""Checks etcd, if leases are kept in it: whether it answers and grants access."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from flexo.availability.places import etcd_access, open_store
from flexo.config import Settings
from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo_protos import lease_place
from flexo_protos.leader_leases.lease import StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, LeasePlace

_ANSWER_WITHIN_S: Final = 2.0
_FIX: Final = "The address in flexo.toml, etcd's own health (`etcdctl endpoint health`), and [lease] etcd_*."


def check_etcd(settings: Settings) -> list[Finding]:
    """Check the etcd of [high_availability] lease and that of [lease] store, if they are in etcd."""
    available, leaders = settings.high_availability, lease_place.parse(settings.lease.store)
    access = etcd_access(settings.lease)
    findings = []
    if available.lease and available.folder is None:
        findings.append(_barred("etcd.flexods", access) or _flexods(settings))
    if leaders.etcd:
        findings.append(_barred("etcd.leaders", access) or _leaders(leaders, access))
    return findings


def _barred(check: str, access: EtcdAccess) -> Finding | None:
    """The finding that this account cannot ask etcd; None if it can."""
    file = access.password_file
    if not file or os.access(Path(file).expanduser(), os.R_OK):
        return None
    return not_checked(check, f"you may not read etcd's password in {file}", "As who may: `flexo doctor`")


def _flexods(settings: Settings) -> Finding:
    check = "etcd.flexods"
    try:
        store = open_store(settings)
        store.read()
    except StoreUnavailable as error:
        return problem(check, f"flexods cannot learn which of them is active: {error}", _FIX)
    store.close()
    return ok(check, f"{store.name}, answers")


def _leaders(place: LeasePlace, access: EtcdAccess) -> Finding:
    check = "etcd.leaders"
    try:
        from flexo_protos.etcd import EtcdKey, EtcdUnavailable
    except ImportError as error:
        return not_checked(check, f"etcd's client is not installed here ({error})")
    key = EtcdKey(place, f"{place.prefix}/{os.getuid()}/doctor", access, _ANSWER_WITHIN_S)
    try:
        key.look()
    except EtcdUnavailable as error:
        return problem(check, f"jobs cannot keep their leaders' leases: {error}", _FIX)
    finally:
        key.close()
    return ok(check, f"{key.server} answers this host; compute nodes are not looked at")
