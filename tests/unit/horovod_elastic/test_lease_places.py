"""Where a job's lease is kept: what is configured, what answers, and the small server of `flexo run`."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from flexo_protos.connections import ConnectionGuard
from flexo_protos.credentials import Caller, NotAuthentic
from flexo_protos.leader_leases.lease import StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace, parse
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election import lease_places
from horovod_elastic.election.lease_client import JobRun
from horovod_elastic.election.lease_grpc import GrpcLease, LeaseServer
from horovod_elastic.election.lease_places import configured, open_lease, settled
from horovod_elastic.network import NoAddress

JOB = JobRun("7", 0)


class Stamps:
    """MUNGE's place: a credential says who and for what, and is believed once."""

    def __init__(self, uid: int | None = None) -> None:
        self._uid = os.getuid() if uid is None else uid
        self._made = str(uuid.uuid4())
        self._count = itertools.count()
        self._seen: set[str] = set()

    def credential(self, method: str) -> str:
        return f"{self._uid} {next(self._count)}-{self._made} {method}"

    def verify(self, credential: str, method: str) -> Caller:
        uid, _, named = credential.split(" ", 2) if credential.count(" ") >= 2 else ("", "", "")
        if named != method or credential in self._seen:
            raise NotAuthentic(f"not made for {method}, or not new")
        self._seen.add(credential)
        return Caller(int(uid), int(uid))


@pytest.fixture
def place() -> Iterator[LeasePlace]:
    with LeaseServer("127.0.0.1", Stamps()) as server:
        yield LeasePlace(Kind.RUN, (server.endpoint,), run="r")


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(tmp_path: Path, text: str = "", **more: str) -> dict[str, str]:
    file = tmp_path / "flexo.toml"
    file.write_text(text)
    return {"FLEXO_CONFIG": str(file), **more}


def test_unless_told_otherwise_flexod_keeps_the_lease(tmp_path: Path) -> None:
    assert configured(environment(tmp_path)) == LeasePlace(Kind.FLEXOD)
    assert configured({"FLEXO_CONFIG": str(tmp_path / "none")}) == LeasePlace(Kind.FLEXOD)
    assert configured(environment(tmp_path, "not TOML")) == LeasePlace(Kind.FLEXOD)


def test_the_configuration_says_where_and_the_environment_comes_first(tmp_path: Path) -> None:
    text = '[lease]\nstore = "etcd://e1:2379/gpu"\n'
    assert configured(environment(tmp_path, text)) == LeasePlace(Kind.ETCD, ("e1:2379",), "gpu")
    assert configured(environment(tmp_path, text, FLEXO_LEASE="run")) == LeasePlace(Kind.RUN)


def test_a_place_that_is_none_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zookeeper://z:1"):
        configured(environment(tmp_path, FLEXO_LEASE="zookeeper://z:1"))


def test_what_etcd_wants_to_see_is_read_from_the_configuration(tmp_path: Path) -> None:
    text = '[lease]\netcd_ca = "/etc/ca.pem"\netcd_user = "flexo"\netcd_password_file = "~/.flexo/etcd"\n'
    access = lease_places._etcd_access(environment(tmp_path, text))
    assert access == EtcdAccess(ca="/etc/ca.pem", user="flexo", password_file="~/.flexo/etcd")


def test_the_small_server_keeps_one_lease_for_each_run(place: LeasePlace) -> None:
    a, b = GrpcLease(place, JOB, Stamps()), GrpcLease(place, JOB, Stamps())
    other = GrpcLease(LeasePlace(Kind.RUN, place.hosts, run="s"), JOB, Stamps())
    taken = a.acquire("a", "a:1", 5.0)
    assert (taken.holder, taken.term, taken.previous) == ("a", 1, 0)
    assert b.acquire("b", "b:1", 5.0).holder == "a"
    assert b.look().address == "a:1"
    assert other.look().vacant
    assert a.release("a", "b").holder == "b"
    assert b.acquire("b", "b:1", 5.0).term == 2
    for store in (a, b, other):
        store.close()


def test_another_user_is_not_served_by_the_small_server(place: LeasePlace) -> None:
    stranger = GrpcLease(place, JOB, Stamps(uid=os.getuid() + 1))
    with pytest.raises(StoreUnavailable, match="another user"):
        stranger.look()
    stranger.close()


def test_a_refusal_is_told_in_the_servers_words(place: LeasePlace) -> None:
    store = GrpcLease(place, JOB, Stamps())
    with pytest.raises(StoreUnavailable, match=r"flexo run\b.*\bttl_s\b.*\b3600\b"):
        store.acquire("a", "a:1", 3600.0)
    store.close()


def test_without_munge_the_store_is_away_and_says_why(place: LeasePlace) -> None:
    class Silent(Stamps):
        def credential(self, method: str) -> str:
            raise NotAuthentic("MUNGE gave no credential")

    store = GrpcLease(place, JOB, Silent())
    with pytest.raises(StoreUnavailable, match="MUNGE gave no credential"):
        store.look()
    store.close()


def test_a_server_that_is_not_there_is_away_at_once() -> None:
    store = GrpcLease(LeasePlace(Kind.FLEXOD, (f"127.0.0.1:{unused_port()}",)), JOB, Stamps())
    with pytest.raises(StoreUnavailable, match=r"flexod at 127.*[Rr]efused"):
        store.look()
    store.close()


def test_a_server_that_never_answers_is_away_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod_elastic.election.lease_grpc.ANSWER_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        store = GrpcLease(LeasePlace(Kind.FLEXOD, (f"127.0.0.1:{mute.getsockname()[1]}",)), JOB, Stamps())
        with pytest.raises(StoreUnavailable, match="Deadline Exceeded"):
            store.look()
        store.close()


def test_a_flexod_without_leases_is_called_an_older_one() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    store = GrpcLease(LeasePlace(Kind.FLEXOD, (f"127.0.0.1:{port}",)), JOB, Stamps())
    with pytest.raises(StoreUnavailable, match="older"):
        store.look()
    store.close()
    server.stop(None)


def test_a_server_that_is_back_is_found_again_before_a_lease_runs_out() -> None:
    port = unused_port()
    store = GrpcLease(LeasePlace(Kind.RUN, (f"127.0.0.1:{port}",)), JOB, Stamps())
    with pytest.raises(StoreUnavailable):
        store.look()
    from horovod_elastic.election.lease_grpc import _Service
    from horovod_elastic.proofs import Doorkeeper

    server = grpc.server(
        ThreadPoolExecutor(1), handlers=[_Service(Doorkeeper(Stamps(), ConnectionGuard(64)))]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    deadline = time.monotonic() + 20.0  # gRPC's own pauses grow to two minutes
    while True:
        try:
            assert store.look().vacant
            break
        except StoreUnavailable:
            assert time.monotonic() < deadline, "it dials too seldom"
            time.sleep(0.1)
    store.close()
    server.stop(None)


def test_of_several_flexods_whoever_answers_is_asked(place: LeasePlace) -> None:
    hosts = (f"127.0.0.1:{unused_port()}", *place.hosts)
    store = GrpcLease(LeasePlace(Kind.FLEXOD, hosts, run="r"), JOB, Stamps())
    assert store.acquire("a", "a:1", 5.0).holder == "a"
    assert store.look().holder == "a"
    store.close()


def test_a_closed_store_is_away(place: LeasePlace) -> None:
    store = GrpcLease(place, JOB, Stamps())
    store.look()
    store.close()
    with pytest.raises(StoreUnavailable):
        store.look()


def test_an_address_of_another_host_cannot_be_served() -> None:
    with pytest.raises(NoAddress, match=r"192\.0\.2\.1"):
        LeaseServer("192.0.2.1", Stamps())


def test_without_any_server_the_run_keeps_the_lease_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_places, "daemon_address", lambda: None)
    said: list[str] = []
    with settled(JOB, "127.0.0.1", Stamps(), said.append, environment(tmp_path)) as place:
        assert place.kind is Kind.RUN
        assert place.run
        store = open_lease(parse(str(place)), JOB, Stamps())
        assert store.acquire("a", "a:1", 5.0, pb.CLAIM_FOUNDER).holder == "a"
        store.close()
    assert said == []


def test_where_the_daemon_does_not_answer_the_run_keeps_the_lease_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_places, "daemon_address", lambda: f"127.0.0.1:{unused_port()}")
    said: list[str] = []
    with settled(JOB, "127.0.0.1", Stamps(), said.append, environment(tmp_path)) as place:
        assert place.kind is Kind.RUN
    assert len(said) == 1
    assert "keeps its leader's lease itself" in said[0]


def test_a_daemon_that_answers_keeps_the_lease_of_each_run_apart(
    place: LeasePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_places, "daemon_address", lambda: place.hosts[0])
    runs = set()
    for _ in range(2):
        with settled(JOB, "127.0.0.1", Stamps(), print, environment(tmp_path)) as chosen:
            assert (chosen.kind, chosen.hosts) == (Kind.FLEXOD, place.hosts)
            runs.add(chosen.run)
    assert len(runs) == 2


def test_many_agents_at_once_are_served_by_the_small_server(place: LeasePlace) -> None:
    stores = [GrpcLease(place, JOB, Stamps()) for _ in range(32)]
    barrier = threading.Barrier(len(stores))

    def ask(number: int) -> str:
        barrier.wait()
        return stores[number].acquire(f"n{number}", f"n{number}:1", 5.0).holder

    with ThreadPoolExecutor(len(stores)) as pool:
        assert len(set(pool.map(ask, range(len(stores))))) == 1
    for store in stores:
        store.close()
