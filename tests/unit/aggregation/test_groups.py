"""Aggregator groups: which one a new job gets, and that a job and its disturbances stay within one."""

from __future__ import annotations

import pytest
from aggregation_world import LARGE, LIMITS, SMALL, job, many_demands, pool_of, whole
from hypothesis import given
from hypothesis import strategies as st

from flexo.aggregation.groups import AggregatorGroups, demanded, free_cores
from flexo.aggregation.scaling import Scaled, ScalingRules

RULES = ScalingRules()


def groups(*pools: tuple, most: int = 2) -> AggregatorGroups:
    states = {number: Scaled(pool_of(*pool)) for number, pool in enumerate(pools, start=1)}
    return AggregatorGroups(LARGE, most, states, len(states))


def test_demand_and_free_time_are_counted_in_cores():
    assert demanded(job("a", 10, 2, 3)) == 0.5
    assert free_cores(pool_of((job("a", 10, 2),), (job("b", 10, 9),))) == pytest.approx(0.9)


def test_a_job_goes_to_the_group_with_enough_free_cores_and_the_least_of_them():
    two = groups(((job("a", 10, 2),),), ((job("b", 10, 6),),))
    assert two.choose(job("new", 10, 4), LIMITS) == 2
    assert two.choose(job("new", 10, 5), LIMITS) == 1


def test_if_none_has_enough_the_smallest_group_grows_and_then_a_new_one_begins():
    full = groups(((job("a", 10, 9),), (job("b", 10, 9),)), ((job("c", 10, 9),),))
    assert full.choose(job("new", 10, 8), LIMITS) == 2
    grown = full.on_arrival(job("new", 10, 8), RULES)
    assert (grown.group_of("new"), grown.aggregators) == (2, 4)
    assert grown.choose(job("next", 10, 8), LIMITS) == 3
    begun = grown.on_arrival(job("next", 10, 8), RULES)
    assert (begun.group_of("next"), begun.aggregators, begun.begun) == (3, 5, 3)


def test_a_group_of_the_largest_size_takes_only_what_fits_on_its_aggregators():
    full = groups(((job("a", 10, 5),), (job("b", 10, 5),)), ((job("c", 10, 1),), (job("d", 10, 1),)))
    assert full.choose(job("new", 10, 5), LIMITS) == 1
    assert full.choose(job("new", 10, 6), LIMITS) == 2, (
        "10 are free in the first group, but on no Aggregator 6"
    )
    assert full.choose(job("new", 7, 1), LIMITS) == 3, "it would lose too much in both"


def test_the_first_job_begins_the_first_group_and_a_group_without_jobs_ends():
    first = AggregatorGroups(LARGE).on_arrival(job("a", 10, 1), RULES)
    assert first.group_of("a") == 1
    after = first.on_exit("a", RULES)
    assert (after.group_of("a"), after.aggregators) == (None, 1)
    ended = after.at_period_end(RULES)
    assert (ended.groups, ended.aggregators) == ({}, 0)
    assert ended.on_arrival(job("b", 10, 1), RULES).group_of("b") == 2


def test_a_job_that_waits_for_aggregators_has_its_group_already():
    waiting = AggregatorGroups(LARGE).on_arrival(job("a", 10, 1), ScalingRules(on_demand=2))
    assert waiting.group_of("a") == 1
    assert waiting.on_exit("a", RULES).group_of("a") is None


def test_the_end_of_an_unknown_job_changes_nothing():
    one = groups(((job("a", 10, 2),),))
    assert one.on_exit("other", RULES) == one


@given(jobs=many_demands(8), gone=st.sets(st.integers(0, 7)))
def test_every_job_is_whole_within_one_group_and_other_groups_are_left_alone(jobs, gone):
    state = AggregatorGroups(SMALL, 1)
    for each in jobs:
        before, state = state, state.on_arrival(each, RULES)
        changed = [n for n in state.groups if state.groups[n] is not before.groups.get(n)]
        assert changed == [state.group_of(each.job)]
    for index in gone:
        state = state.on_exit(f"job{index}", RULES)
    for scaled in (state, state.at_period_end(RULES)):
        assert all(whole(each.pool) for each in scaled.groups.values())
        assert all(each.pool.broken_limits(LIMITS) == () for each in scaled.groups.values())
        homes = [name for each in scaled.groups.values() for name in each.pool.jobs]
        assert sorted(homes) == sorted(set(homes))
