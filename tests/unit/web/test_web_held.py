"""The page Now says which GPUs jobs hold and do not use, and the state of jobs that have just begun."""

from __future__ import annotations

import time

import pytest
from flexod_double import NOW, FlexodDouble, event, job
from says import says
from signed_in import Browser

from flexo_cli.job_words import ShownState, left, shown_state
from flexo_protos.v1 import admin_pb2 as pb
from flexo_web.explained import Explained
from flexo_web.held import Held, held_gpus


def grant(state: str, **changes: object) -> pb.GrantView:
    made = pb.GrantView(node="t3", workers=3, state=state)
    made.MergeFrom(pb.GrantView(**changes))
    return made


def test_time_left_is_shown_where_more_is_known_than_the_time_limit() -> None:
    """A page counted down to nothing in half an hour, and the job went on."""
    by = ("progress", "history", "time limit")
    assert [left(job(17, left_s=300, left_by=each)) for each in by] == ["5 min", "~5 min", ""]


def test_a_job_that_trains_with_all_that_it_has_holds_nothing_unused() -> None:
    assert held_gpus([job(17)], Explained(), NOW) == ()


@pytest.mark.parametrize(
    ("state", "granted", "reason"), [("warming", 7, Held.WARMING), ("leaving", 4, Held.LEAVING)]
)
def test_satellites_that_start_or_leave_hold_gpus_unused(state: str, granted: int, reason: Held) -> None:
    (held,) = held_gpus(
        [job(17, granted=granted, gpus_per_worker=2, grants=[grant(state)])], Explained(), NOW
    )
    assert (held.gpus, held.reason, held.job_id) == (6, reason, 17)


@pytest.mark.parametrize("state", ["granted", "pending"])
def test_satellites_that_have_not_begun_hold_nothing_yet(state: str) -> None:
    assert held_gpus([job(17, granted=7, grants=[grant(state)])], Explained(), NOW) == ()


def test_satellites_on_shared_gpus_hold_none_themselves() -> None:
    assert held_gpus([job(17, granted=7, grants=[grant("warming", shared_gpus=[0])])], Explained(), NOW) == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"suspended": True}, Held.SUSPENDED),
        ({"paused": True}, Held.PAUSED),
    ],
)
def test_a_job_that_stands_still_uses_none_of_its_gpus(changes: dict[str, bool], reason: Held) -> None:
    (held,) = held_gpus([job(17, **changes)], Explained(), NOW)
    assert (held.gpus, held.reason) == (4, reason)


def test_a_satellite_that_flexod_found_after_its_restart_is_not_said_to_start() -> None:
    """Nobody has told flexod yet that it trains."""
    found = job(17, granted=7, started_at=time.time() - 900, grants=[grant("warming")])
    found.attached = False
    assert shown_state(found) is ShownState.NO_LEADER
    assert {each.reason for each in held_gpus([found], Explained(), NOW)} == {Held.NO_LEADER}


def test_a_job_without_a_leader_starts_at_first_and_has_lost_it_later() -> None:
    begun = job(17, started_at=time.time() - 5)
    old = job(17, started_at=time.time() - 3600)
    begun.attached = old.attached = False
    assert [shown_state(begun), shown_state(old)] == [ShownState.STARTING, ShownState.NO_LEADER]
    assert [held.reason for each in (begun, old) for held in held_gpus([each], Explained(), NOW)] == [
        Held.STARTING,
        Held.NO_LEADER,
    ]


def test_what_a_job_does_not_use_leads_to_the_event_that_says_why() -> None:
    resized = event(1.0, "grow", "grow by 3 workers on t3", "t3", 3, True, number=4)
    (warming,) = held_gpus([job(17, granted=7, grants=[grant("warming")])], Explained([resized]), NOW)
    (suspended,) = held_gpus([job(17, suspended=True, reason_event=12)], Explained([resized]), NOW)
    assert (warming.event, suspended.event) == (4, 12)


def test_a_job_that_commits_no_batch_for_long_is_shown_with_the_time_and_no_verdict() -> None:
    (held,) = held_gpus([job(17, silent_since_at=NOW - 430, silent_event=9)], Explained(), NOW)
    assert (held.gpus, held.reason, held.event) == (4, Held.SILENT, 9)
    assert says(held.text, "no batch for 7 min", "may")


def test_a_job_that_is_known_not_to_train_is_shown_with_that_reason_alone() -> None:
    (held,) = held_gpus([job(17, suspended=True, silent_since_at=NOW - 430)], Explained(), NOW)
    assert held.reason is Held.SUSPENDED


def test_the_page_now_names_the_gpus_the_reason_and_the_job(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.jobs = [job(17), job(18, suspended=True)]
    text = browser().get("/").text
    section = text[text.index('id="held"') : text.index('id="jobs"')]
    assert Held.SUSPENDED in section
    assert 'href="/jobs/18"' in section
    assert 'href="/jobs/17"' not in section
    assert "GPU utilization is not measured" in section
