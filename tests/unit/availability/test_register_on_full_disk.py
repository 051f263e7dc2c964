"""The register in a shared folder that is full: changed all the same, by one, and whole whoever is killed."""

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

from flexo.availability import file_register
from flexo.availability.claim import Record
from flexo.availability.file_register import FileRegister
from flexo.availability.register import Found, RegisterAway

A, B = Record("a:1", "ta", 1, 0, 5.0), Record("a-longer-name:6836", "tb", 2, 0, 6.0)
LINES = 500
"""More than a swap has."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as folder:
        yield folder


def beaten(disk: Path, beats: int) -> FileRegister:
    """A register with as many records written, on a disk that is full since."""
    register = FileRegister(disk)
    for beat in range(beats):
        assert register.swap(beat, replace(A, beat=beat))
    fill(disk)
    return register


@pytest.mark.parametrize("beats", [2, 3, 9])
def test_beats_go_on_and_another_takes_over(disk: Path, beats: int) -> None:
    active, other = beaten(disk, beats), FileRegister(disk)
    for beat in range(beats, 120):
        assert active.swap(beat, replace(A, beat=10**beat)), "records get longer"
        assert other.look() == Found(replace(A, beat=10**beat), beat + 1)
        fill(disk)
    assert len({path.stat().st_size for path in disk.glob("active.*")}) == 1
    assert not other.swap(5, B), "by an old look"
    fill(disk)
    assert other.swap(120, B)
    assert not active.swap(120, A)
    assert active.look() == Found(B, 121)
    assert [path.name for path in disk.iterdir() if path.name.startswith(".")] == []


def test_a_quota_that_is_used_up_is_like_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register, true = beaten(disk, 4), Path.open

    def within_quota(path: Path, mode: str, **options: Any) -> Any:
        if "x" in mode:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return true(path, mode, **options)

    with monkeypatch.context() as limited:
        limited.setattr(Path, "open", within_quota)
        assert register.swap(4, B)
    assert register.look() == Found(B, 5)


def test_records_of_an_earlier_release_give_their_room_too(disk: Path) -> None:
    (disk / "active.8").write_text('{"holder": "a:1"}')
    (disk / "active.9").write_text(file_register.as_text(A))
    fill(disk)
    register = FileRegister(disk)
    assert register.swap(9, B)
    assert register.look() == Found(B, 10)


def test_where_there_was_never_a_record_it_is_said_and_nothing_is_left(disk: Path) -> None:
    fill(disk)
    with pytest.raises(RegisterAway, match="No space left on device"):
        FileRegister(disk).swap(0, A)
    assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_the_only_record_is_never_written_over(disk: Path) -> None:
    register = beaten(disk, 1)
    with pytest.raises(RegisterAway, match="No space left on device"):
        register.swap(1, B)
    assert register.look() == Found(A, 1)


def test_an_earlier_writers_name_for_the_same_file_is_no_sign_of_having_won(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = beaten(disk, 4)
    for path in disk.glob("active.*"):
        os.link(path, disk / f".{path.name}")
    old, true = iter([[1, 2, 3]] * 3), late._versions
    monkeypatch.setattr(late, "_versions", lambda: next(old, None) or true())
    assert not late.swap(3, B)
    assert late.look().version == 4


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
    assert FileRegister(disk).look() == Found(B, 8)


def test_of_many_who_swap_the_same_one_wins(disk: Path) -> None:
    beaten(disk, 4)
    barrier, won = threading.Barrier(6), []

    def swap(number: int) -> None:
        register = FileRegister(disk)
        for turn in range(30):
            found = register.look()
            barrier.wait()
            record = Record(f"h{number}", f"t{number}", turn, number, 0.0)
            try:
                if register.swap(found.version, record):
                    won.append(Found(record, found.version + 1))
            except RegisterAway:
                pass  # others had taken all the room
            barrier.wait()

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.version for found in won] == list(range(5, 35))
    assert FileRegister(disk).look() == won[-1]


def _dies_at(line: int, disk: Path, version: int) -> bool:
    """Whether a process that swaps is gone, as by SIGKILL, at the so-manieth line of the register's."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file_register.__file__:
            return None
        left[0] -= event == "line"
        if left[0] < 0:
            os._exit(9)
        return trace

    child = os.fork()
    if child == 0:
        sys.settrace(trace)
        FileRegister(disk).swap(version, B)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_whoever_is_killed_at_any_line_leaves_a_whole_record_and_room_for_the_next(disk: Path) -> None:
    for line in range(LINES):
        for path in disk.iterdir():
            path.unlink()
        register = beaten(disk, 4)
        before = register.look()
        died = _dies_at(line, disk, 4)
        fill(disk)
        found = register.look()
        assert found in (before, Found(B, 5))
        follower = replace(B, token="follower")
        assert register.swap(found.version, follower), f"killed at line {line}"
        assert register.look().record == follower
        if not died:
            break
    assert 30 < line < LINES
    assert found.record == B
