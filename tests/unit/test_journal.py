"""The journal tells what happened, and nothing that happens to it stops flexod."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from flexo.events import Event
from flexo.journal import Journal
from flexo.journal_file import is_damage
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu
from flexo.model.queue import JobKey

NOW = 1_000_000.0
DAY_S = 86_400.0
JOB = JobKey(7)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path):
    opened = Journal(path, keep_days=30)
    yield opened
    opened.close()


def event(text: str, job: JobKey | None = JOB, kind: str = "grow", at: float = NOW) -> Event:
    return Event(at, kind, job, text)


def texts(journal: Journal, job_id: int | None = None, **options) -> list[str]:
    return [found.text for found in journal.events(job_id, 100, **options)]


def test_events_come_back_newest_first_and_by_job(journal):
    journal.record(NOW, (event("one"), event("two", JobKey(8, 1))))
    journal.record(NOW + 1, (event("three", None),))
    assert texts(journal) == ["three", "two", "one"]
    assert journal.events(8, 10) == (Event(NOW, "grow", JobKey(8, 1), "two"),)
    assert len(journal.events(None, 2)) == 2


def test_every_restart_of_a_job_is_told_under_its_number(journal):
    journal.record(NOW, (event("before", JobKey(7, 0)), event("after", JobKey(7, 1))))
    assert texts(journal, 7) == ["after", "before"]


def test_extended_leases_are_kept_and_told_only_when_asked_for(journal):
    journal.record(NOW, (event("grew"), event("extended", kind="extend")))
    assert texts(journal, 7) == ["grew"]
    assert texts(journal, 7, routine=True) == ["extended", "grew"]


def test_an_action_leads_to_the_facts_that_it_went_by(journal):
    grew = event("grew")
    journal.record(NOW, (grew,), json.dumps({"idle": {"t1": 2}}))
    assert json.loads(journal.facts_of(grew)) == {"idle": {"t1": 2}}
    assert journal.facts_of(event("never happened")) == ""


def test_entries_are_kept_as_long_as_the_administrator_says(path):
    journal = Journal(path, keep_days=2)
    journal.record(NOW, (event("old"),), "{}")
    journal.record(NOW + 3 * DAY_S, (event("new", at=NOW + 3 * DAY_S),))
    assert texts(journal) == ["new"]
    journal.close()
    assert sqlite3.connect(path).execute("SELECT count(*) FROM snapshot").fetchone() == (0,)


def test_caps_outlive_a_restart(path):
    journal = Journal(path, 30)
    journal.set_cap(JOB, 3)
    journal.set_cap(JobKey(8), 2)
    journal.set_cap(JobKey(8), None)
    journal.set_cap(JOB, 4)
    journal.close()
    assert Journal(path, 30).caps() == {JOB: 4}


def test_profiles_outlive_a_restart_and_a_newer_one_replaces_the_older(path):
    journal = Journal(path, 30)
    old = tuple(ScalingPoint(size, 1.0, 2.0, 0.1, 1.0, 20, NOW) for size in (1, 2, 3))
    new = (ScalingPoint(2, 9.0, 1.0, 0.2, 0.9, 10, NOW + 5),)
    journal.set_scaling(JOB, old)
    journal.set_scaling(JobKey(8), old)
    journal.set_scaling(JOB, new)
    journal.close()
    assert Journal(path, 30).scaling() == {JOB: new, JobKey(8): old}


def test_slow_gpus_are_remembered_until_their_time(path):
    journal = Journal(path, 30)
    known = SlowGpu("n1", (0, 3), 1.5, JOB, NOW, NOW + 10)
    unknown = SlowGpu("n2", (), 2.0, JOB, NOW, NOW + 20)
    for gpu in (known, unknown, known):
        journal.set_slow_gpu(gpu)
    journal.close()
    assert Journal(path, 30).slow_gpus(NOW + 5) == (known, unknown)
    assert Journal(path, 30).slow_gpus(NOW + 15) == (unknown,)


def test_a_journal_of_the_first_version_is_taken_over_with_its_caps(path):
    journal = Journal(path, 30)
    journal.set_cap(JOB, 3)
    journal.close()
    with sqlite3.connect(path) as raw:
        tables = raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (name,) in tables:
            if name not in ("snapshot", "event", "cap"):
                raw.execute(f"DROP TABLE {name}")
        raw.execute("PRAGMA user_version = 1")
    raw.close()
    journal = Journal(path, 30)
    assert journal.caps() == {JOB: 3}
    journal.set_scaling(JOB, [])
    assert not journal.trouble


def test_running_times_outlive_a_restart_and_grow_old(path):
    journal = Journal(path, 30)
    times = (RunningTime("ada", 2, 60.0, NOW), RunningTime("bob", 8, 5.5, NOW + 1))
    journal.add_running_times(reversed(times))
    journal.add_running_times(())
    journal.close()
    journal = Journal(path, 30)
    assert journal.running_times() == times
    journal.record(NOW + 30 * DAY_S + 0.5, (event("a month later"),))
    assert journal.running_times() == times[1:]
    journal.close()


def test_demand_outlives_a_restart_is_told_by_its_highest_in_each_step_and_grows_old(path):
    journal = Journal(path, 30)
    noted = [
        Demand(at, servers, "x") for at, servers in ((0.0, 3.0), (100.0, 5.0), (290.0, 4.0), (310.0, 1.5))
    ]
    for demand in reversed(noted):
        journal.add_demand(demand)
    journal.add_demand(noted[0])
    journal.close()
    journal = Journal(path, 30)
    assert journal.demand(0.0, 300.0) == (noted[1], noted[3])
    assert journal.demand(0.0, 1.0) == tuple(noted)
    assert journal.demand(300.0, 300.0) == (noted[3],)
    journal.record(30 * DAY_S + 300.0, (event("a month later", at=30 * DAY_S + 300.0),))
    assert journal.demand(0.0, 1.0) == (noted[3],)
    journal.close()


@pytest.mark.parametrize(
    "damage", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(path, damage, capsys):
    path.write_bytes(damage)
    journal = Journal(path, 30)
    journal.record(NOW, (event("alive"),))
    assert texts(journal) == ["alive"]
    assert journal.trouble == ""
    (aside,) = path.parent.glob("journal.sqlite.damaged-*")
    assert aside.read_bytes() == damage
    assert "damaged" in capsys.readouterr().out


def test_a_database_of_somebody_else_s_is_moved_aside(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (id)")
        other.execute("PRAGMA user_version = 1")
    journal = Journal(path, 30)
    journal.record(NOW, (event("alive"),))
    assert texts(journal) == ["alive"]
    assert list(path.parent.glob("journal.sqlite.damaged-*"))


def test_a_file_that_is_damaged_while_it_is_in_use_is_replaced(path):
    journal = Journal(path, 30)
    for number in range(200):
        journal.record(NOW, (event(f"event {number} " + "x" * 500),))
    journal.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_000)
    journal.record(NOW, (event("alive"),))
    assert texts(journal)[0] == "alive"
    assert list(path.parent.glob("journal.sqlite.damaged-*"))


def test_a_text_that_is_no_utf8_is_written_escaped_and_the_file_stays(journal, path):
    journal.record(NOW, (event("before"),))
    journal.record(NOW, (event("half a \udce4 character"), event("beside it")))
    assert journal.trouble == ""
    beside, half, before = texts(journal)
    assert (beside, before) == ("beside it", "before")
    assert "udce4" in half
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_value_that_sqlite_does_not_take_costs_that_entry_and_not_the_file(journal, path):
    journal.record(NOW, (event("before"),))
    journal.set_cap(JobKey(8), 4)
    journal.set_cap(JOB, 1 << 70)
    assert "OverflowError" in journal.trouble
    journal.add_demand(Demand(NOW, 1.0, "half a \udce4 character"))
    assert "UnicodeEncodeError" in journal.trouble
    assert journal.failures == 2
    journal.record(NOW, (event("after"),))
    assert journal.trouble == ""
    assert texts(journal) == ["after", "before"]
    assert journal.caps() == {JobKey(8): 4}
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_row_that_makes_no_sense_is_skipped_and_the_file_stays(journal, path):
    journal.record(NOW, (event("before"),))
    for node in ("t1", "t2"):
        journal.set_slow_gpu(SlowGpu(node, (0, 3), 1.5, JOB, NOW, NOW + 10))
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE slow_gpu SET gpus = '0,x' WHERE node = 't1'")
    assert [gpu.node for gpu in journal.slow_gpus(NOW)] == ["t2"]
    assert texts(journal) == ["before"]
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


def test_loans_and_what_became_of_them_outlive_a_restart(journal, path):
    loans = (
        Loan("i1", NOW - 50, "spare"),
        Loan("i2", NOW - 90, "spare", LoanState.CALLED_BACK, NOW, NOW + 180, "demand", 4, 2, 1),
    )
    journal.set_loans((*loans, Loan("i3", NOW, "gone soon")))
    past = PastLoan("i3", NOW - 9, "spare", NOW - 5, NOW + 175, "demand", NOW - 3, NOW, 4, 1, 2)
    journal.set_loans(loans, (replace(past, node="i4", called_back_at=None, deadline_at=None), past))
    journal.close()
    again = Journal(path, 30)
    assert again.loans() == loans
    assert [loan.node for loan in again.past_loans(10)] == ["i3", "i4"]
    assert again.past_loans(1) == (past,)
    assert past.reclaim_s == 2.0
    assert not past.late
    assert again.past_loans(10)[1].reclaim_s is None


def test_servers_that_are_left_alone_outlive_a_restart_until_others_are(journal, path):
    alone = (LeftAlone("i1", NOW + 10), LeftAlone("i2", NOW + 3600))
    journal.set_loans((), (), reversed(alone))
    journal.close()
    again = Journal(path, 30)
    assert again.left_alone() == alone
    again.set_loans((), (), alone[:1])
    assert again.left_alone() == alone[:1]


def test_a_loan_in_a_state_that_is_not_known_is_one_that_is_called_back_and_says_so(journal, path):
    journal.set_loans([Loan("i1", NOW - 50, "spare", LoanState.LENT)])
    journal.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE loan SET state = 'mislaid'")
    raw.close()
    (loan,) = Journal(path, 30).loans()
    assert loan.state is LoanState.CALLED_BACK
    assert loan.why_back == "the journal has it in a state that is not known, 'mislaid'"
    assert (loan.node, loan.since_at, loan.deadline_at) == ("i1", NOW - 50, None)


def test_a_file_that_is_deleted_while_it_is_in_use_is_begun_anew(journal, path):
    journal.record(NOW, (event("lost"),))
    for file in path.parent.glob("journal.sqlite*"):
        file.unlink()
    journal.record(NOW, (event("alive"),))
    assert texts(journal) == ["alive"]
    assert path.exists()


def test_a_disk_that_is_full_is_trouble_and_nothing_worse(journal):
    journal.record(NOW, (event("before"),))
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")
    journal.record(NOW, (event("too much " * 10_000), event("and more")))
    assert "full" in journal.trouble
    # a new connection has no such bound: the disk has room again
    journal.record(NOW + 1, (event("after"),))
    assert journal.trouble == ""
    assert texts(journal)[0] == "after"
    assert texts(journal)[1].startswith("2 events before this one could not be written")
    assert texts(journal)[-1] == "before"


def test_a_place_that_cannot_be_written_is_trouble_and_nothing_worse(tmp_path):
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "journal.sqlite", 30)
    journal.record(NOW, (event("lost"),))
    assert "cannot be used" in journal.trouble
    assert journal.events(None, 5) == ()
    assert journal.caps() == {}


def test_a_kill_at_any_moment_leaves_whole_entries(path):
    """Each entry of the writer is two events and a snapshot; after a SIGKILL there are both or neither."""
    writer = (
        "import sys; from pathlib import Path; from flexo.journal import *\n"
        "from flexo.model.queue import JobKey\n"
        "journal = Journal(Path(sys.argv[1]), 30)\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    pair = tuple(Event(float(number), 'grow', JobKey(7), half) for half in ('left', 'right'))\n"
        "    journal.record(float(number), pair, str(number))\n"
    )
    for wait_s in (0.0, 0.02, 0.05, 0.1):
        process = subprocess.Popen([sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        journal = Journal(path, 30)
        found = [(each.at, each.text) for each in journal.events(None, 10**6)]
        journal.close()
        assert not list(path.parent.glob("*.damaged-*"))
        assert found[0::2] == [(at, "right") for at, _ in found[0::2]]
        assert found[1::2] == [(at, "left") for at, _ in found[0::2]]
        rows = sqlite3.connect(path).execute("SELECT count(*) FROM snapshot").fetchone()[0]
        assert rows == len(found) // 2
    assert found
