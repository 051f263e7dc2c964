"""Cyclic execution: the published examples, and the properties of every schedule and every removal."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from aggregation_world import LIMITS, MS, hosting, job, many_demands
from hypothesis import assume, given
from hypothesis import strategies as st

from flexo.aggregation.cyclic import (
    late_request_runs,
    load_ns,
    loses_less,
    loss,
    reserved_ns,
    schedule,
    slowed_ns,
)

LIMIT = Fraction(1, 10)


@pytest.mark.parametrize(
    ("duration", "cycle", "slowed", "lost", "accepted"),
    [
        (5, 12, Fraction(6), Fraction(1, 6), False),
        (6, 12, Fraction(6), Fraction(0), True),
        (7, 12, Fraction(12), Fraction(5, 12), False),
        (11, 12, Fraction(12), Fraction(1, 12), True),
        (3, 10, Fraction(10, 3), Fraction(1, 10), False),
    ],
)
def test_a_job_is_slowed_to_a_whole_part_of_the_cycle_and_exactly_the_limit_is_refused(
    duration, cycle, slowed, lost, accepted
):
    assert slowed_ns(cycle, duration) == slowed
    assert loss(duration, [cycle]) == lost
    assert loses_less(LIMIT, cycle, duration) is accepted


def test_the_slowest_aggregator_sets_the_pace_of_a_job():
    assert loss(5, [5, 12, 10]) == Fraction(1, 6)
    assert loss(5, []) == 0


def test_the_published_pair_of_jobs_has_a_cycle_of_12_a_load_of_7_and_5_free():
    pair = hosting(job("J1", 6, 2), job("J2", 12, 3))
    assert (pair.cycle_ns, pair.load_ns, pair.free_ns) == (12 * MS, 7 * MS, 5 * MS)


def test_the_published_pair_runs_once_and_twice_in_a_cycle_without_overlap():
    slots = schedule(12, {"J1": _Work(6, 2), "J2": _Work(12, 3)})
    assert [(each.job, each.iteration, each.begin_ns, each.end_ns) for each in slots] == [
        ("J1", 0, 0, 2),
        ("J2", 0, 2, 5),
        ("J1", 1, 6, 8),
    ]


def test_a_longer_request_goes_on_after_one_whose_window_ends_before():
    slots = schedule(12, {"J1": _Work(6, 2), "J2": _Work(12, 8)})
    assert [(each.job, each.begin_ns, each.end_ns) for each in slots] == [
        ("J1", 0, 2),
        ("J2", 2, 6),
        ("J1", 6, 8),
        ("J2", 8, 12),
    ]


def test_a_load_above_the_cycle_has_no_schedule():
    with pytest.raises(ValueError, match=r"12 ns.*13 ns"):
        schedule(12, {"J1": _Work(6, 2), "J2": _Work(12, 9)})


def test_a_late_request_runs_only_if_the_slots_of_the_cycle_allow_it():
    works = {"J1": _Work(6, 2), "J2": _Work(12, 3)}
    # J2 comes at 7, and J1's second request is still to come: 7 + 2 + 3 is just 12
    assert reserved_ns(12, works, 7, served=()) - 3 == 2
    assert late_request_runs(12, 7, 2, 3)
    assert not late_request_runs(12, 8, 2, 3)
    assert late_request_runs(12, 8, 0, 3)


def test_requests_whose_window_is_over_or_that_have_run_reserve_nothing():
    works = {"J1": _Work(6, 2), "J2": _Work(12, 3)}
    assert reserved_ns(12, works, 0, served=()) == 7
    assert reserved_ns(12, works, 3, served=("J1",)) == 5
    assert reserved_ns(12, works, 6, served=("J2",)) == 2
    assert reserved_ns(12, works, 6, served=("J1", "J2")) == 0


class _Work:
    def __init__(self, duration_ns: int, execution_ns: int) -> None:
        self.duration_ns = duration_ns
        self.execution_ns = execution_ns


@given(
    durations=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    executions=st.lists(st.integers(0, 30), min_size=5, max_size=5),
)
def test_every_request_runs_in_its_window_and_no_two_at_a_time(durations, executions):
    works = {f"J{n}": _Work(d, e) for n, (d, e) in enumerate(zip(durations, executions, strict=False))}
    cycle = max(durations)
    assume(load_ns(cycle, works.values()) <= cycle)
    slots = schedule(cycle, works)
    assert all(one.end_ns <= next_one.begin_ns for one, next_one in pairwise(slots))
    for name, work in works.items():
        window = slowed_ns(cycle, work.duration_ns)
        for iteration in range(cycle // work.duration_ns):
            own = [slot for slot in slots if (slot.job, slot.iteration) == (name, iteration)]
            assert sum(slot.end_ns - slot.begin_ns for slot in own) == work.execution_ns
            assert all(
                iteration * window <= slot.begin_ns and slot.end_ns <= (iteration + 1) * window
                for slot in own
            )


@given(durations=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_time_is_reserved_for_the_whole_load_at_first_and_for_ever_less_of_it(durations):
    works = {f"J{number}": _Work(each, 1) for number, each in enumerate(durations)}
    cycle = max(durations)
    reserved = [reserved_ns(cycle, works, now, served=()) for now in range(cycle)]
    assert reserved[0] == load_ns(cycle, works.values())
    assert reserved == sorted(reserved, reverse=True)
    assert min(reserved) >= 1, "the longest job's only window is open until the cycle ends"


def test_a_job_that_leaves_takes_the_cycle_along_only_if_that_slows_nobody():
    three = hosting(job("a", 12, 1), job("b", 11, 1), job("c", 6, 1))
    assert three.without("a", LIMITS).cycle_ns == 12 * MS, (
        "in a cycle of 11, c would run once instead of twice"
    )
    assert three.without("c", LIMITS).cycle_ns == 12 * MS
    assert hosting(job("a", 12, 1), job("c", 6, 1)).without("a", LIMITS).cycle_ns == 6 * MS
    assert hosting(job("a", 12, 1)).without("a", LIMITS).cycle_ns == 0


@given(jobs=many_demands(5), gone=st.integers(0, 4))
def test_a_removal_never_raises_the_loss_of_another_job(jobs, gone):
    before = hosting(*jobs)
    leaving = jobs[gone % len(jobs)].job
    after = before.without(leaving, LIMITS)
    assert after.hosted.keys() == before.hosted.keys() - {leaving}
    for each in after.hosted.values():
        assert loss(each.duration_ns, [after.cycle_ns]) <= loss(each.duration_ns, [before.cycle_ns])
