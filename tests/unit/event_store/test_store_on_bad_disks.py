"""The event store on disks that are full, read-only or lie: flexod goes on, and says what is wrong."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from controller_world import World
from says import says

from flexo.event_store.search import Search
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.elastic import Cap
from flexo.model.loans import Demand, Loan, LoanState, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu
from flexo.model.queue import JobKey
from flexo.service import flexod

pytestmark = pytest.mark.processes

NOW = 1_000_000.0
JOB = JobKey(7)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for half a mebibyte."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=512k", "flexo-test", str(tmp_path)]
    done = subprocess.run(mounted, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def event(text: str, kind: str = "grow") -> Event:
    return Event(NOW, kind, JOB, text)


def texts(event_store: EventStore) -> list[str]:
    return [found.text for found in event_store.events(None, 1000)]


def fill(disk: Path) -> Path:
    """Leaves no block free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
    return ballast


def test_on_a_full_disk_flexod_goes_on_and_writes_again_when_there_is_room(small_disk: Path) -> None:
    world = World(small_disk)
    world.job()
    ballast = fill(small_disk)
    world.go(60)
    assert world.cluster.satellites() == [("t2", 3)]
    assert says(world.controller.status().trouble, "full")
    world.controller.scale(JOB_OF_WORLD, 2)
    world.go(10)
    assert world.cluster.satellites() == []
    ballast.unlink()
    world.go(80)
    assert world.controller.status().trouble == ""
    assert any(says(text, "events", "not be written") for text in texts(world.event_store))
    assert world.cluster.satellites() == [("t2", 1)]
    world.event_store.close()


JOB_OF_WORLD = JobKey(1)


def test_flexod_begins_on_a_full_disk_and_finds_its_grants(small_disk: Path) -> None:
    world = World(small_disk)
    world.job()
    world.go(30)
    world.event_store.close()
    with flexod._only_flexod_of(small_disk / "journal.sqlite"):
        pass
    fill(small_disk)
    with flexod._only_flexod_of(small_disk / "journal.sqlite"):
        world.restart()
    world.go(30)
    assert world.cluster.satellites() == [("t2", 3)]
    assert [len(view.job.grants) for view in world.controller.jobs()] == [1]
    world.event_store.close()


def test_who_takes_over_on_a_full_disk_reads_what_the_one_before_wrote(small_disk: Path) -> None:
    path = small_disk / "journal.sqlite"
    first = EventStore(path, 30, epoch=5)
    first.set_cap(JOB, Cap(3))
    first.record(NOW, (event("before"),))
    ballast = fill(small_disk)
    second = EventStore(path, 30, epoch=6)
    assert (second.caps(), texts(second)) == ({JOB: Cap(3)}, ["before"])
    second.record(NOW, (event("lost" * 5000),))
    assert says(second.trouble, "full")
    ballast.unlink()
    second.record(NOW, (event("after"),))
    first.record(NOW, (event("too late"),))
    assert says(first.trouble, "another flexod", "epoch 6")
    assert texts(second)[0] == "after"
    first.close()
    second.close()


def test_where_nothing_may_be_written_flexod_goes_on(small_disk: Path) -> None:
    event_store = EventStore(small_disk / "journal.sqlite", 30)
    event_store.set_cap(JOB, Cap(3))
    event_store.record(NOW, (event("before"),))
    event_store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    event_store = EventStore(small_disk / "journal.sqlite", 30)
    event_store.record(NOW, (event("lost"),))
    assert "cannot be used" in event_store.trouble
    read_all(event_store)
    event_store.record(NOW, (event("lost as well"),))
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    event_store.record(NOW, (event("after"),))
    assert event_store.trouble == ""
    after, missing, before = texts(event_store)
    assert (after, before) == ("after", "before")
    assert says(missing, "2 events")
    assert event_store.caps() == {JOB: Cap(3)}
    event_store.close()


def filled(path: Path) -> None:
    """An event store with something of everything."""
    event_store = EventStore(path, 30)
    for number in range(60):
        event_store.record(NOW, (event(f"event {number} " + "x" * 90),), '{"idle": {}}')
        event_store.set_cap(JobKey(number), Cap(3))
        event_store.add_demand(Demand(NOW + number, 2.0, "the test"))
    event_store.set_scaling(JOB, [ScalingPoint(size, 1.0, 2.0, 0.1, 1.0, 20, NOW) for size in range(1, 30)])
    for number in range(30):
        event_store.set_slow_gpu(SlowGpu(f"n{number}", (0, 3), 1.5, JOB, NOW, NOW + 1e9))
    event_store.add_running_times([RunningTime("ada", 2, float(number), NOW) for number in range(40)])
    event_store.set_priorities([(JobKey(number), number) for number in range(40)], ())
    called = Loan("i2", NOW - 90, "spare", LoanState.RECLAIMING, NOW, NOW + 180, "demand")
    past = PastLoan("i3", NOW - 9, "spare", NOW - 5, NOW + 175, "demand", NOW - 3, NOW, 4, 1)
    event_store.set_loans((Loan("i1", NOW - 50, "spare"), called), (past,) * 20)
    event_store.close()


def flipped(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 8, 64))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def flipped_within_rows(data: bytearray, chance: random.Random) -> None:
    """Where SQLite itself cannot see it: numbers become text, text becomes nonsense."""
    for _ in range(40):
        place = chance.randrange(len(data))
        if 32 <= data[place] < 127:
            data[place] ^= chance.choice((0x80, 0x01, 0x40))


def truncated(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def zeroed(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    length = min(len(data) - start, chance.choice((512, 4096, 20_000)))
    data[start : start + length] = bytes(length)


def read_all(event_store: EventStore) -> None:
    """Everything that flexod and people ever read of it, as it is used."""
    sum(cap.workers + key.job_id for key, cap in event_store.caps().items())
    [point.samples_per_s + point.batches for points in event_store.scaling().values() for point in points]
    [gpu.until_at > NOW and str(gpu) for gpu in event_store.slow_gpus(NOW)]
    [time.seconds + time.gpus + len(time.user) for time in event_store.running_times()]
    sum(event_store.priorities().values())
    [(demand.at + demand.servers, demand.source + "") for demand in event_store.demand(0.0, 10.0)]
    [(loan.node + loan.why, loan.since_at + (loan.deadline_at or 0.0)) for loan in event_store.loans()]
    [(loan.node + loan.why_back, loan.ended_at - loan.since_at) for loan in event_store.past_loans(100)]
    for found in event_store.events(None, 1000, routine=True):
        assert found.at + len(found.text + found.kind) is not None
    event_store.facts_of([number for number, _ in event_store.find(Search()).events])


@pytest.mark.parametrize("damage", [flipped, flipped_within_rows, truncated, zeroed])
def test_a_damaged_event_store_never_stops_flexod(
    tmp_path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    whole = tmp_path / "whole.sqlite"
    filled(whole)
    chance = random.Random(4)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "journal.sqlite"
        data = bytearray(whole.read_bytes())
        damage(data, chance)
        path.write_bytes(data)
        event_store = EventStore(path, 30)
        for _ in range(2):  # damage is found when it is read, and what was written beside it is lost with it
            read_all(event_store)
            event_store.record(NOW, (event("alive"),))
        assert event_store.trouble == ""
        assert "alive" in texts(event_store)
        event_store.close()
        shutil.rmtree(folder)


def test_a_event_store_of_a_newer_flexod_is_kept_whole_and_can_be_put_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    event_store = EventStore(path, 30)
    event_store.set_cap(JOB, Cap(3))
    event_store.close()
    raw = sqlite3.connect(path)
    (version,) = raw.execute("PRAGMA user_version").fetchone()
    raw.execute(f"PRAGMA user_version = {version + 1}")
    raw.close()
    newer = path.read_bytes()
    older = EventStore(path, 30)
    assert (older.caps(), older.trouble) == ({}, "")
    older.close()
    (kept,) = tmp_path.glob(f"journal.sqlite.version-{version + 1}-*")
    assert kept.read_bytes() == newer
