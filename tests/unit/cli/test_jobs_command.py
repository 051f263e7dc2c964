"""`flexo jobs`: its columns, its filters, and a table that fits a terminal of 80 columns."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator

import pytest
from admin_server import serving
from busy_flexod import BusyFlexod, job
from command_line import Run

from flexo_protos.v1 import admin_pb2 as pb


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyFlexod]:
    monkeypatch.setenv("COLUMNS", "80")
    service = BusyFlexod(jobs=0)
    with serving(service, monkeypatch):
        yield service


def listed(out: str) -> list[str]:
    """The numbers of the jobs of a table."""
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_one_column_has_the_workers_and_the_range(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7), job(8, granted=6)]
    head, steady, growing = flexo_run("jobs")[1].splitlines()
    at = head.index("SIZE")
    assert steady[at:].split()[0] == "3/2-8"
    assert growing[at:].split()[0] == "3>6/2-8"


def test_no_line_of_a_large_site_is_longer_than_80_columns(flexod: BusyFlexod, flexo_run: Run) -> None:
    nodes = [f"gpu-node-{number}" for number in range(64)]
    flexod.jobs = [
        job(
            1_795_625_206_213_000_002,
            name="a-sweep-with-a-name-that-says-everything",
            user="a.long.name@cluster.example.org",
            workers=100,
            granted=128,
            max=128,
            wanted=120,
            progress=1.0,
            base_nodes=nodes,
            pending_command="profile of 2-128 workers",
            aggregation=pb.JobAggregation(satellites=4),
        )
    ]
    out = flexo_run("jobs")[1]
    assert all(len(line) <= 80 for line in out.splitlines())
    for whole in ("1795625206213000002", "100>128/2-128", "100%"):
        assert whole in out


def test_where_not_all_columns_fit_the_rarest_are_left_out(
    flexod: BusyFlexod, flexo_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    flexod.jobs = [job(7, wanted=4, aggregation=pb.JobAggregation(satellites=4))]
    head = flexo_run("jobs")[1].splitlines()[0]
    assert "CAP" in head
    assert "AGGREGATORS" not in head


def test_a_wider_terminal_is_used(
    flexod: BusyFlexod, flexo_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    flexod.jobs = [job(7, base_nodes=[f"n{number}" for number in range(40)])]
    assert "n39 n8+1" in flexo_run("jobs")[1]


def test_columns_that_are_asked_for_come_in_their_order_and_are_never_cut(
    flexod: BusyFlexod, flexo_run: Run
) -> None:
    flexod.jobs = [job(7, name="n" * 200, account="vision", partition="train")]
    head, row = flexo_run("jobs", "-o", "PARTITION,account,name,job,reason")[1].splitlines()
    assert head.split() == ["PARTITION", "ACCOUNT", "NAME", "JOB", "REASON"]
    assert row.split(maxsplit=4) == ["train", "vision", "n" * 200, "7", flexod.jobs[0].reasons[0]]


def test_wide_has_every_column(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7)]
    head = flexo_run("jobs", "-o", "wide")[1].splitlines()[0]
    assert {"NAME", "ACCOUNT", "PARTITION", "GRANTED", "REASON"} <= set(head.split())


def test_a_cap_has_a_column_as_soon_as_a_job_has_one(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7)]
    assert "CAP" not in flexo_run("jobs")[1]
    flexod.jobs.append(job(8, wanted=4))
    assert "CAP" in flexo_run("jobs")[1]


def test_scripts_leave_the_header_out(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7), job(8)]
    assert flexo_run("jobs", "--noheader", "-o", "job") == (0, "7\n8\n", "")
    flexod.jobs = []
    assert flexo_run("jobs", "--noheader") == (0, "", "")


def test_jobs_are_chosen_by_number_user_and_state_and_every_condition_counts(
    flexod: BusyFlexod, flexo_run: Run
) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    flexod.jobs = [job(7), job(8, user="bob"), job(9, user=me, suspended=True), job(10, granted=6)]
    flexod.jobs[3].grants[0].state = "warming"
    for line, numbers in (
        ([], ["7", "8", "9", "10"]),
        (["8", "10"], ["8", "10"]),
        (["-u", "bob"], ["8"]),
        (["--user", "ada,bob"], ["7", "8", "10"]),
        (["--me"], ["9"]),
        (["--me", "-u", "bob"], ["8", "9"]),
        (["--state", "suspended,resizing"], ["9", "10"]),
        (["-t", "TRAINING", "-u", "ada"], ["7"]),
        (["-t", "R"], ["7", "8", "10"]),
        (["-t", "all"], ["7", "8", "9", "10"]),
        (["-p", "train"], []),
    ):
        assert listed(flexo_run("jobs", *line)[1]) == numbers, line
    assert json.loads(flexo_run("jobs", "-u", "bob", "--json")[1])["jobs"][0]["job_id"] == 8
    assert flexo_run("jobs", "-u", "eve") == (0, "no such elastic jobs\n", "")


def pending(number: int, **changes: object) -> pb.WaitingJob:
    """Waits for 2-8 workers."""
    plain = pb.WaitingJob(
        job_id=number, user="ada", min=2, max=8, reason="Priority", waits_for="for resources, or its turn"
    )
    plain.MergeFrom(pb.WaitingJob(**changes))
    return plain


def test_pending_jobs_come_last_with_the_clusters_reason(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs, flexod.waiting = [job(9)], [pending(8, name="bert"), pending(7)]
    flexod.waiting[1].ClearField("reason")
    _, running, waiting, unexplained = flexo_run("jobs")[1].splitlines()
    assert running.split()[0] == "9"
    assert waiting.split() == ["8", "bert", "ada", "0/2-8", "pending", "(Priority)"]
    assert unexplained.split() == ["7", "ada", "0/2-8", "pending"]


def test_pending_jobs_are_chosen_as_running_ones_are(flexod: BusyFlexod, flexo_run: Run) -> None:
    theirs = pending(9, user="bob", account="vision", partition="train,big")
    flexod.jobs, flexod.waiting = [job(7)], [pending(8), theirs]
    for line, numbers in (
        ([], ["7", "8", "9"]),
        (["--state", "pending"], ["8", "9"]),
        (["-t", "PD"], ["8", "9"]),
        (["-A", "vision", "-p", "big"], ["9"]),
        (["-t", "pending,training", "-u", "ada"], ["7", "8"]),
        (["9"], ["9"]),
    ):
        assert listed(flexo_run("jobs", *line)[1]) == numbers, line
    assert flexo_run("jobs", "-t", "training", "8") == (0, "no such elastic jobs\n", "")


def test_a_pending_job_has_every_column_of_its_own(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.waiting = [pending(8, name="n" * 90, account="vision", partition="train,big", starts_at=1.0)]
    wanted = "partition,account,range,name,reason"
    (row,) = flexo_run("jobs", "--noheader", "-o", wanted)[1].splitlines()
    assert row.split(maxsplit=4)[:4] == ["train,big", "vision", "2-8", "n" * 90]
    assert "for resources, or its turn" in row
    assert all(len(line) <= 80 for line in flexo_run("jobs")[1].splitlines())
    (found,) = json.loads(flexo_run("jobs", "--json")[1])["waiting"]
    assert (found["job_id"], found["partition"], found["reason"]) == (8, "train,big", "Priority")


def test_a_job_that_does_not_run_is_refused_by_its_number(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7)]
    code, out, err = flexo_run("jobs", "7", "99")
    assert (code, out) == (1, "")
    assert "99" in err


@pytest.mark.parametrize(
    ("line", "named"),
    [(["-o", "job,pet"], ("'pet'", "partition", "wide")), (["--state", "sad"], ("'sad'", "no-leader"))],
)
def test_a_wrong_column_or_state_is_a_usage_error_that_names_what_is_allowed(
    flexod: BusyFlexod, flexo_run: Run, line: list[str], named: tuple[str, ...]
) -> None:
    code, _, err = flexo_run("jobs", *line)
    assert code == 2
    assert all(word in err for word in named)


def test_the_json_has_name_account_and_partition(flexod: BusyFlexod, flexo_run: Run) -> None:
    flexod.jobs = [job(7, name="sweep", partition="train")]
    (found,) = json.loads(flexo_run("jobs", "--json")[1])["jobs"]
    assert (found["name"], found["account"], found["partition"]) == ("sweep", None, "train")
