"""The event store tells what happened, and nothing that happens to it stops flexod."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from says import says

from flexo.event_store.file import is_damage
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.elastic import Cap
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu
from flexo.model.queue import JobKey

NOW = 1_000_000.0
DAY_S = 86_400.0
JOB = JobKey(7)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


def hours():
    """A monotonic clock that is read once an hour: everything is pruned that is old enough."""
    return count(0.0, 3600.0).__next__


@pytest.fixture
def event_store(path):
    opened = EventStore(path, keep_days=30)
    yield opened
    opened.close()


def event(text: str, job: JobKey | None = JOB, kind: str = "grow", at: float = NOW) -> Event:
    return Event(at, kind, job, text)


def texts(event_store: EventStore, job_id: int | None = None, **options) -> list[str]:
    return [found.text for found in event_store.events(job_id, 100, **options)]


def test_events_come_back_newest_first_and_by_job(event_store):
    event_store.record(NOW, (event("one"), event("two", JobKey(8, 1))))
    event_store.record(NOW + 1, (event("three", None),))
    assert texts(event_store) == ["three", "two", "one"]
    assert event_store.events(8, 10) == (Event(NOW, "grow", JobKey(8, 1), "two"),)
    assert len(event_store.events(None, 2)) == 2


def test_every_restart_of_a_job_is_told_under_its_number(event_store):
    event_store.record(NOW, (event("before", JobKey(7, 0)), event("after", JobKey(7, 1))))
    assert texts(event_store, 7) == ["after", "before"]


def test_extended_leases_are_kept_and_told_only_when_asked_for(event_store):
    event_store.record(NOW, (event("grew"), event("extended", kind="extend")))
    assert texts(event_store, 7) == ["grew"]
    assert texts(event_store, 7, routine=True) == ["extended", "grew"]


def test_an_action_leads_to_the_facts_that_it_went_by(event_store):
    grew = event("grew")
    event_store.record(NOW, (grew,), json.dumps({"idle": {"t1": 2}}))
    event_store.record(NOW, (event("of a cycle without facts"),))
    assert {number: json.loads(facts) for number, facts in event_store.facts_of((1, 2, 99)).items()} == {
        1: {"idle": {"t1": 2}}
    }


def test_entries_are_kept_as_long_as_the_administrator_says(path):
    event_store = EventStore(path, keep_days=2, monotonic=hours())
    event_store.record(NOW, (event("old"),), "{}")
    event_store.record(NOW + 3 * DAY_S, (event("new", at=NOW + 3 * DAY_S),))
    assert texts(event_store) == ["new"]
    event_store.close()
    assert sqlite3.connect(path).execute("SELECT count(*) FROM snapshot").fetchone() == (0,)


def test_a_clock_that_is_wrong_until_the_host_hears_of_the_time_deletes_no_history(path):
    event_store = EventStore(path, keep_days=30)
    event_store.record(NOW, (event("old"),))
    event_store.close()
    event_store = EventStore(path, keep_days=30)
    event_store.record(NOW + 40 * DAY_S, (event("begun", at=NOW + 40 * DAY_S),))
    event_store.record(NOW + 60, (event("right again", at=NOW + 60),))
    assert "old" in texts(event_store)
    event_store.close()


def test_running_times_of_jobs_with_a_part_of_a_gpu_are_kept(path):
    event_store = EventStore(path, 30)
    event_store.add_running_times([RunningTime("ada", Fraction(1, 2), 60.0, NOW)])
    assert (event_store.trouble, event_store.failures) == ("", 0)
    assert event_store.running_times() == (RunningTime("ada", 1, 60.0, NOW),)
    event_store.close()


def test_caps_outlive_a_restart(path):
    event_store = EventStore(path, 30)
    event_store.set_cap(JOB, Cap(3))
    event_store.set_cap(JobKey(8), Cap(2))
    event_store.set_cap(JobKey(8), None)
    event_store.set_cap(JOB, Cap(4, frozenset({"t2", "t1"})))
    event_store.set_cap(JobKey(9), Cap(5))
    event_store.close()
    assert EventStore(path, 30).caps() == {JOB: Cap(4, frozenset({"t1", "t2"})), JobKey(9): Cap(5)}


def test_profiles_outlive_a_restart_and_a_newer_one_replaces_the_older(path):
    event_store = EventStore(path, 30)
    old = tuple(ScalingPoint(size, 1.0, 2.0, 0.1, 1.0, 20, NOW) for size in (1, 2, 3))
    new = (ScalingPoint(2, 9.0, 1.0, 0.2, 0.9, 10, NOW + 5),)
    event_store.set_scaling(JOB, old)
    event_store.set_scaling(JobKey(8), old)
    event_store.set_scaling(JOB, new)
    event_store.close()
    assert EventStore(path, 30).scaling() == {JOB: new, JobKey(8): old}


def test_slow_gpus_are_remembered_until_their_time(path):
    event_store = EventStore(path, 30)
    known = SlowGpu("n1", (0, 3), 1.5, JOB, NOW, NOW + 10)
    unknown = SlowGpu("n2", (), 2.0, JOB, NOW, NOW + 20)
    for gpu in (known, unknown, known):
        event_store.set_slow_gpu(gpu)
    event_store.close()
    assert EventStore(path, 30).slow_gpus(NOW + 5) == (known, unknown)
    assert EventStore(path, 30).slow_gpus(NOW + 15) == (unknown,)


def test_a_event_store_of_the_first_version_is_taken_over_with_its_caps(path):
    event_store = EventStore(path, 30)
    event_store.set_cap(JOB, Cap(3))
    event_store.close()
    with sqlite3.connect(path) as raw:
        tables = raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (name,) in tables:
            if name not in ("snapshot", "event", "cap"):
                raw.execute(f"DROP TABLE {name}")
        raw.execute("ALTER TABLE cap DROP COLUMN nodes")
        raw.execute("ALTER TABLE cap DROP COLUMN who")
        raw.execute("PRAGMA user_version = 1")
    raw.close()
    event_store = EventStore(path, 30)
    assert event_store.caps() == {JOB: Cap(3)}
    event_store.set_scaling(JOB, [])
    assert not event_store.trouble


def test_running_times_outlive_a_restart_and_grow_old(path):
    event_store = EventStore(path, 30)
    times = (RunningTime("ada", 2, 60.0, NOW), RunningTime("bob", 8, 5.5, NOW + 1))
    event_store.add_running_times(reversed(times))
    event_store.add_running_times(())
    event_store.close()
    event_store = EventStore(path, 30, monotonic=hours())
    assert event_store.running_times() == times
    event_store.record(NOW + 30 * DAY_S + 0.5, (event("a month later"),))
    assert event_store.running_times() == times[1:]
    event_store.close()


def test_demand_outlives_a_restart_is_told_by_its_highest_in_each_step_and_grows_old(path):
    event_store = EventStore(path, 30)
    noted = [
        Demand(at, servers, "x") for at, servers in ((0.0, 3.0), (100.0, 5.0), (290.0, 4.0), (310.0, 1.5))
    ]
    for demand in reversed(noted):
        event_store.add_demand(demand)
    event_store.add_demand(noted[0])
    event_store.close()
    event_store = EventStore(path, 30, monotonic=hours())
    assert event_store.demand(0.0, 300.0) == (noted[1], noted[3])
    assert event_store.demand(0.0, 1.0) == tuple(noted)
    assert event_store.demand(300.0, 300.0) == (noted[3],)
    event_store.record(30 * DAY_S + 300.0, (event("a month later", at=30 * DAY_S + 300.0),))
    assert event_store.demand(0.0, 1.0) == (noted[3],)
    event_store.close()


@pytest.mark.parametrize(
    "damage", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(path, damage, capsys):
    path.write_bytes(damage)
    event_store = EventStore(path, 30)
    event_store.record(NOW, (event("alive"),))
    assert texts(event_store) == ["alive"]
    assert event_store.trouble == ""
    (aside,) = path.parent.glob("journal.sqlite.damaged-*")
    assert aside.read_bytes() == damage
    assert "damaged" in capsys.readouterr().out


def test_a_database_of_somebody_else_s_is_moved_aside(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (id)")
        other.execute("PRAGMA user_version = 1")
    event_store = EventStore(path, 30)
    event_store.record(NOW, (event("alive"),))
    assert texts(event_store) == ["alive"]
    assert list(path.parent.glob("journal.sqlite.damaged-*"))


def test_a_file_that_is_damaged_while_it_is_in_use_is_replaced(path):
    event_store = EventStore(path, 30)
    for number in range(200):
        event_store.record(NOW, (event(f"event {number} " + "x" * 500),))
    event_store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_000)
    event_store.record(NOW, (event("alive"),))
    assert texts(event_store)[0] == "alive"
    assert list(path.parent.glob("journal.sqlite.damaged-*"))


def test_a_text_that_is_no_utf8_is_written_escaped_and_the_file_stays(event_store, path):
    event_store.record(NOW, (event("before"),))
    event_store.record(NOW, (event("half a \udce4 character"), event("beside it")))
    assert event_store.trouble == ""
    beside, half, before = texts(event_store)
    assert (beside, before) == ("beside it", "before")
    assert "udce4" in half
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_value_that_sqlite_does_not_take_costs_that_entry_and_not_the_file(event_store, path):
    event_store.record(NOW, (event("before"),))
    event_store.set_cap(JobKey(8), Cap(4))
    event_store.set_cap(JOB, Cap(1 << 70))
    assert "OverflowError" in event_store.trouble
    event_store.add_demand(Demand(NOW, 1.0, "half a \udce4 character"))
    assert "UnicodeEncodeError" in event_store.trouble
    assert event_store.failures == 2
    event_store.record(NOW, (event("after"),))
    assert event_store.trouble == ""
    assert texts(event_store) == ["after", "before"]
    assert event_store.caps() == {JobKey(8): Cap(4)}
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_row_that_makes_no_sense_is_skipped_and_the_file_stays(event_store, path):
    event_store.record(NOW, (event("before"),))
    for node in ("t1", "t2"):
        event_store.set_slow_gpu(SlowGpu(node, (0, 3), 1.5, JOB, NOW, NOW + 10))
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE slow_gpu SET gpus = '0,x' WHERE node = 't1'")
    assert [gpu.node for gpu in event_store.slow_gpus(NOW)] == ["t2"]
    assert texts(event_store) == ["before"]
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize(
    ("code", "damaged"),
    [
        (sqlite3.SQLITE_CORRUPT, True),
        (sqlite3.SQLITE_CORRUPT_INDEX, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_BUSY, False),
        (sqlite3.SQLITE_CONSTRAINT_NOTNULL, False),
        (sqlite3.SQLITE_READONLY_DBMOVED, False),
    ],
)
def test_only_sqlites_own_word_for_corruption_counts_as_damage(code, damaged):
    error = sqlite3.DatabaseError("as the test says")
    error.sqlite_errorcode = code
    assert is_damage(error) is damaged
    assert not is_damage(ValueError("as the test says"))


def test_loans_and_what_became_of_them_outlive_a_restart(event_store, path):
    loans = (
        Loan("i1", NOW - 50, "spare"),
        Loan("i2", NOW - 90, "spare", LoanState.RECLAIMING, NOW, NOW + 180, "demand", 4, 2, 1),
    )
    event_store.set_loans((*loans, Loan("i3", NOW, "gone soon")))
    past = PastLoan("i3", NOW - 9, "spare", NOW - 5, NOW + 175, "demand", NOW - 3, NOW, 4, 1, 2)
    event_store.set_loans(loans, (replace(past, node="i4", called_back_at=None, deadline_at=None), past))
    event_store.close()
    again = EventStore(path, 30)
    assert again.loans() == loans
    assert [loan.node for loan in again.past_loans(10)] == ["i3", "i4"]
    assert again.past_loans(1) == (past,)
    assert past.reclaim_s == 2.0
    assert not past.late
    assert again.past_loans(10)[1].reclaim_s is None


def test_servers_that_are_left_alone_outlive_a_restart_until_others_are(event_store, path):
    alone = (LeftAlone("i1", NOW + 10), LeftAlone("i2", NOW + 3600))
    event_store.set_loans((), (), reversed(alone))
    event_store.close()
    again = EventStore(path, 30)
    assert again.left_alone() == alone
    again.set_loans((), (), alone[:1])
    assert again.left_alone() == alone[:1]


def test_a_loan_in_a_state_that_is_not_known_is_one_that_is_called_back_and_says_so(event_store, path):
    event_store.set_loans([Loan("i1", NOW - 50, "spare", LoanState.LENT)])
    event_store.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE loan SET state = 'mislaid'")
    raw.close()
    (loan,) = EventStore(path, 30).loans()
    assert loan.state is LoanState.RECLAIMING
    assert says(loan.why_back, "state", "'mislaid'")
    assert (loan.node, loan.since_at, loan.deadline_at) == ("i1", NOW - 50, None)


def test_a_file_that_is_deleted_while_it_is_in_use_is_begun_anew(event_store, path):
    event_store.record(NOW, (event("lost"),))
    for file in path.parent.glob("journal.sqlite*"):
        file.unlink()
    event_store.record(NOW, (event("alive"),))
    assert texts(event_store) == ["alive"]
    assert path.exists()


def test_a_disk_that_is_full_is_trouble_and_nothing_worse(event_store):
    event_store.record(NOW, (event("before"),))
    pages = event_store._connection.execute("PRAGMA page_count").fetchone()[0]
    event_store._connection.execute(f"PRAGMA max_page_count = {pages}")
    event_store.record(NOW, (event("too much " * 10_000), event("and more")))
    assert "full" in event_store.trouble
    # a new connection has no such bound: the disk has room again
    event_store.record(NOW + 1, (event("after"),))
    assert event_store.trouble == ""
    assert texts(event_store)[0] == "after"
    assert says(texts(event_store)[1], "2 events")
    assert texts(event_store)[-1] == "before"


def test_a_place_that_cannot_be_written_is_trouble_and_nothing_worse(tmp_path):
    (tmp_path / "file").write_text("in the way")
    event_store = EventStore(tmp_path / "file" / "journal.sqlite", 30)
    event_store.record(NOW, (event("lost"),))
    assert "cannot be used" in event_store.trouble
    assert event_store.events(None, 5) == ()
    assert event_store.caps() == {}


@pytest.mark.processes
def test_a_kill_at_any_moment_leaves_whole_entries(path):
    """Each entry of the writer is two events and a snapshot; after a SIGKILL there are both or neither."""
    writer = (
        "import sys; from pathlib import Path; from flexo.event_store.store import *\n"
        "from flexo.model.queue import JobKey\n"
        "event_store = EventStore(Path(sys.argv[1]), 30)\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    pair = tuple(Event(float(number), 'grow', JobKey(7), half) for half in ('left', 'right'))\n"
        "    event_store.record(float(number), pair, str(number))\n"
    )
    for wait_s in (0.0, 0.02, 0.05, 0.1):
        process = subprocess.Popen([sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        event_store = EventStore(path, 30)
        found = [(each.at, each.text) for each in event_store.events(None, 10**6)]
        event_store.close()
        assert not list(path.parent.glob("*.damaged-*"))
        assert found[0::2] == [(at, "right") for at, _ in found[0::2]]
        assert found[1::2] == [(at, "left") for at, _ in found[0::2]]
        rows = sqlite3.connect(path).execute("SELECT count(*) FROM snapshot").fetchone()[0]
        assert rows == len(found) // 2
    assert found
