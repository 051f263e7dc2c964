"""A job's leader lease in a real etcd: time to live, hand-over, passwords, and when etcd goes away."""

from __future__ import annotations

import base64
import os
import queue
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from flexo_bench.etcd_process import Etcd, running
from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
from flexo_protos.leader_leases.lease import OF_JOBS, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election.election import Election, Following, Leading, Role
from horovod_elastic.election.lease_client import ANSWER_WITHIN_S, JobRun, LeaseClient, StoredLease
from horovod_elastic.election.lease_places import open_lease, settled

JOB = JobRun("7", 0)
TTL_S = 2.0
"""Of a lease that is to run out. etcd knows whole seconds, and none below two."""
LONG_TTL_S = 6.0
"""Of one that is to be refreshed in time, by a machine that may be busy."""
LASTING_S = 60.0
"""Of one that is not to run out at all."""
RUNS_OUT_WITHIN_S = 60.0


def a_run(etcd: Etcd, **more: object) -> LeasePlace:
    """Where a new run of the job keeps its lease."""
    return LeasePlace(Kind.ETCD, (etcd.host,), "flexo-test", uuid.uuid4().hex, **more)  # type: ignore[arg-type]


def key_of(place: LeasePlace) -> str:
    return f"{place.prefix}/{os.getuid()}/7.0.{place.run}"


def store_at(place: LeasePlace, access: EtcdAccess | None = None) -> StoredLease:
    store = EtcdLeaseStore(place, key_of(place), access or EtcdAccess(), ANSWER_WITHIN_S, OF_JOBS)
    return StoredLease(store)


def until_vacant(store: LeaseClient, bound_s: float) -> float:
    """Seconds until nobody holds the lease."""
    began = time.monotonic()
    while not store.look().vacant:
        assert time.monotonic() - began < bound_s, "the lease does not run out"
        time.sleep(0.05)
    return time.monotonic() - began


def test_a_lease_that_is_refreshed_stays_and_one_that_is_not_runs_out(etcd: Etcd) -> None:
    place = a_run(etcd)
    a, b = store_at(place), store_at(place)
    term = a.acquire("a", "a:1", LONG_TTL_S).term
    for _ in range(4):
        time.sleep(LONG_TTL_S / 3)
        assert a.acquire("a", "a:1", LONG_TTL_S, pb.CLAIM_HOLDER, term).term == term
        assert b.acquire("b", "b:1", LONG_TTL_S).holder == "a"
    assert until_vacant(b, RUNS_OUT_WITHIN_S) > 0.5
    assert b.acquire("b", "b:1", LONG_TTL_S, seen=term).term > term


def test_a_holder_whose_lease_ran_out_is_not_given_it_back(etcd: Etcd) -> None:
    store = store_at(a_run(etcd))
    term = store.acquire("a", "a:1", TTL_S).term
    until_vacant(store, RUNS_OUT_WITHIN_S)
    assert store.acquire("a", "a:1", TTL_S, pb.CLAIM_HOLDER, term).vacant
    assert store.acquire("a", "a:1", TTL_S, seen=term).term > term


def test_a_named_successor_has_the_lease_before_it_comes(etcd: Etcd) -> None:
    place = a_run(etcd)
    a, b, c = store_at(place), store_at(place), store_at(place)
    term = a.acquire("a", "a:1", LONG_TTL_S).term
    left = a.release("a", "b")
    assert (left.holder, left.address, left.previous) == ("b", "", term)
    assert left.term > term
    assert c.acquire("c", "c:1", LONG_TTL_S) == left
    assert b.acquire("b", "b:1", LONG_TTL_S).address == "b:1"
    until_vacant(a, RUNS_OUT_WITHIN_S)
    assert b.acquire("b", "b:1", LONG_TTL_S, pb.CLAIM_HOLDER).vacant


def test_a_successor_that_refreshes_outlives_the_lease_of_who_left(etcd: Etcd) -> None:
    place = a_run(etcd)
    a, b = store_at(place), store_at(place)
    a.acquire("a", "a:1", LONG_TTL_S)
    a.release("a", "b")
    term = b.acquire("b", "b:1", LONG_TTL_S).term
    for _ in range(4):
        time.sleep(LONG_TTL_S / 3)
        assert b.acquire("b", "b:1", LONG_TTL_S, pb.CLAIM_HOLDER, term).holder == "b"
    assert a.look().holder == "b"


def test_a_successor_that_never_comes_holds_nobody_up_for_long(etcd: Etcd) -> None:
    store = store_at(a_run(etcd))
    store.acquire("a", "a:1", TTL_S)
    store.release("a", "b")
    until_vacant(store, RUNS_OUT_WITHIN_S)


def test_users_and_runs_have_keys_of_their_own(etcd: Etcd) -> None:
    place = a_run(etcd)
    store_at(place).acquire("a", "a:1", LASTING_S)
    key = f"flexo-test/{os.getuid()}/7.0.{place.run}"
    found = etcd.post("kv/range", {"key": base64.b64encode(key.encode()).decode(), "count_only": True})
    assert found["count"] == "1"


def test_another_member_is_asked_where_one_is_gone(etcd: Etcd) -> None:
    place = a_run(etcd)
    with_a_dead_one = LeasePlace(Kind.ETCD, ("127.0.0.1:1", etcd.host), place.prefix, place.run)
    assert store_at(with_a_dead_one).acquire("a", "a:1", LASTING_S).holder == "a"


def test_what_another_program_left_under_the_key_is_reported(etcd: Etcd) -> None:
    place = a_run(etcd)
    key = f"flexo-test/{os.getuid()}/7.0.{place.run}"
    body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(b"hello").decode()}
    etcd.post("kv/put", dict(body))
    with pytest.raises(StoreUnavailable, match=key):
        store_at(place).look()


def test_an_etcd_that_is_gone_is_away_within_the_bound_and_its_leases_outlive_it(own_etcd: Etcd) -> None:
    place = a_run(own_etcd)
    store = store_at(place)
    term = store.acquire("a", "a:1", 5.0).term
    own_etcd.stop()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=f"etcd at {own_etcd.host}"):
        store.acquire("a", "a:1", 5.0, pb.CLAIM_HOLDER, term)
    assert time.monotonic() - began < 10
    time.sleep(3)
    own_etcd.start()
    # etcd gives leases their whole length again when it comes up: the leader does not notice.
    assert store.acquire("a", "a:1", 5.0, pb.CLAIM_HOLDER, term).term == term


def test_agents_elect_hand_over_and_replace_a_leader_through_etcd(etcd: Etcd) -> None:
    place = a_run(etcd)

    def agent(name: str) -> Election:
        return Election(store_at(place), name, lambda: f"{name}:1", Role.FOUNDER, ttl_s=LONG_TTL_S)

    a, b, c = agent("a"), agent("b"), agent("c")
    first = a.follow()
    assert isinstance(first, Leading)
    assert not first.heir
    a.keep(lambda holder: None)
    following = b.follow()
    assert following == Following("a:1", "a", first.term)
    assert a.resign("b")
    second = b.follow(lost=following)
    assert isinstance(second, Leading)
    assert second.heir
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    behind = c.follow()
    assert behind == Following("b:1", "b", second.term)
    assert isinstance(behind, Following)
    third = c.follow(lost=behind)  # b does not refresh: it is stopped
    assert isinstance(third, Leading)
    assert third.term > second.term
    assert not b.certain()
    b.keep(lost.put)  # b goes on
    assert lost.get(timeout=60) == "c"


def test_passwords_are_shown_again_whenever_etcd_forgets_who_asks(own_etcd: Etcd, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    own_etcd.let_in("flexo", "correct horse", "flexo-test/")
    own_etcd.require_passwords()
    place = a_run(own_etcd)
    with pytest.raises(StoreUnavailable, match="user name is empty"):
        store_at(place).look()
    store = store_at(place, EtcdAccess(user="flexo", password_file=str(password)))
    assert store.acquire("a", "a:1", LASTING_S).holder == "a"
    own_etcd.stop()
    own_etcd.start()  # tokens are in memory
    assert store.look().holder in ("a", "")
    elsewhere = LeasePlace(Kind.ETCD, place.hosts, "other", place.run)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        store_at(elsewhere, EtcdAccess(user="flexo", password_file=str(password))).look()
    password.write_text("wrong")
    with pytest.raises(StoreUnavailable, match="authentication failed"):
        store_at(place, EtcdAccess(user="flexo", password_file=str(password))).look()
    with pytest.raises(StoreUnavailable, match="nowhere"):
        store_at(place, EtcdAccess(user="flexo", password_file=str(tmp_path / "nowhere"))).look()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_over_tls_the_sites_own_authority_is_believed_and_no_other(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-nodes", "-subj", "/CN=etcd"]
    extension = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", *made, *extension], check=True, capture_output=True
    )
    with running(tmp_path, tls=(certificate, key)) as etcd:
        place = LeasePlace(Kind.ETCD_OVER_TLS, (etcd.host,), run="r")
        assert store_at(place, EtcdAccess(ca=str(certificate))).acquire("a", "a:1", LASTING_S).holder == "a"
        with pytest.raises(StoreUnavailable, match="certificate"):
            store_at(place).look()


def test_a_run_uses_the_etcd_that_is_configured_and_itself_where_that_is_away(
    own_etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoMunge:
        def credential(self, method: str) -> str:
            raise AssertionError("etcd is not asked with MUNGE")

        def verify(self, credential: str, method: str) -> object:
            raise AssertionError

    config = tmp_path / "flexo.toml"
    config.write_text(f'[lease]\nstore = "etcd://{own_etcd.host}/site"\n')
    environment = {"FLEXO_CONFIG": str(config)}
    said: list[str] = []
    with settled(JOB, "127.0.0.1", NoMunge(), said.append, environment) as place:  # type: ignore[arg-type]
        assert (place.kind, place.prefix) == (Kind.ETCD, "site")
        store = open_lease(place, JOB, NoMunge(), environment)  # type: ignore[arg-type]
        assert store.acquire("a", "a:1", LASTING_S).holder == "a"
    own_etcd.stop()
    with settled(JOB, "127.0.0.1", NoMunge(), said.append, environment) as place:  # type: ignore[arg-type]
        assert place.kind is Kind.RUN
    assert len(said) == 1
    assert own_etcd.host in said[0]
