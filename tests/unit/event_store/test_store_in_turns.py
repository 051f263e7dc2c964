"""One event store that several flexods write in turns: what one remembers the next one knows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from says import says

from flexo.event_store import file as store_file
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.elastic import Cap
from flexo.model.queue import JobKey

NOW = 1_000_000.0
JOB = JobKey(7)


def opened(path: Path, epoch: int) -> EventStore:
    return EventStore(path, 30, epoch)


def texts(event_store: EventStore) -> list[str]:
    return [event.text for event in event_store.events(None, 10)]


def test_the_next_one_knows_what_was_remembered_and_the_one_before_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = opened(path, 4)
    first.set_cap(JOB, Cap(3))
    first.record(NOW, (Event(NOW, "grow", JOB, "by the first"),))
    second = opened(path, 5)  # the first was stopped, and has the file open still
    assert (second.caps(), texts(second)) == ({JOB: Cap(3)}, ["by the first"])
    second.set_cap(JOB, Cap(4))
    first.set_cap(JOB, Cap(2))
    first.record(NOW, (Event(NOW, "grow", JOB, "too late"),))
    assert says(first.trouble, "another flexod", "epoch 5")
    second.record(NOW, (Event(NOW, "grow", JOB, "by the second"),))
    assert (second.trouble, second.caps(), texts(second)) == (
        "",
        {JOB: Cap(4)},
        ["by the second", "by the first"],
    )
    first.close()
    second.close()


def test_a_newer_release_that_follows_keeps_everything_and_the_older_one_that_wakes_puts_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    older = opened(path, 4)
    older.set_cap(JOB, Cap(3))
    with monkeypatch.context() as upgraded:
        upgraded.setattr(store_file, "SCHEMAS", (*store_file.SCHEMAS, ("CREATE TABLE later (x)",)))
        upgraded.setattr(store_file, "VERSION", store_file.VERSION + 1)
        newer = opened(path, 5)
        assert newer.caps() == {JOB: Cap(3)}
        newer.record(NOW, (Event(NOW, "grow", JOB, "by the newer"),))
    for late in range(3):  # the second time it opens the file anew
        older.record(NOW, (Event(NOW, "grow", JOB, f"too late {late}"),))
        assert says(older.trouble, "another flexod", "epoch 5")
    assert (newer.caps(), texts(newer)) == ({JOB: Cap(3)}, ["by the newer"])
    assert [found.name for found in tmp_path.glob("*version*")] == []
    back = opened(path, 6)  # the older release as the active one again
    assert (back.caps(), back.trouble) == ({}, "")
    assert len(list(tmp_path.glob("journal.sqlite.version-*"))) == 1
    for each in (older, newer, back):
        each.close()


@pytest.mark.parametrize("epoch", [0, 1])
def test_hosts_that_take_turns_share_no_memory_so_the_event_store_has_no_wal(
    tmp_path: Path, epoch: int
) -> None:
    path = tmp_path / "journal.sqlite"
    event_store = opened(path, 0)
    event_store.set_cap(JOB, Cap(3))
    event_store.close()
    event_store = opened(path, epoch)
    assert event_store.caps() == {JOB: Cap(3)}, (
        "an event store of one flexod goes on as one of several, and back"
    )
    event_store.set_cap(JOB, Cap(2))
    assert path.with_name("journal.sqlite-wal").exists() is (epoch == 0)
    event_store.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete" if epoch else "wal",)


def test_who_cannot_write_it_now_goes_on_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    opened(path, 1).close()
    with sqlite3.connect(path) as stopped:
        stopped.execute("BEGIN IMMEDIATE")  # as a flexod that was stopped in the middle of a transaction
        event_store = opened(path, 2)
        assert "locked" in event_store.trouble
        stopped.rollback()
    event_store.set_cap(JOB, Cap(3))
    assert (event_store.trouble, event_store.caps()) == ("", {JOB: Cap(3)})
    event_store.close()
