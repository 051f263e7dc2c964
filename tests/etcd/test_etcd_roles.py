"""Who may write which of flexo's keys in a real etcd, with the roles that the administrator guide gives."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from etcd_process import Etcd

from flexo.availability.claim import Record
from flexo.availability.etcd_register import EtcdRegister
from flexo.availability.register import RegisterAway
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from horovod_elastic.election.lease_etcd import EtcdLeases
from horovod_elastic.election.leases import JobRun, StoreAway

A = Record("a:1", "ta", 1, 0, 5.0)


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
    register, hers = EtcdRegister(place, flexod, 5.0), EtcdRegister(place, ada, 5.0)
    assert register.swap(0, A)
    found = register.look()
    assert found.record == A
    with pytest.raises(RegisterAway, match="permission denied"):
        hers.look()
    for version in (0, found.version):
        with pytest.raises(RegisterAway, match="permission denied"):
            hers.swap(version, replace(A, holder="ada:1"))
    with pytest.raises(RegisterAway, match="user name is empty"):
        EtcdRegister(place, EtcdAccess(), 5.0).swap(found.version, replace(A, holder="nobody:1"))
    assert register.look() == found
    assert EtcdLeases(place, JobRun(7, 0), ada).acquire("a", "a:1", 60.0).holder == "a"
    with pytest.raises(StoreAway, match="permission denied"):
        EtcdLeases(place, JobRun(7, 0), flexod).look()
