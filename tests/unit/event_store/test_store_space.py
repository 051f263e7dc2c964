"""The event store stays within its bytes, and one job's noise costs that job's history only."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flexo.config import ConfigError, parse
from flexo.event_store.search import Search
from flexo.event_store.space import used_bytes
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.measured import ScalingPoint
from flexo.model.queue import JobKey

MIB = 1 << 20
NOISY, QUIET = JobKey(7), JobKey(8)
MEASURED = tuple(ScalingPoint(size, 1.1, 0.1, 0.1, 0.9, 10, 5.0) for size in range(1, 1001))


@pytest.fixture
def event_store(tmp_path: Path) -> Iterator[EventStore]:
    made = EventStore(tmp_path / "journal.sqlite", 30, max_mib=2)
    yield made
    made.close()


def noise(event_store: EventStore, rounds: int, job: JobKey | None = NOISY, facts: str = "") -> None:
    for second in range(rounds):
        events = tuple(
            Event(float(second), "scale", job, f"{second} {number} " + "x" * 100) for number in range(200)
        )
        event_store.record(float(second), events, facts)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_a_loop_of_commands_does_not_fill_the_disk(event_store: EventStore, tmp_path: Path) -> None:
    noise(event_store, 300)
    assert event_store.trouble == ""
    assert (tmp_path / "journal.sqlite").stat().st_size < 3 * MIB
    assert size(tmp_path) < 10 * MIB, "with SQLite's own log"
    newest = event_store.events(NOISY.job_id, 1)[0]
    assert newest.text.startswith("299 199 ")


def test_one_jobs_noise_costs_no_other_jobs_history(event_store: EventStore) -> None:
    event_store.record(
        0.0, (Event(0.0, "grow", QUIET, "2 workers"), Event(0.0, "daemon", None, "flexod begins"))
    )
    noise(event_store, 300)
    kept = Counter(event.job for event in event_store.events(None, 1_000_000))
    assert kept[QUIET] == kept[None] == 1
    assert kept[NOISY] < 300 * 200


def test_noise_of_nobodys_job_goes_too_the_oldest_first(event_store: EventStore, tmp_path: Path) -> None:
    noise(event_store, 200, None)
    assert (tmp_path / "journal.sqlite").stat().st_size < 3 * MIB
    kept = event_store.events(None, 1_000_000)
    assert kept[0].text.startswith("199 199 ")
    assert not kept[-1].text.startswith("0 0 ")


def test_large_pictures_of_few_events_stay_within_the_bytes(event_store: EventStore, tmp_path: Path) -> None:
    for second in range(100):
        event = Event(float(second), "grow", QUIET, f"{second}")
        event_store.record(float(second), (event,), "y" * 100_000)
    assert (tmp_path / "journal.sqlite").stat().st_size < 3 * MIB
    ((number, newest),) = event_store.find(Search(job_id=QUIET.job_id, limit=1)).events
    assert newest.text == "99"
    assert event_store.facts_of((number,))[number] == "y" * 100_000


def test_what_profiles_measured_costs_nobodys_history(event_store: EventStore) -> None:
    noise(event_store, 3, QUIET)
    for number in range(40):
        event_store.set_scaling(
            JobKey(1000 + number),
            [ScalingPoint(size, 1.1, 0.1, 0.1, 0.9, 10, 5.0) for size in range(1, 1001)],
        )
    noise(event_store, 3, QUIET)
    assert len(event_store.events(None, 1_000_000)) == 6 * 200
    noise(event_store, 300)
    kept = Counter(event.job for event in event_store.events(None, 1_000_000))
    assert kept[QUIET] > 0
    assert kept[NOISY] > 1_000


def test_events_stay_within_their_bytes_beside_what_profiles_measured(
    event_store: EventStore, tmp_path: Path
) -> None:
    for number in range(40):
        event_store.set_scaling(
            JobKey(1000 + number),
            [ScalingPoint(size, 1.1, 0.1, 0.1, 0.9, 10, 5.0) for size in range(1, 1001)],
        )
    before = size(tmp_path)
    noise(event_store, 300)
    assert (tmp_path / "journal.sqlite").stat().st_size < before + 3 * MIB


def test_the_whole_file_stays_within_its_bytes_beside_what_is_bounded_elsewhere(
    event_store: EventStore, tmp_path: Path
) -> None:
    for number in range(3):
        event_store.set_scaling(JobKey(1000 + number), MEASURED)
    for _ in range(100):
        noise(event_store, 1)
        with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as file:
            assert used_bytes(file) <= 2 * MIB


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"all"'])
def test_a_store_of_no_bytes_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="max_mib"):
        parse(f"[event_store]\nmax_mib = {value}\n", "flexo.toml")
