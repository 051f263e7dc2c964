"""The page of loans: deadlines, percentiles of reclaims, and links to the events that say why."""

from __future__ import annotations

import pytest
from flexod_double import NOW, FlexodDouble, event
from signed_in import Browser

from flexo_protos.v1 import admin_pb2 as pb
from flexo_web.loan_page import percentile, reclaims_of


def past(took_s: float, deadline_s: float = 100.0, called_back_at: float = NOW) -> pb.PastLoanView:
    return pb.PastLoanView(
        node="i1",
        since_at=called_back_at - 600,
        why="i1 is idle",
        called_back_at=called_back_at,
        deadline_at=called_back_at + deadline_s,
        why_back="demand rises",
        empty_at=called_back_at + took_s,
        ended_at=called_back_at + took_s + 1,
    )


def test_the_server_with_the_next_deadline_comes_first_and_each_reason_leads_to_its_event(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.loans = pb.ListLoansReply(
        lending=True,
        loans=[
            pb.LoanView(node="i1", state="lent", since_at=NOW, why="i1 is idle"),
            pb.LoanView(
                node="i2", state="called back", since_at=NOW - 9, why="i2 is idle", called_back_at=NOW + 60,
                deadline_at=NOW + 360, why_back="demand rises", satellite_workers=2, bases=[17],
            ),
        ],
    )  # fmt: skip
    flexod.events = [
        event(NOW - 8, "lend", "i2 is lent to training: i2 is idle", number=4, job_id=0),
        event(NOW + 1, "lend", "i1 is lent to training: i1 is idle", number=5, job_id=0),
        event(NOW + 61, "call back", "i2 is called back: demand rises", number=6, job_id=0),
    ]
    text = browser().get("/loans").text
    assert text.index('id="loan-i2"') < text.index('id="loan-i1"')
    for number, why in ((4, "i2 is idle"), (5, "i1 is idle"), (6, "demand rises")):
        assert f'<a class="reason" href="/events/{number}">{why}</a>' in text
    assert "2 workers, base of" in text


def test_half_and_nearly_all_reclaims_are_named_with_those_after_their_deadline(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.loans = pb.ListLoansReply(past=[past(took) for took in range(1, 101)])
    flexod.loans.past.append(pb.PastLoanView(node="i3", since_at=NOW, why="x", empty_at=NOW, ended_at=NOW))
    flexod.loans.past[0].empty_at += 200
    text = browser().get("/loans").text
    assert "<dt>p50</dt><dd>51 s</dd>" in text
    assert "<dt>p95</dt><dd>96 s</dd>" in text
    assert "1 of 100" in text
    assert "51 more loans are not shown" in text


@pytest.mark.parametrize(("part", "value"), [(0.5, 3.0), (0.95, 5.0), (0.0, 1.0), (1.0, 5.0)])
def test_a_percentile_is_the_least_value_not_below_that_part_of_all(part: float, value: float) -> None:
    assert percentile((1.0, 2.0, 3.0, 4.0, 5.0), part) == value


def test_without_a_reclaim_there_are_no_percentiles() -> None:
    assert reclaims_of([pb.PastLoanView(node="i1", since_at=NOW, ended_at=NOW)]) is None


def test_where_no_servers_are_lent_the_page_says_so(browser: Browser) -> None:
    assert "not set up to lend servers" in browser().get("/loans").text


def test_an_event_s_page_has_its_text_and_the_events_before_it(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.events = [
        event(NOW + number, "grow", f"step {number} of t2", number=number) for number in range(1, 40)
    ]
    text = browser().get("/events/30").text
    assert '<p class="headline">step 30 of t2</p>' in text
    assert "step 29 of t2" in text
    assert "step 31 of t2" not in text
    assert 'href="/jobs/17"' in text


@pytest.mark.parametrize("number", ["7", "0", "9" * 40])
def test_an_event_that_is_not_there_is_not_found(browser: Browser, number: str) -> None:
    assert browser().get(f"/events/{number}").status_code == 404
