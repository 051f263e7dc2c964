"""Events are found by job, node, kind, time and number, in an event store of any length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo.event_store import search as store_search
from flexo.event_store.search import Search
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.queue import JobKey
from flexo.words import names_in

NOW = 1_000_000.0


@pytest.fixture
def event_store(tmp_path: Path) -> Iterator[EventStore]:
    made = EventStore(tmp_path / "journal.sqlite", keep_days=30)
    yield made
    made.close()


def write(event_store: EventStore, *events: tuple[str, int | None, str], at: float = NOW) -> None:
    made = tuple(
        Event(at + number, kind, None if job is None else JobKey(job), text)
        for number, (kind, job, text) in enumerate(events)
    )
    event_store.record(at, made)


def texts(event_store: EventStore, **wanted: object) -> list[str]:
    return [event.text for _, event in event_store.find(Search(**wanted)).events]


def everything(event_store: EventStore, **wanted: object) -> list[str]:
    """All portions, and each entry once."""
    found: list[str] = []
    before, numbers = 0, set[int]()
    while True:
        part = event_store.find(Search(before=before, **wanted))
        assert not numbers & {number for number, _ in part.events}
        numbers |= {number for number, _ in part.events}
        found += [event.text for _, event in part.events]
        if not part.before:
            return found
        assert part.before < (before or 1 << 62)
        before = part.before


def test_an_empty_event_store_has_nothing(event_store):
    assert event_store.find(Search()) == type(event_store.find(Search()))((), 0, 0)


def test_events_are_found_by_their_job_their_kind_and_their_time(event_store):
    write(event_store, ("grow", 7, "a"), ("lend", None, "b"), ("grow", 8, "c"), ("shrink", 7, "d"))
    assert texts(event_store) == ["d", "c", "b", "a"]
    assert texts(event_store, job_id=7) == ["d", "a"]
    assert texts(event_store, kinds=("grow", "lend")) == ["c", "b", "a"]
    assert texts(event_store, since=NOW + 2) == ["d", "c"]
    assert texts(event_store, job_id=7, kinds=("grow",), since=NOW) == ["a"]
    assert texts(event_store, job_id=9) == []


def test_routine_is_told_only_when_it_is_asked_for(event_store):
    write(event_store, ("grow", 7, "a"), ("extend", 7, "b"))
    assert texts(event_store) == ["a"]
    assert texts(event_store, routine=True) == texts(event_store, kinds=("extend", "grow")) == ["b", "a"]


def test_a_node_is_found_where_a_text_names_it_and_not_where_it_names_its_neighbour(event_store):
    write(
        event_store,
        ("grow", 7, "grow by 2 workers on n1: they are idle"),
        ("grow", 7, "grow by 2 workers on n11: they are idle"),
        ("call back", None, "gpu-n1 is called back"),
        ("left", 7, "2 workers on n1."),
        ("slow", 7, "GPU 1 of n1 (1.8 times as slow)"),
        ("lend", None, "n1.cluster is lent"),
    )
    assert [text[:6] for text in texts(event_store, node="n1")] == ["GPU 1 ", "2 work", "grow b"]
    assert texts(event_store, node="n1.cluster") == ["n1.cluster is lent"]
    assert texts(event_store, node="n1' OR 1=1 --") == []


@pytest.mark.parametrize("text", ["", "n1", "on n1, n2-3: x_y (z.)", "\x00 n1%_"])
def test_names_in_a_text_end_where_the_name_of_a_node_does(text):
    assert all(not name.endswith((".", "-", "_")) and name for name in names_in(text))


def test_pages_follow_each_other_without_a_gap_or_an_entry_twice(event_store):
    write(event_store, *(("grow", number % 3, str(number)) for number in range(25)))
    wanted = [str(number) for number in reversed(range(25))]
    assert everything(event_store, limit=7) == wanted
    assert everything(event_store, limit=4, job_id=1) == [text for text in wanted if int(text) % 3 == 1]
    assert everything(event_store, limit=25) == wanted


def test_a_long_event_store_is_looked_through_in_portions(event_store, monkeypatch):
    monkeypatch.setattr(store_search, "ENTRIES_LOOKED_AT", 10)
    write(event_store, *(("lend" if number in (3, 34) else "grow", 7, str(number)) for number in range(45)))
    assert everything(event_store, kinds=("lend",)) == ["34", "3"]
    assert everything(event_store, node="12") == ["12"]
    assert everything(event_store, kinds=("drop",)) == []
    assert everything(event_store, job_id=7, kinds=("lend",)) == ["34", "3"]


def test_a_search_since_a_time_does_not_go_on_to_the_event_store_beginning(event_store, monkeypatch):
    monkeypatch.setattr(store_search, "ENTRIES_LOOKED_AT", 10)
    write(event_store, *(("grow", 7, str(number)) for number in range(100)))
    before, looks = 0, 0
    while looks == 0 or before:
        before, looks = (
            event_store.find(Search(since=NOW + 95, kinds=("lend",), before=before)).before,
            looks + 1,
        )
    assert looks <= 3
    assert everything(event_store, since=NOW + 95) == ["99", "98", "97", "96", "95"]


def test_what_is_new_since_an_entry_is_found_by_its_number(event_store):
    write(event_store, ("grow", 7, "a"), ("grow", 8, "b"))
    newest = event_store.find(Search()).newest
    assert event_store.find(Search(after=newest)).events == ()
    write(event_store, ("shrink", 7, "c"), ("shrink", 8, "d"))
    assert texts(event_store, after=newest) == ["d", "c"]
    assert texts(event_store, after=newest, job_id=8) == ["d"]
    assert everything(event_store, after=1) == ["d", "c", "b"]


def test_a_event_store_that_cannot_be_read_has_nothing_and_says_so(event_store, tmp_path):
    event_store.close()
    (tmp_path / "journal.sqlite").unlink()
    (tmp_path / "journal.sqlite").mkdir()
    assert event_store.find(Search()).events == ()
    assert "cannot be used" in event_store.trouble


@pytest.mark.parametrize("job_id", [1 << 63, (1 << 64) - 1])
def test_a_job_whose_number_sqlite_cannot_hold_has_no_events_and_is_no_trouble(
    event_store: EventStore, job_id: int
) -> None:
    write(event_store, ("grow", 6, "job 6 grows"))
    assert event_store.events(job_id, 10) == ()
    assert texts(event_store, job_id=job_id) == []
    assert event_store.trouble == ""
