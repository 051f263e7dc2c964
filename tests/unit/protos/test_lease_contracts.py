"""The stores of leader leases that need no server, and the ways to a job's lease, by the contracts of all.

etcd is tried by the same contracts in tests/etcd.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lease_contracts import Asks, FlexodsContract, JobsContract, Opens, StoreContract

from flexo_protos.credentials import Caller
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import (
    OF_FLEXODS,
    OF_JOBS,
    Found,
    LeaderLease,
    LeaseFormat,
    LeaseStore,
    StoreUnavailable,
)
from flexo_protos.leader_leases.table import LeaseKey, LeaseTable
from flexo_protos.lease_place import Kind, LeasePlace
from horovod_elastic.election.lease_client import JobRun, StoredLease
from horovod_elastic.election.lease_grpc import GrpcLease, LeaseServer

KEY = LeaseKey(1000, 7, 0, "r")


class InTurn:
    """A store over a table, whose callers take turns."""

    def __init__(self, table: LeaseTable, lock: threading.Lock) -> None:
        self._store: LeaseStore = table.store(KEY, 0.0)
        self._lock = lock
        self.name = self._store.name

    def read(self) -> Found:
        with self._lock:
            return self._store.read()

    def swap(self, version: int, lease: LeaderLease) -> Found:
        with self._lock:
            return self._store.swap(version, lease)

    def close(self) -> None:
        self._store.close()


class Trusting:
    """MUNGE's place: everybody is this user."""

    def credential(self, method: str) -> str:
        return method

    def verify(self, credential: str, method: str) -> Caller:
        return Caller(os.getuid(), os.getgid())


class TestInAFolder(StoreContract, FlexodsContract):
    @pytest.fixture
    def opens(self, tmp_path: Path) -> Opens:
        return lambda: FileLeaseStore(tmp_path, OF_FLEXODS)

    def test_a_lease_that_is_to_end_by_itself_is_refused_because_a_folder_has_no_clock(
        self, opens: Opens
    ) -> None:
        with pytest.raises(ValueError, match="clock"):
            opens().swap(0, LeaderLease("a", "a:1", 1, expires_in_s=5.0))


class TestInATable(StoreContract, FlexodsContract):
    @pytest.fixture
    def opens(self) -> Opens:
        table, lock = LeaseTable(0.0), threading.Lock()
        return lambda: InTurn(table, lock)


class TestAJobsLeaseInATable(JobsContract):
    @pytest.fixture
    def asks(self) -> Asks:
        table, lock = LeaseTable(0.0), threading.Lock()
        return lambda: StoredLease(InTurn(table, lock))


class TestAJobsLeaseOverTheNetwork(JobsContract):
    @pytest.fixture
    def asks(self) -> Iterator[Asks]:
        opened: list[GrpcLease] = []
        with LeaseServer("127.0.0.1", Trusting()) as server:
            place = LeasePlace(Kind.RUN, (server.endpoint,), run="r")

            def ask() -> GrpcLease:
                opened.append(GrpcLease(place, JobRun("7", 0), Trusting()))
                return opened[-1]

            yield ask
            for each in opened:
                each.close()


WRITTEN_BEFORE = [
    (
        OF_FLEXODS,
        '{"holder": "ctl1:6836", "token": "3f9c", "epoch": 1795343061, "beat": 7, "since_at": 1795343061.5,'
        ' "released": false}',
        LeaderLease("3f9c", "ctl1:6836", 1795343061, beat=7, since_at=1795343061.5),
    ),
    (
        OF_FLEXODS,
        '{"holder": "[::1]:6836", "token": "t", "epoch": 2, "beat": 0, "since_at": 5.0, "released": true}',
        LeaderLease("t", "[::1]:6836", 2, since_at=5.0, released=True),
    ),
    (
        OF_JOBS,
        '{"holder": "n1.17-ab", "address": "10.0.0.1:41", "term": 12, "previous": 3, "ttl_s": 5.0}',
        LeaderLease("n1.17-ab", "10.0.0.1:41", 12, 3, 5.0),
    ),
    (
        OF_JOBS,
        '{"holder": "n2.17-cd", "address": "", "term": 13, "previous": 12, "ttl_s": 5.0}',
        LeaderLease("n2.17-cd", "", 13, 12, 5.0),
    ),
]


@pytest.mark.parametrize(("kept_as", "text", "lease"), WRITTEN_BEFORE)
def test_what_a_release_before_wrote_is_read_and_what_is_written_it_reads(
    kept_as: LeaseFormat, text: str, lease: LeaderLease
) -> None:
    assert kept_as.from_text(text.ljust(512), "here") == lease
    assert json.loads(kept_as.as_text(lease)) == json.loads(text)


@pytest.mark.parametrize("kept_as", [OF_FLEXODS, OF_JOBS])
def test_a_key_of_a_later_release_is_skipped(kept_as: LeaseFormat) -> None:
    lease = LeaderLease("t", "a:1", 3)
    said = {**json.loads(kept_as.as_text(lease)), "new": [1]}
    assert kept_as.from_text(json.dumps(said), "here") == lease


@pytest.mark.parametrize("kept_as", [OF_FLEXODS, OF_JOBS])
@pytest.mark.parametrize("text", ["", "{}", "[]", "hello", '{"holder": "a"}'])
def test_what_is_no_lease_is_reported_with_its_place(kept_as: LeaseFormat, text: str) -> None:
    with pytest.raises(StoreUnavailable, match="the place"):
        kept_as.from_text(text, "the place")
