"""How many servers are lent or called back, by numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from says import says

from flexo.loaning.orchestrator import Picture, Rules, decide

RULES = Rules(headroom_servers=1.0, hysteresis_servers=0.5, most_per_interval=4)


def numbers(rules: Rules, picture: Picture, demand: float, peak: float | None = None, rested: bool = True):
    decision = decide(rules, picture, demand, peak, rested=rested)
    return decision.lend, decision.reclaim, decision.reopen


def test_what_is_spare_beyond_demand_headroom_and_hysteresis_is_lent():
    assert numbers(RULES, Picture(10, 0, 10), 6.0) == (2, 0, 0)  # 10 - 6 - 1 - 0.5, whole servers
    assert numbers(RULES, Picture(10, 0, 10), 5.5) == (3, 0, 0)


def test_the_higher_of_demand_now_and_the_forecast_until_it_could_be_back_counts():
    assert numbers(RULES, Picture(10, 0, 10), 3.0, peak=8.0) == (0, 0, 0)
    assert numbers(RULES, Picture(10, 3, 5), 3.0, peak=8.0) == (0, 2, 0)
    assert numbers(RULES, Picture(10, 3, 2), 8.0, peak=3.0) == (0, 2, 0)


def test_a_server_is_called_back_only_when_it_is_needed_and_not_for_hysteresis():
    picture = Picture(10, 3, 1)
    assert numbers(RULES, picture, 6.0) == (0, 0, 0)
    assert numbers(RULES, picture, 6.4) == (0, 1, 0)


def test_demand_that_wavers_by_less_than_the_hysteresis_moves_nothing():
    lent = 0
    for demand in (5.5, 5.9, 5.6, 6.0, 5.5, 5.8, 5.5):
        more, back, _ = numbers(RULES, Picture(10, lent, 10 - lent), demand)
        lent += more - back
        assert lent == 3


def test_lending_is_limited_in_number_and_pace_and_calling_back_never_is():
    slow = Rules(headroom_servers=0.0, hysteresis_servers=0.0, most_per_interval=2, most_servers=5)
    assert numbers(slow, Picture(10, 0, 10), 0.0) == (2, 0, 0)
    assert numbers(slow, Picture(10, 4, 6), 0.0) == (1, 0, 0)
    assert numbers(slow, Picture(10, 5, 5), 0.0) == (0, 0, 0)
    assert numbers(slow, Picture(10, 5, 5), 10.0) == (0, 5, 0)


def test_what_is_on_loan_beyond_a_limit_that_was_lowered_comes_back():
    assert numbers(Rules(headroom_servers=0.0, most_servers=2), Picture(10, 5, 5), 0.0) == (0, 3, 0)
    assert numbers(Rules(most_servers=0), Picture(10, 5, 5), 0.0, rested=False) == (0, 5, 0)


def test_nothing_is_lent_soon_after_servers_were_called_back():
    assert numbers(RULES, Picture(10, 0, 10), 1.0, rested=False) == (0, 0, 0)


def test_calls_are_taken_back_before_other_servers_are_lent():
    assert numbers(RULES, Picture(10, 1, 4, undecided=2), 5.0) == (0, 0, 2)
    assert numbers(RULES, Picture(10, 1, 4, undecided=1), 5.0) == (1, 0, 1)
    assert numbers(RULES, Picture(10, 1, 4, undecided=2), 5.0, rested=False) == (0, 0, 2)


def test_only_idle_servers_are_lent():
    assert numbers(RULES, Picture(10, 0, 1), 2.0) == (1, 0, 0)


def test_demand_above_the_size_of_the_cluster_calls_back_all_and_no_more():
    assert numbers(RULES, Picture(4, 3, 0), 99.0) == (0, 3, 0)


def test_the_headroom_may_be_a_share_of_what_is_needed():
    rules = Rules(headroom_servers=0.0, headroom_share=0.25, hysteresis_servers=0.0, most_per_interval=99)
    assert numbers(rules, Picture(20, 0, 20), 12.0) == (5, 0, 0)


def test_the_reason_says_what_was_gone_by():
    why = decide(RULES, Picture(10, 0, 10), 6.0, 6.5, rested=True).why
    assert says(why, "6.0", "10 servers", "6.5", "7.5")
    assert "no forecast" in decide(RULES, Picture(10, 0, 10), 6.0, None, rested=True).why


@given(
    size=st.integers(0, 40),
    lent=st.integers(0, 40),
    lendable=st.integers(0, 40),
    undecided=st.integers(0, 10),
    demand=st.floats(0, 100),
    peak=st.none() | st.floats(0, 100),
    rested=st.booleans(),
)
def test_what_is_needed_is_never_lent_and_what_is_lent_and_needed_comes_back(
    size, lent, lendable, undecided, demand, peak, rested
):
    decision = decide(RULES, Picture(size, lent, lendable, undecided), demand, peak, rested=rested)
    needed = RULES.needed(demand, peak)
    after = lent + decision.lend + decision.reopen - decision.reclaim
    assert min(decision.lend, decision.reclaim, decision.reopen) >= 0
    assert decision.reclaim <= lent
    assert decision.lend <= min(lendable, RULES.most_per_interval)
    assert decision.reopen <= undecided
    if decision.lend or decision.reopen:
        assert after <= size - needed + 1e-6
        assert not decision.reclaim
    if lent > size - needed:
        assert after <= max(0.0, size - needed) + 1e-6


@pytest.mark.parametrize("demand", [0.0, 3.3, 9.99])
def test_the_same_picture_after_a_decision_decides_nothing_more(demand):
    rules = Rules(most_per_interval=99)
    first = decide(rules, Picture(10, 0, 10), demand, None, rested=True)
    again = decide(rules, Picture(10, first.lend, 10 - first.lend), demand, None, rested=True)
    assert (again.lend, again.reclaim) == (0, 0)
