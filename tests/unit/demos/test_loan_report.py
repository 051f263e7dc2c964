"""What the demo of lending makes of what it saw: who waited for whom, what came back when, and what for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flexo_demos.elastic.queue import QueuedJob
from flexo_demos.loans import book
from flexo_demos.loans.book import LoanHistory, Returned
from flexo_demos.loans.looks import (
    BASE,
    IDLE,
    INFERENCE,
    SATELLITES,
    Look,
    nodes_of_partition,
    restarts_of,
)
from flexo_demos.loans.picture import Scene, draw
from flexo_demos.loans.report import (
    Found,
    InferenceJob,
    claims,
    lent_gpu_seconds,
    preemptions,
    reclaims_of,
    scaled_in,
    table,
    write,
)

pytestmark = pytest.mark.thorough

SERVERS = ("i1", "i2", "i3")
ELASTIC, FUNGIBLE, SATELLITE, REQUEST = 1, 2, 3, 9


def job(number: int, server: str, *, satellite: bool = False, runs: bool = True) -> QueuedJob:
    state = "RUNNING" if runs else "COMPLETED"
    return QueuedJob(number, state, "None", ((server, 2),) if runs else (), satellite)


def look(at: float, *jobs: QueuedJob, lent: str = "i1 i2", restarts: int = 0, needed: int = 0) -> Look:
    return Look(at, frozenset(lent.split()), needed, jobs, frozenset({REQUEST}), restarts)


SATELLITE_ON_I1 = job(SATELLITE, "i1", satellite=True)
BASE_ON_I2 = job(FUNGIBLE, "i2")
REQUEST_ON_I1 = job(REQUEST, "i1")


def returned(node: str, since: float, called: float, deadline: float, emptied: float) -> Returned:
    return Returned(node, since, called, deadline, emptied, "demand", 0)


def found(**fields: object) -> Found:
    usual: dict[str, object] = {
        "slurm_version": "22.05.8", "duration_s": 250.0, "servers": 3, "gpus_per_server": 2, "loans": 2,
        "reclaims": (), "inference": (), "bases_preempted": 0, "bases_preempted_needlessly": 0,
        "satellites_scaled_in": 1, "sizes": (1, 3, 1), "resizes_unclean": 0, "lent_gpu_s": 100.0,
    }  # fmt: skip
    return Found(**{**usual, **fields})  # type: ignore[arg-type]


def test_a_server_is_known_by_who_holds_it() -> None:
    seen = look(1, SATELLITE_ON_I1, BASE_ON_I2)
    assert [seen.on(server) for server in SERVERS] == [SATELLITES, BASE, IDLE]
    assert look(1, SATELLITE_ON_I1, REQUEST_ON_I1).on("i1") == INFERENCE
    assert look(1, job(SATELLITE, "i2", satellite=True), BASE_ON_I2).on("i2") == BASE
    assert [seen.trains_on(server) for server in SERVERS] == [True, True, False]


def test_slurms_words_are_read() -> None:
    line = "PartitionName=borrowed AllocNodes=ALL MaxNodes=UNLIMITED Nodes=i[1-2] PriorityJobFactor=1"
    assert nodes_of_partition(line) == {"i1", "i2"}
    assert nodes_of_partition(line.replace("i[1-2]", "(null)")) == frozenset()
    shown = "JobId=12 JobName=x\n   Requeue=1 Restarts=0\n\nJobId=1 JobName=y\n   Requeue=1 Restarts=3\n"
    assert [restarts_of(shown, number) for number in (12, 1, 7)] == [0, 3, 0]


def test_demand_begins_with_the_job_that_wanted_the_server_or_with_the_call() -> None:
    looks = [
        look(10, SATELLITE_ON_I1, BASE_ON_I2),
        look(11, SATELLITE_ON_I1, BASE_ON_I2),
        look(13, BASE_ON_I2),
        look(14, REQUEST_ON_I1, BASE_ON_I2),
        look(40),
    ]
    request = InferenceJob(REQUEST, 10.5, 13.8, "i1", SATELLITES, found_lent=True)
    loans = LoanHistory(returned=(returned("i1", 1, 12, 72, 14), returned("i2", 1, 15, 75, 39)))
    first, second = reclaims_of(looks, [request], loans)
    assert (first.server, first.demanded_at, first.empty_at, first.had_base) == ("i1", 10.5, 13, False)
    assert (second.server, second.demanded_at, second.empty_at, second.had_base) == ("i2", 15, 40, True)
    assert (first.seconds, second.seconds) == (2.5, 25.0)


def test_a_server_that_was_empty_when_it_was_wanted_is_no_reclaim() -> None:
    loans = LoanHistory(returned=(returned("i1", 1, 12, 72, 12),))
    assert reclaims_of([look(10), look(11), look(13)], [], loans) == ()


def test_a_deadline_is_missed_by_what_slurm_shows_and_not_by_what_flexod_says() -> None:
    looks = [look(10, SATELLITE_ON_I1), look(60, SATELLITE_ON_I1), look(80)]
    (reclaim,) = reclaims_of(looks, [], LoanHistory(returned=(returned("i1", 1, 10, 70, 65),)))
    assert reclaim.missed
    assert found(reclaims=(reclaim,)).deadline_missed == 1


def test_a_base_is_preempted_for_nothing_where_satellites_stood_on_an_open_server() -> None:
    looks = [look(10, SATELLITE_ON_I1, BASE_ON_I2), look(11, SATELLITE_ON_I1, restarts=1)]
    assert preemptions(looks, [(9, LoanHistory(frozenset(SERVERS)))]) == (1, 1)
    assert preemptions(looks, [(9, LoanHistory(frozenset(SERVERS), closed=frozenset({"i1"})))]) == (1, 0)
    assert preemptions([look(10, BASE_ON_I2), look(11, restarts=1)], []) == (1, 0)


def test_a_base_has_to_go_where_more_inference_jobs_wait_than_servers_have_satellites_alone() -> None:
    waiting = QueuedJob(REQUEST, "PENDING", "Resources", (), False)
    another = QueuedJob(REQUEST + 1, "PENDING", "Resources", (), False)
    for jobs, needless in (((waiting,), 1), ((waiting, another), 0)):
        before = replace(
            look(10, SATELLITE_ON_I1, BASE_ON_I2, *jobs), inference=frozenset({REQUEST, REQUEST + 1})
        )
        assert before.waiting == len(jobs)
        after = look(11, SATELLITE_ON_I1, restarts=1)
        assert preemptions([before, after], [(9, LoanHistory(frozenset(SERVERS)))]) == (1, needless)


def test_satellites_that_left_lent_servers_are_counted_and_those_elsewhere_are_not() -> None:
    stays, elsewhere = job(4, "i2", satellite=True), job(5, "t1", satellite=True)
    looks = [look(10, SATELLITE_ON_I1, stays, elsewhere), look(11, stays, elsewhere), look(12, stays)]
    assert scaled_in(looks) == 1
    assert scaled_in([]) == 0


def test_what_training_had_of_the_servers_is_counted_in_gpu_seconds() -> None:
    looks = [look(10, SATELLITE_ON_I1, BASE_ON_I2), look(12, REQUEST_ON_I1), look(20)]
    assert lent_gpu_seconds(looks, SERVERS) == 8.0


def test_waits_are_told_from_those_on_idle_servers_of_the_same_run() -> None:
    jobs = (
        InferenceJob(10, 0.0, 1.0, "i3", IDLE),
        InferenceJob(11, 10.0, 11.4, "i3", IDLE),
        InferenceJob(12, 20.0, 25.2, "i1", SATELLITES, found_lent=True),
        InferenceJob(13, 30.0, 60.2, "i2", BASE, found_lent=True),
        InferenceJob(14, 70.0),
        InferenceJob(15, 80.0, 80.5, "i1", IDLE, found_lent=True),
    )
    figures = found(inference=jobs)
    assert figures.idle_wait_s == 1.2
    assert (figures.delayed_s(SATELLITES), figures.delayed_s(BASE)) == ((4.0,), (29.0,))


WAITS = (
    InferenceJob(10, 0.0, 1.0, "i3", IDLE),
    InferenceJob(12, 20.0, 25.2, "i1", SATELLITES, found_lent=True),
    InferenceJob(13, 30.0, 37.0, "i2", BASE, found_lent=True),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"failure": "Slurm went away."},
        {"bases_preempted_needlessly": 1},
        {"resizes_unclean": 1},
        {"satellites_scaled_in": 0},
        {"sizes": (1,)},
        {"loans": 0},
        {"inference": ()},
        {"inference": WAITS[:-1]},
        {"inference": (*WAITS, InferenceJob(14, 30.0, 99.0, "i2", BASE, found_lent=True))},
    ],
)
def test_the_story_does_not_hold_when_something_went_wrong(fields: dict[str, object]) -> None:
    looks = [look(10, SATELLITE_ON_I1), look(13)]
    good = {
        "reclaims": reclaims_of(looks, [], LoanHistory(returned=(returned("i1", 1, 10, 70, 13),))),
        "inference": WAITS,
    }
    assert all(claim.holds for claim in claims(found(**good)))
    assert not all(claim.holds for claim in claims(found(**{**good, **fields})))
    assert table(found(**{**good, **fields}))


def test_the_report_has_the_keys_that_were_promised(tmp_path: Path) -> None:
    write(found(inference=(InferenceJob(10, 0.0, 1.0, "i3", IDLE),)), tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    promised = {
        "loans",
        "reclaims",
        "reclaim_s",
        "deadline_missed",
        "bases_preempted",
        "satellites_scaled_in",
    }
    assert document.keys() >= promised | {"inference_jobs_delayed_s"}


def test_flexods_list_of_loans_is_read_and_anything_else_is_named() -> None:
    loan = {"node": "i1", "since_at": 1.0, "called_back_at": 2.0, "deadline_at": 62.0}
    past = {**loan, "node": "i2", "empty_at": 9.0, "why_back": "demand", "bases_preempted": 1}
    open_loan = {**loan, "node": "i3", "called_back_at": None}
    text = json.dumps({"loans": [loan, open_loan], "past": [past]})
    read = book.parse(text)
    assert (read.standing, read.closed) == ({"i1", "i3"}, {"i1"})
    assert read.returned == (Returned("i2", 1.0, 2.0, 62.0, 9.0, "demand", 1),)
    with pytest.raises(ValueError, match="lacks 'past'"):
        book.parse(json.dumps({"loans": []}))


def test_the_picture_is_drawn_whatever_was_seen(tmp_path: Path) -> None:
    looks = [look(10, SATELLITE_ON_I1, BASE_ON_I2), look(12, REQUEST_ON_I1, needed=1), look(20)]
    reclaims = reclaims_of(looks, [], LoanHistory(returned=(returned("i1", 1, 10, 11, 12),)))
    jobs = [InferenceJob(REQUEST, 10.5, 12.0, "i1", SATELLITES, found_lent=True)]
    for seen in (looks, looks[:1]):
        draw(Scene(10.0, SERVERS, seen, jobs, reclaims), tmp_path / "loans.png")
        assert (tmp_path / "loans.png").read_bytes().startswith(b"\x89PNG")
