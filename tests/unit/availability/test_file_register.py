"""The register in a shared folder: one writer wins, whatever listing of the folder the others go by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo.availability.claim import Record
from flexo.availability.file_register import FileRegister
from flexo.availability.register import Found, RegisterAway

A, B = Record("a:1", "ta", 1, 0, 5.0), Record("b:1", "tb", 2, 0, 6.0)


@pytest.fixture
def register(tmp_path: Path) -> Iterator[FileRegister]:
    yield FileRegister(tmp_path)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "nothing half is left"


def test_what_is_written_is_found_and_only_whoever_knows_it_changes_it(register: FileRegister) -> None:
    assert register.look() == Found(None, 0)
    assert register.swap(0, A)
    found = register.look()
    assert found.record == A
    assert not register.swap(0, B), "by an old look"
    assert register.swap(found.version, B)
    assert register.look().record == B


def test_a_hundred_beats_leave_four_files(register: FileRegister, tmp_path: Path) -> None:
    for beat in range(100):
        assert register.swap(beat, A)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "active.100",
        "active.97",
        "active.98",
        "active.99",
    ]


def test_of_many_who_swap_the_same_one_wins(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(16), []

    def swap(number: int) -> None:
        register = FileRegister(tmp_path)
        for version in range(20):
            barrier.wait()
            if register.swap(version, Record(f"h{number}", f"t{number}", version, number, 0.0)):
                won.append((version, number))

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [version for version, _ in sorted(won)] == list(range(20))


def test_an_old_listing_of_the_folder_wins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active, late = FileRegister(tmp_path), FileRegister(tmp_path)
    for beat in range(10):
        assert active.swap(beat, A)
    old, true = iter([3, 3]), late._newest
    monkeypatch.setattr(late, "_newest", lambda: next(old, None) or true())
    assert not late.swap(3, B), "4 was thrown away, and can be made again"
    assert active.look() == Found(A, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "active.10",
        "active.7",
        "active.8",
        "active.9",
    ]


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b'{"holder": "a:1"}'])
def test_a_file_that_is_no_record_is_named(register: FileRegister, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "active.3").write_bytes(text)
    with pytest.raises(RegisterAway, match=r"active\.3"):
        register.look()


def test_a_folder_that_is_away_is_named_and_so_is_one_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RegisterAway, match="nowhere"):
        FileRegister(tmp_path / "nowhere").look()

    def link(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(RegisterAway, match="Operation not permitted"):
        FileRegister(tmp_path).swap(0, A)
