"""A real etcd as the store of leader leases, by the contracts of all stores."""

from __future__ import annotations

import uuid

import pytest
from lease_contracts import Asks, FlexodsContract, JobsContract, Opens, StoreContract

from flexo_bench.etcd_process import Etcd
from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, OF_JOBS, LeaderLease, LeaseFormat
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from horovod_elastic.election.lease_client import StoredLease


def store_at(etcd: Etcd, key: str, kept_as: LeaseFormat) -> EtcdLeaseStore:
    return EtcdLeaseStore(LeasePlace(Kind.ETCD, (etcd.host,)), key, EtcdAccess(), 10.0, kept_as)


def a_key() -> str:
    return f"flexo-test/{uuid.uuid4().hex}"


class TestInEtcd(StoreContract, FlexodsContract):
    @pytest.fixture
    def opens(self, etcd: Etcd) -> Opens:
        key = a_key()
        return lambda: store_at(etcd, key, OF_FLEXODS)


class TestAJobsLeaseInEtcd(JobsContract):
    @pytest.fixture
    def asks(self, etcd: Etcd) -> Asks:
        key = a_key()
        return lambda: StoredLease(store_at(etcd, key, OF_JOBS))


def test_a_lease_that_etcd_would_end_is_gone_when_it_is_released(etcd: Etcd) -> None:
    store = store_at(etcd, a_key(), OF_JOBS)
    lease = LeaderLease("a", "a:1", 5, expires_in_s=60.0)
    written = store.swap(0, lease)
    gone = store.swap(written.version, LeaderLease("", "", 5, expires_in_s=60.0, released=True))
    assert gone.lease is None
    assert gone.term_above(0) > written.version
    assert store.swap(0, lease).lease == lease
