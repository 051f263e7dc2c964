"""Which flexod is active, kept in a real etcd: one writer wins, one acts, and none while etcd is away."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from flexo.availability.claim import Record
from flexo.availability.etcd_register import EtcdRegister
from flexo.availability.places import open_register
from flexo.availability.register import Found, RegisterAway
from flexo.availability.seat import Seat
from flexo.config import parse
from flexo.doctor.etcd import check_etcd
from flexo.doctor.finding import Level
from flexo_bench.etcd_process import Etcd
from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace

A = Record("a:1", "ta", 1, 0, 5.0)
LEASE_S = 2.0
BOUND_S = 60.0


@pytest.fixture
def place(etcd: Etcd) -> LeasePlace:
    """A key of its own."""
    return LeasePlace(Kind.ETCD, (etcd.host,), f"flexo-test/{uuid.uuid4().hex}")


def register(place: LeasePlace) -> EtcdRegister:
    return EtcdRegister(place, EtcdAccess(), 2.0)


@pytest.fixture
def seat() -> Iterator[Callable[[LeasePlace, str], Seat]]:
    seats: list[Seat] = []

    def take(place: LeasePlace, name: str) -> Seat:
        seats.append(Seat(register(place), name, LEASE_S))
        seats[-1].start()
        return seats[-1]

    yield take
    for each in seats:
        each.leave(BOUND_S)


def until(what: Callable[[], bool], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S:.0f} s"
        time.sleep(0.02)


def test_what_is_written_is_found_and_only_whoever_knows_it_changes_it(place: LeasePlace) -> None:
    one, other = register(place), register(place)
    assert one.look() == Found(None, 0)
    assert one.swap(0, A)
    found = other.look()
    assert found.record == A
    assert not other.swap(0, replace(A, holder="b:1"))
    assert other.swap(found.version, replace(A, beat=1))
    assert not one.swap(found.version, replace(A, beat=2))
    assert one.look().record == replace(A, beat=1)


def test_of_many_who_swap_the_same_one_wins(place: LeasePlace) -> None:
    def swap(number: int) -> bool:
        return register(place).swap(0, replace(A, token=str(number)))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(swap, range(16))) == 1


def test_another_member_is_asked_where_one_is_gone_and_an_etcd_that_is_gone_is_named(
    place: LeasePlace,
) -> None:
    assert register(replace(place, hosts=("127.0.0.1:1", *place.hosts))).swap(0, A)
    with pytest.raises(RegisterAway, match=r"127\.0\.0\.1:1"):
        register(replace(place, hosts=("127.0.0.1:1",))).look()


def test_the_configuration_names_the_key_and_how_to_get_in(etcd: Etcd) -> None:
    prefix = f"flexo-test/{uuid.uuid4().hex}"
    text = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://{etcd.host}/{prefix}"\n'
    opened = open_register(parse(text, "t"))
    assert opened.name == f"etcd at {etcd.host}, key {prefix}/active-flexod"
    assert opened.swap(0, A)


def test_the_doctor_finds_an_etcd_that_answers(etcd: Etcd) -> None:
    text = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://{etcd.host}"\n'
    found = check_etcd(parse(f'{text}[lease]\nstore = "etcd://{etcd.host}"\n', "t"))
    assert [(each.check, each.level) for each in found] == [
        ("etcd.flexods", Level.OK),
        ("etcd.leaders", Level.OK),
    ]


def test_one_is_active_hands_over_and_stands_back_while_etcd_is_away(
    own_etcd: Etcd, seat: Callable[[LeasePlace, str], Seat]
) -> None:
    place = LeasePlace(Kind.ETCD, (own_etcd.host,))
    a = seat(place, "a:1")
    until(a.holds, "it is active")
    b = seat(place, "b:1")
    until(lambda: b.active is not None and b.active.holder == "a:1", "the other knows")
    assert not b.holds()
    a.leave(BOUND_S)
    until(b.holds, "the other follows")
    assert b.epoch > a.epoch
    own_etcd.stop()
    until(lambda: b.lost, "it stands back")
    c = seat(place, "c:1")
    own_etcd.start()
    until(c.holds, "another one takes over when etcd is back")
    assert c.epoch > b.epoch
