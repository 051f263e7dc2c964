"""Idle intervals of the GPUs of one node: whose they are, where they are cut off, and how long they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo_simulation.idle_intervals import (
    Hold,
    Interval,
    Order,
    distribution,
    intervals,
    peak,
    unknown_s,
)

LAST, FIRST = Order.LAST, Order.FIRST


def found(holds: list[Hold], gpus: int, span: tuple[float, float], order: Order = LAST) -> list[Interval]:
    return sorted(intervals(holds, gpus, span, order), key=lambda each: (each.begin, each.length_s))


def test_an_interval_lasts_from_the_end_of_a_job_to_the_start_of_the_next_one():
    holds = [Hold(0, 100, 2), Hold(130, 200, 2)]
    assert found(holds, 2, (50, 180)) == [Interval(100, 30, 2, complete=True)]


def test_the_two_readings_differ_in_which_gpu_the_next_job_gets():
    holds = [Hold(0, 100, 1), Hold(0, 200, 1), Hold(250, 300, 1), Hold(400, 500, 1), Hold(400, 500, 1)]
    lengths = {
        order: [each.length_s for each in found(holds, 2, (50, 450), order) for _ in range(each.gpus)]
        for order in Order
    }
    assert lengths == {LAST: [300, 50, 100], FIRST: [150, 200, 100]}


def test_a_job_that_begins_when_another_one_ends_leaves_no_interval():
    holds = [Hold(0, 100, 4), Hold(100, 200, 3), Hold(150, 200, 1)]
    assert peak(holds) == 4
    assert found(holds, 4, (50, 180)) == [Interval(100, 50, 1, complete=True)]


def test_the_begin_and_the_end_cut_intervals_off():
    holds = [Hold(0, 100, 1), Hold(300, 400, 1)]
    assert found(holds, 1, (200, 500)) == [
        Interval(200, 100, 1, complete=False),
        Interval(400, 100, 1, complete=False),
    ]
    assert found([], 3, (0, 10)) == [Interval(0, 10, 3, complete=False)]


def test_a_job_that_ends_at_the_very_begin_and_one_that_starts_at_the_very_end_are_seen():
    holds = [Hold(0, 100, 1), Hold(300, 400, 1)]
    assert found(holds, 1, (100, 300)) == [Interval(100, 200, 1, complete=True)]


def test_time_in_which_nobody_can_tell_cuts_intervals_off_and_is_neither_idle_nor_used():
    holds = [Hold(0, 100, 2), Hold(150, 250, None), Hold(200, 300, None), Hold(400, 500, 1)]
    assert found(holds, 2, (50, 600)) == [
        Interval(100, 50, 2, complete=False),
        Interval(300, 100, 1, complete=False),
        Interval(300, 300, 1, complete=False),
        Interval(500, 100, 1, complete=False),
    ]
    assert unknown_s(holds, (50, 600)) == 150
    assert unknown_s(holds, (210, 220)) == 10


HOLDS = st.lists(
    st.builds(
        lambda begin, length, gpus: Hold(float(begin), float(begin + length), gpus),
        st.integers(0, 50),
        st.integers(1, 30),
        st.sampled_from([1, 1, 2, 4, None]),
    ),
    max_size=12,
)


@given(holds=HOLDS, more=st.integers(0, 2))
@settings(deadline=None, max_examples=examples(200))
def test_both_readings_have_the_same_idle_time_and_it_is_what_jobs_leave(holds, more):
    gpus, span = peak(holds) + more, (10.0, 60.0)
    idle = dict.fromkeys(Order, 0.0)
    number = dict.fromkeys(Order, 0)
    for order in Order:
        for each in intervals(holds, gpus, span, order):
            assert each.length_s > 0
            assert each.gpus > 0
            idle[order] += each.length_s * each.gpus
            number[order] += each.gpus
    left = 0.0
    for second in range(10, 60):
        now = [hold for hold in holds if hold.begin <= second < hold.end]
        if all(hold.gpus is not None for hold in now):
            left += gpus - sum(hold.gpus for hold in now)
    assert idle == {LAST: left, FIRST: left}
    assert number[LAST] == number[FIRST]


def test_lengths_count_once_for_each_gpu_and_percentiles_only_where_begin_and_end_are_known():
    told = distribution(
        [
            Interval(0, 60, 8, complete=True),
            Interval(0, 600, 1, complete=True),
            Interval(0, 1200, 1, complete=True),
            Interval(0, 120, 1, complete=False),
            Interval(0, 3000, 1, complete=False),
        ],
        LAST,
    )
    assert (told.intervals, told.complete, told.cut_off) == (12, 10, 2)
    assert [told.percentiles_s[percent] for percent in (0, 50, 80, 90, 100)] == [60, 60, 60, 600, 1200]
    assert told.time_percentiles_s[100] == 3000
    by_minutes = {each.minutes: each for each in told.longer}
    time = 480 + 600 + 1200 + 120 + 3000
    assert by_minutes[1].at_least == pytest.approx((time - 480) / time)
    assert by_minutes[1].at_most == by_minutes[1].at_least
    assert by_minutes[5].at_least == pytest.approx((time - 600) / time)
    assert by_minutes[5].at_most == pytest.approx((time - 480) / time)  # 120 s and nobody knows how many more
    assert by_minutes[60].at_least == 0
    assert by_minutes[60].at_most == pytest.approx(3120 / time)


def test_without_idle_gpus_there_is_nothing_to_tell():
    told = distribution([], FIRST)
    assert (told.intervals, told.percentiles_s, told.time_percentiles_s, told.longer) == (0, (), (), ())
