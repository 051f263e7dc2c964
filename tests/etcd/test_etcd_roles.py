"""Who may write which of flexo's keys in a real etcd, with the roles that the administrator guide gives."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from flexo.availability.places import KEY
from flexo.config import parse
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import SatelliteReport, SatelliteState
from flexo.model.queue import JobKey, Principal
from flexo.service.grant_key import grant_signer
from flexo_bench.etcd_process import Etcd
from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, OF_JOBS, LeaderLease, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from flexo_protos.resources import Resources

A = LeaderLease("ta", "a:1", 1, since_at=5.0)


def test_a_users_role_does_not_reach_the_key_that_says_which_flexod_is_active_nor_flexods_role_more(
    own_etcd: Etcd, tmp_path: Path
) -> None:
    own_etcd.let_in("flexo", "of flexod", "flexo/active-flexod")
    own_etcd.let_in("ada", "of ada", f"flexo/{os.getuid()}/")
    own_etcd.require_passwords()

    def access(user: str, password: str) -> EtcdAccess:
        path = tmp_path / user
        path.write_text(password)
        return EtcdAccess(user=user, password_file=str(path))

    flexod, ada = access("flexo", "of flexod"), access("ada", "of ada")
    place = LeasePlace(Kind.ETCD, (own_etcd.host,), "flexo", "run")

    def active(access: EtcdAccess) -> EtcdLeaseStore:
        return EtcdLeaseStore(place, f"{place.prefix}/{KEY}", access, 5.0, OF_FLEXODS)

    def of_a_job(access: EtcdAccess) -> EtcdLeaseStore:
        return EtcdLeaseStore(place, f"{place.prefix}/{os.getuid()}/7.0.run", access, 5.0, OF_JOBS)

    store, hers = active(flexod), active(ada)
    assert store.swap(0, A).lease == A
    found = store.read()
    assert found.lease == A
    with pytest.raises(StoreUnavailable, match="permission denied"):
        hers.read()
    for version in (0, found.version):
        with pytest.raises(StoreUnavailable, match="permission denied"):
            hers.swap(version, replace(A, address="ada:1"))
    with pytest.raises(StoreUnavailable, match="user name is empty"):
        active(EtcdAccess()).swap(found.version, replace(A, address="nobody:1"))
    assert store.read() == found
    leads = LeaderLease("a", "a:1", 1, expires_in_s=60.0)
    assert of_a_job(ada).swap(0, leads).lease == leads
    with pytest.raises(StoreUnavailable, match="permission denied"):
        of_a_job(flexod).read()


def test_all_flexods_find_one_key_of_grants_and_nobody_else_reads_it(own_etcd: Etcd, tmp_path: Path) -> None:
    own_etcd.let_in("flexo", "of flexod", "flexo/active-flexod", "flexo/active-flexod.grant-key")
    own_etcd.let_in("old", "of old", "flexo/active-flexod")
    own_etcd.let_in("ada", "of ada", f"flexo/{os.getuid()}/")
    own_etcd.require_passwords()

    def signer(user: str):
        (tmp_path / user).write_text(f"of {user}d" if user == "flexo" else f"of {user}")
        text = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://{own_etcd.host}"\n'
        text += f'[lease]\netcd_user = "{user}"\netcd_password_file = "{tmp_path / user}"\n'
        return grant_signer(parse(text, "t"))

    granted = IssuedGrant(JobKey(7), "g1", Principal("1000"), "t2", 3, "flex", Resources(3, 3), 5.0)
    told = SatelliteReport(0, "g1", "t2", 3, SatelliteState.PENDING, signer("flexo").sign(granted, 300.0))
    other = signer("flexo")
    assert not other.trouble
    assert other.verify(JobKey(7), told, 10.0, 300) == granted
    for user in ("old", "ada"):  # the first one's role is of before there was this key
        without = signer(user)
        assert "flexo/active-flexod.grant-key" in without.trouble
        assert "permission denied" in without.trouble
        assert without.verify(JobKey(7), told, 10.0, 300) is None
