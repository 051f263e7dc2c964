"""A leader lease in a full folder: changed all the same, by one, and whole whoever is killed."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from small_disks import fill, small_disk

from flexo_protos.leader_leases import file_store
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, Found, LeaderLease, StoreUnavailable

pytestmark = pytest.mark.processes

A = LeaderLease("ta", "a:1", 1, since_at=5.0)
B = LeaderLease("tb", "a-longer-name:6836", 2, since_at=6.0)
LINES = 500
"""More than a swap has."""


def store_in(folder: Path) -> FileLeaseStore:
    return FileLeaseStore(folder, OF_FLEXODS)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as folder:
        yield folder


def beaten(disk: Path, beats: int) -> FileLeaseStore:
    """A store with as many records written, on a disk that is full since."""
    store = store_in(disk)
    for beat in range(beats):
        assert store.swap(beat, replace(A, beat=beat)).version == beat + 1
    fill(disk)
    return store


@pytest.mark.parametrize("beats", [2, 3, 9])
def test_beats_go_on_and_another_takes_over(disk: Path, beats: int) -> None:
    active, other = beaten(disk, beats), store_in(disk)
    for beat in range(beats, 120):
        assert active.swap(beat, replace(A, beat=10**beat)).version == beat + 1, "records get longer"
        assert other.read() == Found(replace(A, beat=10**beat), beat + 1)
        fill(disk)
    assert len({path.stat().st_size for path in disk.glob("active.*")}) == 1
    assert other.swap(5, B).lease != B, "by an old look"
    fill(disk)
    assert other.swap(120, B) == Found(B, 121)
    assert active.swap(120, A) == Found(B, 121)
    assert active.read() == Found(B, 121)
    assert [path.name for path in disk.iterdir() if path.name.startswith(".")] == []


def test_a_quota_that_is_used_up_is_like_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, true = beaten(disk, 4), Path.open

    def within_quota(path: Path, mode: str, **options: Any) -> Any:
        if "x" in mode:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return true(path, mode, **options)

    with monkeypatch.context() as limited:
        limited.setattr(Path, "open", within_quota)
        assert store.swap(4, B) == Found(B, 5)
    assert store.read() == Found(B, 5)


def test_records_of_an_earlier_release_give_their_room_too(disk: Path) -> None:
    (disk / "active.8").write_text('{"holder": "a:1"}')
    (disk / "active.9").write_text(OF_FLEXODS.as_text(A))
    fill(disk)
    store = store_in(disk)
    assert store.swap(9, B) == Found(B, 10)
    assert store.read() == Found(B, 10)


def test_where_there_was_never_a_record_it_is_said_and_nothing_is_left(disk: Path) -> None:
    fill(disk)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        store_in(disk).swap(0, A)
    assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_the_only_record_is_never_written_over(disk: Path) -> None:
    store = beaten(disk, 1)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        store.swap(1, B)
    assert store.read() == Found(A, 1)


def test_an_earlier_writers_name_for_the_same_file_is_no_sign_of_having_won(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = beaten(disk, 4)
    for path in disk.glob("active.*"):
        os.link(path, disk / f".{path.name}")
    old, true = iter([[1, 2, 3]] * 3), late.versions
    monkeypatch.setattr(late, "versions", lambda: next(old, None) or true())
    assert late.swap(3, B).lease == replace(A, beat=3)
    assert late.read().version == 4


def test_what_is_written_anew_while_it_is_read_is_not_taken_for_the_record_that_it_was(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, true = beaten(disk, 4), Path.read_text

    def slowly(path: Path, **options: Any) -> str:
        if path.name == "active.4":
            for version in range(4, 8):
                active.swap(version, B)
        return true(path, **options) if path.exists() else '{"holder": "a:'

    monkeypatch.setattr(Path, "read_text", slowly)
    assert store_in(disk).read() == Found(B, 8)


def test_of_many_who_swap_the_same_one_wins(disk: Path) -> None:
    beaten(disk, 4)
    barrier, won = threading.Barrier(6), []

    def swap(number: int) -> None:
        store = store_in(disk)
        for turn in range(30):
            found = store.read()
            barrier.wait()
            lease = LeaderLease(f"t{number}", f"h{number}", turn, beat=number)
            try:
                if store.swap(found.version, lease).lease == lease:
                    won.append(Found(lease, found.version + 1))
            except StoreUnavailable:
                pass  # others had taken all the room
            barrier.wait()

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.version for found in won] == list(range(5, 35))
    assert store_in(disk).read() == won[-1]


def _dies_at(line: int, disk: Path, version: int) -> bool:
    """Whether a process that swaps is gone, as by SIGKILL, at the line of that number in the store's file."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file_store.__file__:
            return None
        left[0] -= event == "line"
        if left[0] < 0:
            os._exit(9)
        return trace

    child = os.fork()
    if child == 0:
        sys.settrace(trace)
        store_in(disk).swap(version, B)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.thorough
def test_whoever_is_killed_at_any_line_leaves_a_whole_record_and_room_for_the_next(disk: Path) -> None:
    for line in range(LINES):
        for path in disk.iterdir():
            path.unlink()
        store = beaten(disk, 4)
        before = store.read()
        died = _dies_at(line, disk, 4)
        fill(disk)
        found = store.read()
        assert found in (before, Found(B, 5))
        follower = replace(B, holder="follower")
        assert store.swap(found.version, follower).lease == follower, f"killed at line {line}"
        assert store.read().lease == follower
        if not died:
            break
    assert 30 < line < LINES
    assert found.lease == B
