"""The table of leases: one holder at a time by its own clock, terms that grow, what a new table may do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.leader_leases import table as leases
from flexo_protos.leader_leases.lease import LeaderLease
from flexo_protos.leader_leases.table import BadRequest, LeaseKey, LeaseTable, TooManyLeases
from flexo_protos.v1 import leases_pb2 as pb

KEY = LeaseKey(1000, 7, 0, "r")
VACANT = LeaderLease("", "", 0, 0, 0.0)


def ask(
    holder: str,
    ttl_s: float = 5.0,
    claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
    seen: int = 0,
    address: str = "",
) -> pb.AcquireRequest:
    where = address or f"{holder}:1"
    return pb.AcquireRequest(
        job=pb.JobKey(job_id=7, run="r"), holder=holder, address=where, ttl_s=ttl_s, claim=claim, seen=seen
    )


def test_the_first_who_asks_holds_the_lease_and_the_others_are_told_who() -> None:
    table = LeaseTable(0.0)
    assert table.acquire(KEY, ask("a"), 1.0) == LeaderLease("a", "a:1", 1, 0, 5.0)
    assert table.acquire(KEY, ask("b"), 2.0) == LeaderLease("a", "a:1", 1, 0, 4.0)
    assert table.look(KEY, 3.0) == LeaderLease("a", "a:1", 1, 0, 3.0)


def test_a_lease_that_is_not_refreshed_is_vacant_and_the_next_holder_has_a_higher_term() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    assert table.look(KEY, 5.0) == LeaderLease("", "", 1, 0, 0.0)
    assert table.acquire(KEY, ask("b"), 5.0) == LeaderLease("b", "b:1", 2, 1, 5.0)


def test_a_lease_that_is_refreshed_stays_and_keeps_its_term() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    for now in (3.0, 6.0, 9.0):
        assert table.acquire(KEY, ask("a", claim=pb.CLAIM_HOLDER), now) == LeaderLease("a", "a:1", 1, 0, 5.0)
    assert table.acquire(KEY, ask("b"), 13.9).holder == "a"


def test_a_holder_that_comes_late_has_its_lease_again_if_nobody_took_it() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    assert table.acquire(KEY, ask("a", claim=pb.CLAIM_HOLDER), 60.0) == LeaderLease("a", "a:1", 1, 0, 5.0)


def test_a_holder_that_slept_through_another_ones_lease_does_not_get_it_back() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    table.acquire(KEY, ask("b"), 6.0)
    assert table.acquire(KEY, ask("a", claim=pb.CLAIM_HOLDER, seen=1), 20.0).vacant
    assert table.acquire(KEY, ask("c"), 20.0) == LeaderLease("c", "c:1", 3, 2, 5.0)


def test_an_agent_that_was_started_again_has_its_predecessors_lease_at_once_with_a_new_term() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a", address="a:1"), 0.0)
    assert table.acquire(KEY, ask("a", address="a:2"), 1.0) == LeaderLease("a", "a:2", 2, 1, 5.0)
    late = ask("a", address="a:1", claim=pb.CLAIM_HOLDER, seen=1)
    assert table.acquire(KEY, late, 2.0) == LeaderLease("a", "a:2", 2, 1, 4.0)


def test_a_lease_given_up_is_vacant_at_once() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    assert table.release(KEY, "a", "", 1.0) == LeaderLease("", "", 1, 0, 0.0)
    assert table.acquire(KEY, ask("b"), 1.0).holder == "b"


def test_a_named_successor_has_the_lease_before_it_comes_and_says_its_address() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    assert table.release(KEY, "a", "b", 1.0) == LeaderLease("b", "", 2, 1, 5.0)
    assert table.acquire(KEY, ask("c"), 2.0) == LeaderLease("b", "", 2, 1, 4.0)
    assert table.acquire(KEY, ask("b"), 3.0) == LeaderLease("b", "b:1", 2, 1, 5.0)


def test_a_successor_that_never_comes_holds_nobody_up_for_longer_than_a_lease() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    table.release(KEY, "a", "b", 1.0)
    assert table.acquire(KEY, ask("c"), 6.0) == LeaderLease("c", "c:1", 3, 2, 5.0)


def test_only_its_holder_gives_a_lease_up() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    assert table.release(KEY, "b", "b", 1.0) == LeaderLease("a", "a:1", 1, 0, 4.0)
    assert LeaseTable(0.0).release(KEY, "b", "b", 1.0) == VACANT


def test_users_and_runs_have_leases_of_their_own() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    for other in (LeaseKey(1001, 7, 0, "r"), LeaseKey(1000, 7, 1, "r"), LeaseKey(1000, 7, 0, "s")):
        assert table.look(other, 0.0) == VACANT
        assert table.acquire(other, ask("b"), 0.0).holder == "b"
    assert table.look(KEY, 0.0).holder == "a"


def test_a_new_table_keeps_vacant_leases_for_those_who_held_them() -> None:
    table = LeaseTable(100.0, grace_s=10.0, first_term=1000)
    assert table.acquire(KEY, ask("b"), 101.0) == LeaderLease("", "", 0, 0, 9.0)
    assert table.look(KEY, 102.0) == LeaderLease("", "", 0, 0, 8.0)
    assert table.acquire(KEY, ask("a", claim=pb.CLAIM_HOLDER, seen=4), 102.0) == LeaderLease(
        "a", "a:1", 1000, 0, 5.0
    )
    assert table.acquire(KEY, ask("b"), 103.0).holder == "a"


def test_a_new_table_lets_the_founders_of_a_new_job_begin_at_once() -> None:
    table = LeaseTable(100.0, grace_s=10.0)
    assert table.acquire(KEY, ask("a", claim=pb.CLAIM_FOUNDER), 101.0).holder == "a"


def test_an_old_table_gives_a_lease_that_it_does_not_know_to_candidates_but_not_back() -> None:
    table = LeaseTable(100.0, grace_s=10.0)
    assert table.acquire(KEY, ask("a", claim=pb.CLAIM_HOLDER), 110.0) == VACANT
    assert table.acquire(KEY, ask("b"), 110.0).holder == "b"


def test_a_term_is_above_all_that_the_taker_has_seen_and_says_nothing_to_other_users() -> None:
    table = LeaseTable(0.0, first_term=10)
    assert table.acquire(KEY, ask("a", seen=500), 0.0).term == 501
    assert table.acquire(LeaseKey(1001, 7, 0, "r"), ask("a"), 0.0).term == 11


def test_leases_vacant_for_long_are_forgotten() -> None:
    table = LeaseTable(0.0)
    table.acquire(KEY, ask("a"), 0.0)
    later = leases.FORGET_AFTER_S + 6
    table.acquire(LeaseKey(1001, 7, 0, "r"), ask("a"), later)
    assert table.look(KEY, later) == VACANT


def test_one_user_alone_cannot_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASES_PER_USER", 2)
    table = LeaseTable(0.0)
    for job in (1, 2):
        table.acquire(LeaseKey(1000, job, 0, ""), ask("a"), 0.0)
    with pytest.raises(TooManyLeases, match="1000"):
        table.acquire(LeaseKey(1000, 3, 0, ""), ask("a"), 0.0)
    assert table.acquire(LeaseKey(1001, 3, 0, ""), ask("a"), 0.0).holder == "a"
    assert table.acquire(LeaseKey(1000, 1, 0, ""), ask("a"), 1.0).holder == "a"


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (pb.AcquireRequest(holder="a", address="a:1", ttl_s=5), "names no job"),
        (
            pb.AcquireRequest(job=pb.JobKey(job_id=7, run="r" * 256), holder="a", address="a:1", ttl_s=5),
            "run",
        ),
        (ask(""), "holder"),
        (ask("a" * 256), "holder"),
        (ask("a\n"), "holder"),
        (ask("a", address="a" * 300), "address"),
        (ask("a", ttl_s=0.0), "ttl_s"),
        (ask("a", ttl_s=61.0), "ttl_s"),
        (ask("a", ttl_s=math.nan), "ttl_s"),
        (ask("a", seen=1 << 62), "seen"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(request_: pb.AcquireRequest, what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        leases.answer_acquire(LeaseTable(0.0), 1000, request_, 0.0)


def test_what_is_asked_over_the_wire_is_answered_under_the_users_own_number() -> None:
    table = LeaseTable(0.0)
    job = pb.JobKey(job_id=7, run="r")
    leases.answer_acquire(table, 1000, ask("a"), 0.0)
    assert leases.answer_look(table, 1000, pb.LookRequest(job=job), 1.0).holder == "a"
    assert leases.answer_look(table, 0, pb.LookRequest(job=job), 1.0).holder == ""
    given_up = pb.ReleaseRequest(job=job, holder="a", successor="b")
    assert leases.from_message(leases.answer_release(table, 1000, given_up, 2.0)).holder == "b"
    with pytest.raises(BadRequest, match="successor"):
        leases.answer_release(table, 1000, pb.ReleaseRequest(job=job, holder="b", successor="\0"), 2.0)


@dataclass(frozen=True)
class Step:
    """A moment of some agent's: after `pause_s`, `who` asks, looks, refreshes or gives up."""

    pause_s: float
    who: str
    what: str
    successor: str


NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.builds(
        Step,
        pause_s=st.sampled_from([0.0, 0.5, 1.7, 4.9, 5.0, 12.0]),
        who=NAMES,
        what=st.sampled_from(["ask", "found", "refresh", "give up", "hand over", "look"]),
        successor=NAMES,
    ),
    max_size=40,
)


@given(STEPS, st.floats(0, 12))
def test_there_are_never_two_holders_at_one_time_and_terms_grow_with_every_change(
    steps: list[Step], grace_s: float
) -> None:
    table, now = LeaseTable(0.0, grace_s=grace_s), 0.0
    held: LeaderLease = VACANT
    until, term, last = 0.0, 0, ""
    for step in steps:
        now += step.pause_s
        if held.holder and now < until:  # what stood a moment ago stands now, for all who look
            seen = table.look(KEY, now)
            assert (seen.holder, seen.term) == (held.holder, held.term)
        answer = _do(table, step, now)
        if held.holder and now < until and answer.holder != held.holder:
            assert step.who == held.holder, "taken from its holder"
            assert step.what in ("give up", "hand over")
        if answer.holder:
            assert answer.term > term or (answer.term, answer.holder) == (term, last)
            last = answer.holder
        held, until, term = answer, now + answer.expires_in_s, max(term, answer.term)


def _do(table: LeaseTable, step: Step, now: float) -> LeaderLease:
    claims = {"ask": pb.CLAIM_UNSPECIFIED, "found": pb.CLAIM_FOUNDER, "refresh": pb.CLAIM_HOLDER}
    if step.what in claims:
        return table.acquire(KEY, ask(step.who, claim=claims[step.what]), now)
    if step.what == "look":
        return table.look(KEY, now)
    return table.release(KEY, step.who, step.successor if step.what == "hand over" else "", now)
