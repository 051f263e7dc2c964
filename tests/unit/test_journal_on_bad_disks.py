"""The journal on disks that are full, read-only or lie: flexod goes on, and says what is wrong."""

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

from flexo.events import Event
from flexo.journal import Journal
from flexo.journal_search import Search
from flexo.model.loans import Demand, Loan, LoanState, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu
from flexo.model.queue import JobKey
from flexo.service import flexod

NOW = 1_000_000.0
JOB = JobKey(7)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


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


def texts(journal: Journal) -> list[str]:
    return [found.text for found in journal.events(None, 1000)]


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
    assert "database or disk is full" in world.controller.status().trouble
    world.controller.scale(JOB_OF_WORLD, 2)
    world.go(10)
    assert world.cluster.satellites() == []
    ballast.unlink()
    world.go(80)
    assert world.controller.status().trouble == ""
    assert any("events before this one could not be written" in text for text in texts(world.journal))
    assert world.cluster.satellites() == [("t2", 1)]
    world.journal.close()


JOB_OF_WORLD = JobKey(1)


def test_flexod_begins_on_a_full_disk_and_finds_its_grants(small_disk: Path) -> None:
    world = World(small_disk)
    world.job()
    world.go(30)
    world.journal.close()
    with flexod._only_flexod_of(small_disk / "journal.sqlite"):
        pass
    fill(small_disk)
    with flexod._only_flexod_of(small_disk / "journal.sqlite"):
        world.restart()
    world.go(30)
    assert world.cluster.satellites() == [("t2", 3)]
    assert [len(view.job.grants) for view in world.controller.jobs()] == [1]
    world.journal.close()


def test_who_takes_over_on_a_full_disk_reads_what_the_one_before_wrote(small_disk: Path) -> None:
    path = small_disk / "journal.sqlite"
    first = Journal(path, 30, epoch=5)
    first.set_cap(JOB, 3)
    first.record(NOW, (event("before"),))
    ballast = fill(small_disk)
    second = Journal(path, 30, epoch=6)
    assert (second.caps(), texts(second)) == ({JOB: 3}, ["before"])
    second.record(NOW, (event("lost" * 5000),))
    assert "database or disk is full" in second.trouble
    ballast.unlink()
    second.record(NOW, (event("after"),))
    first.record(NOW, (event("too late"),))
    assert "another flexod writes it (epoch 6)" in first.trouble
    assert texts(second)[0] == "after"
    first.close()
    second.close()


def test_where_nothing_may_be_written_flexod_goes_on(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal.sqlite", 30)
    journal.set_cap(JOB, 3)
    journal.record(NOW, (event("before"),))
    journal.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    journal = Journal(small_disk / "journal.sqlite", 30)
    journal.record(NOW, (event("lost"),))
    assert "cannot be used" in journal.trouble
    read_all(journal)
    journal.record(NOW, (event("lost as well"),))
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    journal.record(NOW, (event("after"),))
    assert journal.trouble == ""
    after, missing, before = texts(journal)
    assert (after, before) == ("after", "before")
    assert missing.startswith("2 events before this one could not be written")
    assert journal.caps() == {JOB: 3}
    journal.close()


def filled(path: Path) -> None:
    """A journal with something of everything."""
    journal = Journal(path, 30)
    for number in range(60):
        journal.record(NOW, (event(f"event {number} " + "x" * 90),), '{"idle": {}}')
        journal.set_cap(JobKey(number), 3)
        journal.add_demand(Demand(NOW + number, 2.0, "the test"))
    journal.set_scaling(JOB, [ScalingPoint(size, 1.0, 2.0, 0.1, 1.0, 20, NOW) for size in range(1, 30)])
    for number in range(30):
        journal.set_slow_gpu(SlowGpu(f"n{number}", (0, 3), 1.5, JOB, NOW, NOW + 1e9))
    journal.add_running_times([RunningTime("ada", 2, float(number), NOW) for number in range(40)])
    journal.set_priorities([(JobKey(number), number) for number in range(40)], ())
    called = Loan("i2", NOW - 90, "spare", LoanState.CALLED_BACK, NOW, NOW + 180, "demand")
    past = PastLoan("i3", NOW - 9, "spare", NOW - 5, NOW + 175, "demand", NOW - 3, NOW, 4, 1)
    journal.set_loans((Loan("i1", NOW - 50, "spare"), called), (past,) * 20)
    journal.close()


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


def read_all(journal: Journal) -> None:
    """Everything that flexod and people ever read of it, as it is used."""
    sum(workers + key.job_id for key, workers in journal.caps().items())
    [point.samples_per_s + point.batches for points in journal.scaling().values() for point in points]
    [gpu.until_at > NOW and str(gpu) for gpu in journal.slow_gpus(NOW)]
    [time.seconds + time.gpus + len(time.user) for time in journal.running_times()]
    sum(journal.priorities().values())
    [(demand.at + demand.servers, demand.source + "") for demand in journal.demand(0.0, 10.0)]
    [(loan.node + loan.why, loan.since_at + (loan.deadline_at or 0.0)) for loan in journal.loans()]
    [(loan.node + loan.why_back, loan.ended_at - loan.since_at) for loan in journal.past_loans(100)]
    for found in journal.events(None, 1000, routine=True):
        assert found.at + len(found.text + found.kind) is not None
        journal.facts_of(found)
    journal.find(Search())


@pytest.mark.parametrize("damage", [flipped, flipped_within_rows, truncated, zeroed])
def test_a_damaged_journal_never_stops_flexod(
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
        journal = Journal(path, 30)
        for _ in range(2):  # damage is found when it is read, and what was written beside it is lost with it
            read_all(journal)
            journal.record(NOW, (event("alive"),))
        assert journal.trouble == ""
        assert "alive" in texts(journal)
        journal.close()
        shutil.rmtree(folder)


def test_a_journal_of_a_newer_flexod_is_kept_whole_and_can_be_put_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path, 30)
    journal.set_cap(JOB, 3)
    journal.close()
    raw = sqlite3.connect(path)
    (version,) = raw.execute("PRAGMA user_version").fetchone()
    raw.execute(f"PRAGMA user_version = {version + 1}")
    raw.close()
    newer = path.read_bytes()
    older = Journal(path, 30)
    assert (older.caps(), older.trouble) == ({}, "")
    older.close()
    (kept,) = tmp_path.glob(f"journal.sqlite.version-{version + 1}-*")
    assert kept.read_bytes() == newer
