"""A leader lease in a shared folder: one writer wins, whatever listing of the folder the others go by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, Found, LeaderLease, StoreUnavailable

A, B = LeaderLease("ta", "a:1", 1, since_at=5.0), LeaderLease("tb", "b:1", 2, since_at=6.0)


def store_in(folder: Path) -> FileLeaseStore:
    return FileLeaseStore(folder, OF_FLEXODS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileLeaseStore]:
    yield store_in(tmp_path)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "nothing half is left"


def test_a_hundred_beats_leave_four_files(store: FileLeaseStore, tmp_path: Path) -> None:
    for beat in range(100):
        assert store.swap(beat, A).lease == A
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "active.100",
        "active.97",
        "active.98",
        "active.99",
    ]


def test_of_many_who_swap_the_same_one_wins(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(16), []

    def swap(number: int) -> None:
        store = store_in(tmp_path)
        for version in range(20):
            barrier.wait()
            lease = LeaderLease(f"t{number}", f"h{number}", version, beat=number)
            if store.swap(version, lease) == Found(lease, version + 1):
                won.append((version, number))

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [version for version, _ in sorted(won)] == list(range(20))


def test_an_old_listing_of_the_folder_wins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active, late = store_in(tmp_path), store_in(tmp_path)
    for beat in range(10):
        assert active.swap(beat, A) == Found(A, beat + 1)
    old, true = iter([3, 3]), late.newest
    monkeypatch.setattr(late, "newest", lambda: next(old, None) or true())
    assert late.swap(3, B) == Found(A, 10), "4 was thrown away, and can be made again"
    assert active.read() == Found(A, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "active.10",
        "active.7",
        "active.8",
        "active.9",
    ]


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b'{"holder": "a:1"}'])
def test_a_file_that_is_no_record_is_named(store: FileLeaseStore, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "active.3").write_bytes(text)
    with pytest.raises(StoreUnavailable, match=r"active\.3"):
        store.read()


def test_a_folder_that_is_away_is_named_and_so_is_one_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        store_in(tmp_path / "nowhere").read()

    def link(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(StoreUnavailable, match="Operation not permitted"):
        store_in(tmp_path).swap(0, A)
