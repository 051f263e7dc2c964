"""One journal that several flexods write in turns: what one remembers the next one knows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from flexo import journal_file
from flexo.events import Event
from flexo.journal import Journal
from flexo.model.queue import JobKey

NOW = 1_000_000.0
JOB = JobKey(7)


def opened(path: Path, epoch: int) -> Journal:
    return Journal(path, 30, epoch)


def texts(journal: Journal) -> list[str]:
    return [event.text for event in journal.events(None, 10)]


def test_the_next_one_knows_what_was_remembered_and_the_one_before_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = opened(path, 4)
    first.set_cap(JOB, 3)
    first.record(NOW, (Event(NOW, "grow", JOB, "by the first"),))
    second = opened(path, 5)  # the first was stopped, and has the file open still
    assert (second.caps(), texts(second)) == ({JOB: 3}, ["by the first"])
    second.set_cap(JOB, 4)
    first.set_cap(JOB, 2)
    first.record(NOW, (Event(NOW, "grow", JOB, "too late"),))
    assert "another flexod writes it (epoch 5)" in first.trouble
    second.record(NOW, (Event(NOW, "grow", JOB, "by the second"),))
    assert (second.trouble, second.caps(), texts(second)) == ("", {JOB: 4}, ["by the second", "by the first"])
    first.close()
    second.close()


def test_a_newer_release_that_follows_keeps_everything_and_the_older_one_that_wakes_puts_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    older = opened(path, 4)
    older.set_cap(JOB, 3)
    with monkeypatch.context() as upgraded:
        upgraded.setattr(journal_file, "_SCHEMAS", (*journal_file._SCHEMAS, ("CREATE TABLE later (x)",)))
        upgraded.setattr(journal_file, "_VERSION", journal_file._VERSION + 1)
        newer = opened(path, 5)
        assert newer.caps() == {JOB: 3}
        newer.record(NOW, (Event(NOW, "grow", JOB, "by the newer"),))
    for late in range(3):  # the second time it opens the file anew
        older.record(NOW, (Event(NOW, "grow", JOB, f"too late {late}"),))
        assert "another flexod writes it (epoch 5)" in older.trouble
    assert (newer.caps(), texts(newer)) == ({JOB: 3}, ["by the newer"])
    assert [found.name for found in tmp_path.glob("*version*")] == []
    back = opened(path, 6)  # the older release as the active one again
    assert (back.caps(), back.trouble) == ({}, "")
    assert len(list(tmp_path.glob("journal.sqlite.version-*"))) == 1
    for each in (older, newer, back):
        each.close()


@pytest.mark.parametrize("epoch", [0, 1])
def test_hosts_that_take_turns_share_no_memory_so_the_journal_has_no_wal(tmp_path: Path, epoch: int) -> None:
    path = tmp_path / "journal.sqlite"
    journal = opened(path, 0)
    journal.set_cap(JOB, 3)
    journal.close()
    journal = opened(path, epoch)
    assert journal.caps() == {JOB: 3}, "a journal of one flexod goes on as one of several, and back"
    journal.set_cap(JOB, 2)
    assert path.with_name("journal.sqlite-wal").exists() is (epoch == 0)
    journal.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete" if epoch else "wal",)


def test_who_cannot_write_it_now_goes_on_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    opened(path, 1).close()
    with sqlite3.connect(path) as stopped:
        stopped.execute("BEGIN IMMEDIATE")  # as a flexod that was stopped in the middle of a transaction
        journal = opened(path, 2)
        assert "locked" in journal.trouble
        stopped.rollback()
    journal.set_cap(JOB, 3)
    assert (journal.trouble, journal.caps()) == ("", {JOB: 3})
    journal.close()
