"""Which sentences hold, for which figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from says import says

from flexo_demos.elastic.measure import Balance, Course, Resize
from flexo_demos.elastic.report import Elastic, Loan, Report, Rigid, claims, elastic_of, table, write

pytestmark = pytest.mark.thorough

GREW = Resize(before=1, after=4, last_step=9, at=100.0, pause_s=0.4, clean=True)
SHRANK = Resize(before=4, after=1, last_step=19, at=203.0, pause_s=0.2, clean=True)
COURSE = Course(
    sizes=(1, 4, 1, 4), resizes=(GREW, SHRANK, replace(GREW, at=300.0)), steps_done=30, median_step_s=0.1
)
BALANCE = Balance(
    batches_planned=30,
    batches_committed=30,
    batches_lost=0,
    batches_repeated=0,
    batches_half_logged=0,
    samples_lost=0,
    samples_repeated=0,
    unreadable_lines=0,
)
RIGID = Rigid(
    job_id=5, nodes=2, gpus_per_node=3, submitted_at=200.0, nodes_with_room_at_submission=1, started_at=204.0
)


def elastic(
    course: Course = COURSE, balance: Balance = BALANCE, final: float | None = 0.97, rigid: Rigid = RIGID
) -> Elastic:
    return elastic_of(
        course,
        balance,
        job_id=1,
        ended_as="COMPLETED",
        final_accuracy=final,
        reference_accuracy=0.975,
        rigid=rigid,
    )


GOOD = Report(
    software="Slurm",
    slurm_version="22.05.8",
    horovod_version="0.28.1",
    duration_s=120.0,
    elastic=elastic(),
    rigid=RIGID,
    loan=None,
    satellites_seen=3,
    satellites_left=0,
    failure="",
)


def broken(report: Report) -> list[str]:
    return [claim.text for claim in claims(report) if not claim.holds]


def test_every_sentence_of_a_good_run_holds() -> None:
    assert broken(GOOD) == []


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (replace(GOOD, elastic=elastic(balance=replace(BALANCE, batches_lost=1))), "1 were lost"),
        (
            replace(GOOD, elastic=elastic(balance=replace(BALANCE, batches_half_logged=1))),
            "; 0 were lost",
        ),
        (replace(GOOD, elastic=elastic(balance=replace(BALANCE, batches_repeated=2))), "committed twice: 2"),
        (replace(GOOD, elastic=elastic(balance=replace(BALANCE, samples_lost=3))), "3 missing"),
        (replace(GOOD, elastic=elastic(balance=replace(BALANCE, samples_repeated=3))), "3 seen twice"),
        (replace(GOOD, elastic=elastic(course=replace(COURSE, resizes=(GREW, SHRANK)))), "1 times"),
        (replace(GOOD, elastic=elastic(final=0.96)), "within a point"),
        (replace(GOOD, elastic=elastic(final=None)), "unknown, is within a point"),
        (replace(GOOD, elastic=replace(elastic(), ended_as="FAILED")), "ended well: FAILED"),
        (replace(GOOD, rigid=replace(RIGID, started_at=210.5)), "10.5 s"),
        (replace(GOOD, rigid=replace(RIGID, nodes_with_room_at_submission=2)), "what the satellites held"),
        (replace(GOOD, satellites_left=1), "after its end: 1"),
        (replace(GOOD, satellites_left=None), "after its end: None"),
    ],
)
def test_a_figure_that_is_off_breaks_its_own_sentence_and_no_other(figures: Report, sentence: str) -> None:
    assert [sentence in text for text in broken(figures)] == [True]


def test_an_accuracy_of_exactly_a_point_less_is_good_enough() -> None:
    assert broken(replace(GOOD, elastic=elastic(final=0.965))) == []


@pytest.mark.parametrize(
    "shrink",
    [
        replace(SHRANK, clean=False),
        replace(SHRANK, at=199.0),
        replace(SHRANK, at=204.5),
        replace(SHRANK, before=1, after=4),
    ],
)
def test_a_shrink_that_is_torn_or_at_another_time_was_not_for_the_rigid_job(shrink: Resize) -> None:
    course = replace(COURSE, resizes=(GREW, shrink, GREW))
    assert not elastic(course=course).shrank_for_rigid


def test_a_rigid_job_that_never_started_is_told_as_such() -> None:
    waiting = replace(RIGID, started_at=None)
    report = replace(GOOD, rigid=waiting, elastic=elastic(rigid=waiting))
    assert any("never" in text for text in broken(report))
    assert ("rigid job waited", "did not start") in table(report)


LOAN = Loan(servers=2, workers=3, asked_at=250.0, served_at=252.0)


def test_a_story_with_inference_servers_says_what_became_of_them(tmp_path: Path) -> None:
    lent = replace(GOOD, software="YARN", loan=LOAN)
    assert broken(lent) == []
    assert ("inference waited", "2.0 s") in table(lent)
    write(lent, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["loan"]["wait_s"] == 2.0
    for bad in (replace(LOAN, workers=0), replace(LOAN, served_at=None), replace(LOAN, served_at=260.5)):
        assert len(broken(replace(lent, loan=bad))) == 1


def test_a_story_that_failed_says_its_one_sentence() -> None:
    report = replace(GOOD, failure="Not within 30 s: the elastic job starts.")
    assert broken(report) == ["Not within 30 s: the elastic job starts."]


def test_a_story_that_never_began_has_a_table_too() -> None:
    report = Report("Slurm", "", "", 3.0, None, None, None, 0, None, "slurmctld did not start")
    (left,) = [value for label, value in table(report) if says(label, "satellites", "left")]
    assert left == "0, unknown"


def test_the_file_names_its_figures_as_promised(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write(GOOD, path)
    document = json.loads(path.read_text())
    assert document["slurm_version"] == "22.05.8"
    assert document["horovod_version"] == "0.28.1"
    assert document["elastic"]["sizes"] == [1, 4, 1, 4]
    assert document["elastic"]["pause_out_s"] == [0.4, 0.4]
    assert document["elastic"]["pause_in_s"] == [0.2]
    assert document["elastic"]["batches_committed"] == 30
    assert document["elastic"]["batches_lost"] == document["elastic"]["batches_repeated"] == 0
    assert document["elastic"]["final_accuracy"] == 0.97
    assert document["elastic"]["reference_accuracy"] == 0.975
    assert document["rigid"]["wait_s"] == 4.0
    assert document["satellites_left"] == 0
    assert all(claim["holds"] for claim in document["claims"])
