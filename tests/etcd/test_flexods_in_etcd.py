"""Which flexod is active, kept in a real etcd: one writer wins, one acts, and none while etcd is away."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from flexo.availability.leader_elector import LeaderElector
from flexo.availability.places import KEY, open_store
from flexo.config import parse
from flexo.doctor.etcd import check_etcd
from flexo.doctor.finding import Level
from flexo_bench.etcd_process import Etcd
from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, LeaderLease, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace

A = LeaderLease("ta", "a:1", 1, since_at=5.0)
LEASE_S = 2.0
BOUND_S = 60.0


@pytest.fixture
def place(etcd: Etcd) -> LeasePlace:
    """A key of its own."""
    return LeasePlace(Kind.ETCD, (etcd.host,), f"flexo-test/{uuid.uuid4().hex}")


def store_at(place: LeasePlace) -> EtcdLeaseStore:
    return EtcdLeaseStore(place, f"{place.prefix}/{KEY}", EtcdAccess(), 2.0, OF_FLEXODS)


@pytest.fixture
def elector() -> Iterator[Callable[[LeasePlace, str], LeaderElector]]:
    electors: list[LeaderElector] = []

    def take(place: LeasePlace, name: str) -> LeaderElector:
        electors.append(LeaderElector(store_at(place), name, LEASE_S))
        electors[-1].start()
        return electors[-1]

    yield take
    for each in electors:
        each.leave(BOUND_S)


def until(what: Callable[[], bool], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S:.0f} s"
        time.sleep(0.02)


def test_another_member_is_asked_where_one_is_gone_and_an_etcd_that_is_gone_is_named(
    place: LeasePlace,
) -> None:
    assert store_at(replace(place, hosts=("127.0.0.1:1", *place.hosts))).swap(0, A).lease == A
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        store_at(replace(place, hosts=("127.0.0.1:1",))).read()


def test_the_configuration_names_the_key_and_how_to_get_in(etcd: Etcd) -> None:
    prefix = f"flexo-test/{uuid.uuid4().hex}"
    text = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://{etcd.host}/{prefix}"\n'
    opened = open_store(parse(text, "t"))
    assert opened.name == f"etcd at {etcd.host}, key {prefix}/active-flexod"
    assert opened.swap(0, A).lease == A


def test_the_doctor_finds_an_etcd_that_answers(etcd: Etcd) -> None:
    text = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://{etcd.host}"\n'
    found = check_etcd(parse(f'{text}[lease]\nstore = "etcd://{etcd.host}"\n', "t"))
    assert [(each.check, each.level) for each in found] == [
        ("etcd.flexods", Level.OK),
        ("etcd.leaders", Level.OK),
    ]


def test_one_is_active_hands_over_and_stands_back_while_etcd_is_away(
    own_etcd: Etcd, elector: Callable[[LeasePlace, str], LeaderElector]
) -> None:
    place = LeasePlace(Kind.ETCD, (own_etcd.host,))
    a = elector(place, "a:1")
    until(a.holds, "it is active")
    b = elector(place, "b:1")
    until(lambda: b.active is not None and b.active.address == "a:1", "the other knows")
    assert not b.holds()
    a.leave(BOUND_S)
    until(b.holds, "the other follows")
    assert b.epoch > a.epoch
    own_etcd.stop()
    until(lambda: b.lost, "it stands back")
    c = elector(place, "c:1")
    own_etcd.start()
    until(c.holds, "another one takes over when etcd is back")
    assert c.epoch > b.epoch
