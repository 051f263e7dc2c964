"""Grants that an earlier flexod issued: by the event store, its signature, or an older release's events."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from controller_world import ADA, BOB, KEY, SIGNER, TIME_LIMIT_S, FakeLeader, World
from flat_records import change_job
from hypothesis import given
from hypothesis import strategies as st

from flexo.event_store import stored_grants
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.grant_signatures import LONGEST, GrantSigner
from flexo.issued_grants import IssuedGrant, is_satellite, shape_within
from flexo.model.elastic import SatelliteReport, SatelliteState
from flexo.model.queue import JobKey, Principal
from flexo.service.grant_key import KeyUnusable, key_in_file
from flexo_protos.resources import Devices, Resources

NOW = 1_000_000.0
SHARED = Resources(Fraction(3, 2), 12, 3000, devices=(Devices("nic"), Devices("spare", "s1", Fraction(1, 2))))
GRANT = IssuedGrant(JobKey(7, 1), "g1", ADA, "t2", 3, "flex", Resources(6, 12, 3000), NOW)


def shown(signature: bytes, **changes: object) -> SatelliteReport:
    told = SatelliteReport(0, "g1", "t2", 3, SatelliteState.PENDING, signature)
    return replace(told, **changes)


# Signatures.


@pytest.mark.parametrize("owner", [ADA, Principal("ada@SITE")])
@pytest.mark.parametrize("resources", [GRANT.resources, SHARED])
def test_a_signature_brings_back_the_whole_grant(owner: Principal, resources: Resources) -> None:
    grant = replace(GRANT, owner=owner, resources=resources)
    signature = SIGNER.sign(grant, NOW + 300)
    assert len(signature) <= LONGEST
    assert SIGNER.verify(grant.job, shown(signature), NOW + 299, 300) == grant


@pytest.mark.parametrize("resources", [GRANT.resources, SHARED, None])
def test_a_event_store_brings_back_the_whole_grant(tmp_path: Path, resources: Resources | None) -> None:
    grant = replace(GRANT, resources=resources)
    with closing(sqlite3.connect(tmp_path / "journal")) as file:
        file.execute(*stored_grants.SCHEMA)
        stored_grants.write(file, [grant], [])
        assert stored_grants.read(file) == (grant,)


def test_a_satellite_that_holds_devices_beyond_its_grant_and_its_base_is_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    owner = world.cluster.base(1, "2-8", devices=(Devices("nic", amount=2),))
    job_id = world.cluster.submit(KEY, ADA, "g1", "t2", 3, TIME_LIMIT_S)
    granted = IssuedGrant(KEY, "g1", ADA, "t2", 3, "flex", Resources(3, 3), NOW)

    def counts(grant: IssuedGrant, *devices: Devices) -> bool:
        job = change_job(world.cluster.queue[job_id], devices=devices)
        return is_satellite(job, grant, owner, 1, TIME_LIMIT_S, world.cluster.now)

    spare = Devices("spare", "s1")
    assert counts(granted, Devices("nic", amount=3))
    assert not counts(granted, Devices("nic", amount=4))
    assert not counts(granted, spare)
    shares = replace(granted, resources=Resources(3, 3, devices=(spare,)))
    assert counts(shares, spare)
    assert not counts(shares, spare, Devices("spare"))
    assert not counts(shares, replace(spare, amount=2))


@pytest.mark.parametrize(
    "changes",
    [{"grant_id": "g2"}, {"node": "t3"}, {"workers": 4}, {"signature": b""}, {"signature": b"\x01"}],
)
def test_a_signature_is_good_for_its_own_grant_only(changes: dict[str, object]) -> None:
    signature = SIGNER.sign(GRANT, NOW + 300)
    assert SIGNER.verify(GRANT.job, replace(shown(signature), **changes), NOW, 300) is None
    for job in (JobKey(7), JobKey(7, 2), JobKey(8, 1)):
        assert SIGNER.verify(job, shown(signature), NOW, 300) is None
    assert GrantSigner(b"x" * 32).verify(GRANT.job, shown(signature), NOW, 300) is None


def test_a_signature_is_good_for_a_while_only() -> None:
    assert SIGNER.verify(GRANT.job, shown(SIGNER.sign(GRANT, NOW - 1)), NOW, 300) is None
    assert SIGNER.verify(GRANT.job, shown(SIGNER.sign(GRANT, NOW + 9999)), NOW, 300) is None


@given(place=st.integers(0, 200), bit=st.integers(0, 7))
def test_no_bit_of_a_signature_can_be_changed(place: int, bit: int) -> None:
    signature = bytearray(SIGNER.sign(GRANT, NOW + 300))
    signature[place % len(signature)] ^= 1 << bit
    assert SIGNER.verify(GRANT.job, shown(bytes(signature)), NOW, 300) is None


@given(st.binary(max_size=LONGEST))
def test_what_is_no_signature_is_refused_and_breaks_nothing(signature: bytes) -> None:
    assert SIGNER.verify(GRANT.job, shown(signature), NOW, 300) is None


# The key.


def test_the_key_is_made_once_for_flexods_eyes_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "grant.key"
    key = key_in_file(path)
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_in_file(path) == key
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_may_read_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "grant.key"
    key_in_file(path)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match=f"{mode:o}.*600"):
        key_in_file(path)


@pytest.mark.parametrize("text", [b"", b"00", b"zz" * 32, b"\xff" * 64, b"00" * 33])
def test_a_key_that_is_damaged_is_not_used(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "grant.key"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(KeyUnusable, match="remove"):
        key_in_file(path)


def test_a_key_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    key_in_file(tmp_path / "elsewhere")
    (tmp_path / "grant.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyUnusable):
        key_in_file(tmp_path / "grant.key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_not_used(tmp_path: Path) -> None:
    key_in_file(tmp_path / "grant.key")
    os.chown(tmp_path / "grant.key", 12345, -1)
    with pytest.raises(KeyUnusable, match="account"):
        key_in_file(tmp_path / "grant.key")


# After a restart.


def grown(directory: Path) -> tuple[World, FakeLeader]:
    world = World(directory)
    leader = world.job(1, "1-8")
    world.go(60)
    assert leader.report().training_workers == 8
    return world, leader


def test_without_a_event_store_the_leader_shows_what_flexod_signed(tmp_path: Path) -> None:
    world, leader = grown(tmp_path)
    before = dict(leader.own)
    world.event_store.close()
    (tmp_path / "journal.sqlite").unlink()
    world.restart()
    world.go(2 * TIME_LIMIT_S)
    assert leader.own == before
    assert {job for job, _ in world.cluster.extended} == set(before.values())


def test_without_a_event_store_and_without_a_signature_satellites_leave_and_the_job_grows_anew(
    tmp_path: Path,
) -> None:
    world, leader = grown(tmp_path)
    before = set(leader.own.values())
    world.event_store.close()
    (tmp_path / "journal.sqlite").unlink()
    leader.signatures = dict.fromkeys(leader.signatures, b"no signature of flexod's")
    world.restart()
    world.go(2)
    assert world.controller.status().unknown_satellites == len(before)
    world.go(60)
    assert before.isdisjoint(leader.own.values())
    assert leader.report().training_workers == 8


def test_with_a_event_store_no_leader_has_to_show_anything(tmp_path: Path) -> None:
    world, leader = grown(tmp_path)
    before = dict(leader.own)
    world.leaders.attached.clear()
    world.restart()
    world.go(TIME_LIMIT_S - 20)
    assert {grant.satellite_job_id for view in world.controller.jobs() for grant in view.job.grants} == set(
        before.values()
    )
    assert {job for job, _ in world.cluster.extended} == set(before.values())


def test_a_disk_that_was_full_gets_the_grants_when_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    monkeypatch.setattr(world.event_store, "set_grants", lambda kept, forgotten: False)
    world.job(1, "1-8")
    world.go(20)
    assert world.event_store.grants() == ()
    monkeypatch.undo()
    world.go(2)
    assert {grant.node for grant in world.event_store.grants()} == {"t2", "t3"}


def test_a_grant_is_in_the_event_store_before_its_leader_hears_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    leader = world.job(1, "1-8")
    named: list[set[str]] = []
    hear = leader.hear

    def listen(orders) -> None:
        named.append(
            {offer.grant_id for offer in orders.grants}
            - {each.grant_id for each in world.event_store.grants()}
        )
        hear(orders)

    leader.hear = listen  # type: ignore[method-assign]
    world.go(60)
    assert len(named) > 10
    assert not any(named)


def test_grants_of_jobs_that_ended_are_forgotten(tmp_path: Path) -> None:
    world, _ = grown(tmp_path)
    world.cluster.queue.clear()
    world.leaders.attached.clear()
    world.go(60)
    assert len(world.event_store.grants()) == 2
    world.cluster.now += 3 * 3600
    world.go(10)
    assert world.event_store.grants() == ()


# An older release.


def as_older_release(path: Path) -> None:
    """The event store as the release before this one left it."""
    raw = sqlite3.connect(path)
    for table in ("issued_grant", "job_owner", "batch_time"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("ALTER TABLE cap DROP COLUMN nodes")
    raw.execute("ALTER TABLE cap DROP COLUMN who")
    raw.execute("PRAGMA user_version = 8")
    raw.commit()
    raw.close()


def test_satellites_that_an_older_release_granted_stand_after_the_upgrade(tmp_path: Path) -> None:
    world, leader = grown(tmp_path)
    before = dict(leader.own)
    leader.signatures.clear()
    world.event_store.close()
    as_older_release(tmp_path / "journal.sqlite")
    world.restart()
    world.go(2 * TIME_LIMIT_S)
    assert leader.own == before
    assert world.controller.status().unknown_satellites == 0
    # from then on they are grants as any other: signed, and named by the event store
    assert all(leader.signatures[grant_id] for grant_id in before)
    assert {grant.grant_id for grant in world.event_store.grants()} == set(before)


def test_an_older_releases_word_names_nothing_that_it_did_not_grant(tmp_path: Path) -> None:
    world, leader = grown(tmp_path)
    world.job(2, "1-8", "t1", owner=BOB, user="bob").scalable = False
    for node in ("t2", "t3"):
        job_id = world.cluster.submit(JobKey(2), BOB, "g1", node, 4, TIME_LIMIT_S)
        world.cluster.add(replace(world.cluster.queue[job_id], reason="JobHeldUser"))
        # it took over whatever had a tag
        text = f"satellite {job_id} with 4 workers on {node} is taken over"
        world.event_store.record(world.cluster.now, (Event(world.cluster.now, "adopt", JobKey(2), text),))
    world.event_store.close()
    as_older_release(tmp_path / "journal.sqlite")
    world.restart()
    world.go(20)
    assert world.controller.status().unknown_satellites == 2
    assert leader.report().training_workers == 8


def test_what_an_older_releases_events_end_does_not_stand(tmp_path: Path) -> None:
    event_store = EventStore(tmp_path / "journal.sqlite", 30)
    told = [
        ("grow", "grow by 3 workers on t2: t2 has idle GPUs for 3 workers; job 1 has 1 of 8"),
        ("grow", "grow by 1 worker on t3: t3 has idle GPUs"),
        ("adopt", "satellite 12 with 2 workers on t4 is taken over"),
        ("grow", "grow by 2 workers on t5: x"),
        ("grow", "grow by 2 workers on t6: x"),
        ("grow", "would grow by 2 workers on t9: x"),
        ("lost", "satellite 11 with 1 worker has left t3, unasked"),
        ("failure", "2 workers on t5: not started: Resources"),
        ("shrink", "give back 2 workers on t6: x"),
    ]
    event_store.record(NOW, tuple(Event(NOW, kind, KEY, text) for kind, text in told))
    event_store.close()
    raw = sqlite3.connect(tmp_path / "journal.sqlite")
    stored_grants.take_from_events(raw)
    found = {(each.node, each.workers, each.satellite_job_id) for each in stored_grants.read(raw)}
    assert found == {("t2", 3, 0), ("t4", 2, 12)}
    raw.close()


def test_a_job_of_another_user_is_no_satellite_though_it_matches_the_grant_it_names(tmp_path: Path) -> None:
    world = World(tmp_path)
    base = world.cluster.base(1, "2-8")
    granted = IssuedGrant(KEY, "g1", ADA, "t2", 3, "flex", Resources(3, 3), NOW)
    for owner, counts in ((BOB, False), (ADA, True)):
        job = world.cluster.queue[world.cluster.submit(KEY, owner, "g1", "t2", 3, TIME_LIMIT_S)]
        assert is_satellite(job, granted, base, 1, TIME_LIMIT_S, world.cluster.now) is counts


# What Slurm makes of a request.


@pytest.mark.parametrize(
    ("base", "satellite", "threads", "counts"),
    [
        ({}, {}, 1, True),
        ({}, {"cpus": 4}, 2, True),  # 3 CPUs on whole cores
        ({}, {"cpus": 4}, 1, False),
        ({"cpus": 4}, {"cpus": 6}, 1, True),  # the site raises CPUs, the base's too
        ({"memory_mib": 2000}, {"memory_mib": 3000}, 1, True),
        ({"memory_mib": 2000}, {"memory_mib": 3001}, 1, False),
        ({}, {"gpus": 2}, 1, False),
        ({"gpus": 4}, {"gpus": 6}, 1, False),
    ],
)
def test_a_satellite_holds_what_was_granted_as_slurm_rounds_it(
    tmp_path: Path,
    base: dict[str, object],
    satellite: dict[str, object],
    threads: int,
    counts: bool,
) -> None:
    world = World(tmp_path)
    owner = world.cluster.base(1, "2-8", **base)
    job_id = world.cluster.submit(KEY, ADA, "g1", "t2", 3, TIME_LIMIT_S)
    asked = IssuedGrant(KEY, "g1", ADA, "t2", 3, "flex", Resources(3, 3), NOW)
    job = change_job(world.cluster.queue[job_id], **satellite)
    assert is_satellite(job, asked, owner, threads, TIME_LIMIT_S, world.cluster.now) is counts


def test_a_leaders_word_on_its_workers_is_bounded_by_slurms_record_of_the_base(tmp_path: Path) -> None:
    base = World(tmp_path).cluster.base(1, "2-8", gpus=4, cpus=7, memory_mib=999)
    assert shape_within(base, Resources(8, 64, 1 << 20, "v100")) == Resources(2, 4, 500, "v100")
    assert shape_within(base, Resources(1, 2, 100)) == Resources(1, 2, 100)
    assert shape_within(base, None) == Resources(2, 3)


def test_a_part_of_a_gpu_that_a_leader_makes_up_is_none(tmp_path: Path) -> None:
    """Policies plan in parts of all fractions there are: 1/999983 would cost them hours."""
    base = World(tmp_path).cluster.base(1, "2-8", gpus=2, cpus=2)
    assert shape_within(base, Resources(Fraction(1, 999_983), 1, 0)).gpus == 1
