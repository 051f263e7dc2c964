"""When Aggregators are allocated and released, how changes are undone, and what no change ever breaks."""

from __future__ import annotations

from fractions import Fraction

import pytest
from aggregation_world import LARGE, LIMITS, SMALL, hosting, job, many_demands, pool_of, using, whole
from hypothesis import given
from hypothesis import strategies as st

from flexo.aggregation.assignment import assign
from flexo.aggregation.demand import JobDemand
from flexo.aggregation.pool import AggregatorPool, moves_between
from flexo.aggregation.scaling import (
    Change,
    Scaled,
    ScalingRules,
    at_period_end,
    on_arrival,
    on_exit,
    recycle,
    release_empty,
    undo_for,
)

RULES = ScalingRules()


def arrived(*jobs: JobDemand, rules: ScalingRules = RULES, capacity=LARGE) -> Scaled:
    state = Scaled(AggregatorPool(capacity))
    for each in jobs:
        state = on_arrival(state, each, rules)
    return state


VGG19 = [using(f"vgg19-{number}", 600, Fraction(16, 100), servers=2) for number in range(4)]
ALEXNET = [using(f"alexnet-{number}", 200, Fraction(1, 2), servers=2) for number in range(2)]


def test_four_vgg19_jobs_of_two_servers_share_two_aggregators_so_that_three_quarters_are_saved():
    for many in (1, 2, 3, 4):
        assert len(arrived(*VGG19[:many]).pool.aggregators) == 2
    assert Fraction(4 * 2 - 2, 4 * 2) == Fraction(3, 4)


@pytest.mark.parametrize(("servers", "printed"), [(2, Fraction(1, 4)), (4, Fraction(3, 8))])
def test_the_second_alexnet_job_needs_one_aggregator_more_because_it_measures_too_much_loss(servers, printed):
    jobs = [using(f"alexnet-{number}", 200, Fraction(1, 2), servers) for number in range(2)]
    pool = arrived(*jobs).pool
    assert len(pool.aggregators) == servers
    after = undo_for(pool, "alexnet-1", [Change("alexnet-1", 100)], LIMITS)
    assert after is not None
    assert len(after.aggregators) == servers + 1
    assert Fraction(2 * servers - len(after.aggregators), 2 * servers) == printed


@pytest.mark.parametrize("use", [Fraction(16, 100), Fraction(33, 100), Fraction(1, 2)])
def test_two_jobs_of_four_servers_share_four_aggregators_if_none_is_used_for_more_than_half(use):
    pair = [using(f"job-{number}", 600, use, servers=4) for number in range(2)]
    assert len(arrived(*pair).pool.aggregators) == 4


def test_the_published_case_of_an_alexnet_job_beside_a_vgg19_job():
    pool = arrived(VGG19[0], ALEXNET[0]).pool
    assert pool.hosts("alexnet-0") == (1, 2)
    more = undo_for(pool, "alexnet-0", [Change("alexnet-0", 100)], LIMITS)
    assert more is not None
    assert more.hosts("alexnet-0") == (1, 2, 3)
    assert more.hosts("vgg19-0") == (1, 2)
    assert moves_between(pool, more)
    assert {move.job for move in moves_between(pool, more)} == {"alexnet-0"}
    after = release_empty(on_exit(Scaled(more), "alexnet-0", RULES).pool)
    assert list(after.aggregators) == [1, 2], "the third one had tasks of the AlexNet job only"


def test_a_job_of_which_all_neighbours_are_gone_has_nothing_to_be_undone():
    alone = arrived(VGG19[0]).pool
    assert undo_for(alone, "vgg19-0", [Change("vgg19-0", 10)], LIMITS) is None


def test_a_job_that_arrived_and_hurts_another_one_leaves_its_aggregators():
    pool = pool_of((job("old", 10, 4), job("greedy", 10, 1)), (job("other", 10, 5),))
    after = undo_for(pool, "old", [Change("old", 5000), Change("greedy", 60)], LIMITS)
    assert after is not None
    assert after.places("greedy") == {"t0": 2}
    assert after.places("old") == {"t0": 1}


def test_a_job_that_moved_and_hurts_another_one_goes_back():
    pool = pool_of((job("old", 10, 4), job("moved", 10, 1, 1)), (job("other", 10, 5),))
    after = undo_for(pool, "old", [Change("moved", 99, before={"t0": 2, "t1": 7})], LIMITS)
    assert after is not None
    assert after.places("moved") == {"t0": 2, "t1": 3}, "a new Aggregator stands in for number 7"
    assert whole(after)


def test_a_job_that_moved_goes_back_if_it_loses_itself():
    pool = pool_of((job("old", 10, 4), job("moved", 10, 1, 1)), (job("other", 10, 5),))
    after = undo_for(pool, "moved", [Change("moved", 3, before={"t1": 2})], LIMITS)
    assert after is not None
    assert after.places("moved") == {"t0": 1, "t1": 2}


def test_tasks_whose_former_place_is_full_by_now_go_elsewhere():
    pool = pool_of((job("old", 10, 4), job("moved", 10, 3)), (job("other", 10, 9),))
    after = undo_for(pool, "old", [Change("moved", 3, before={"t0": 2})], LIMITS)
    assert after is not None
    assert after.broken_limits(LIMITS) == ()
    assert after.hosts("moved") != (2,)


@pytest.mark.parametrize(
    "change", [Change("greedy", 101), Change("far", 3), Change("gone", 3)], ids=lambda change: change.job
)
def test_old_changes_and_changes_elsewhere_explain_no_breach(change):
    pool = pool_of((job("old", 10, 4), job("greedy", 10, 1)), (job("far", 10, 5),))
    assert undo_for(pool, "old", [change], LIMITS) is None


def test_the_latest_of_several_changes_is_undone():
    pool = pool_of((job("old", 10, 1), job("a", 10, 1), job("b", 10, 1)))
    after = undo_for(pool, "old", [Change("a", 50), Change("b", 10)], LIMITS)
    assert after is not None
    assert (after.hosts("a"), after.hosts("b")) == ((1,), (2,))


def test_the_least_used_aggregator_is_recycled_if_its_tasks_fit_elsewhere_and_then_the_next():
    pool = pool_of((job("a", 10, 5),), (job("b", 10, 2),), (job("c", 10, 3),))
    after = recycle(pool, LIMITS)
    assert list(after.aggregators) == [1]
    assert whole(after)


def test_nothing_is_recycled_if_one_task_fits_nowhere_else():
    pool = pool_of((job("a", 10, 8),), (job("b", 10, 1, 3),))
    assert recycle(pool, LIMITS) == pool
    assert recycle(pool_of((job("a", 10, 1),)), LIMITS).aggregators.keys() == {1}


def test_a_job_that_has_just_moved_keeps_its_aggregator_from_being_recycled():
    pool = pool_of((job("a", 10, 5),), (job("b", 10, 2),), (job("c", 10, 3),))
    assert list(recycle(pool, LIMITS, resting={"b"}).aggregators) == [2]
    assert recycle(pool, LIMITS, resting={"a", "b", "c"}) == pool


def test_aggregators_of_a_job_that_ended_stay_until_the_period_ends():
    state = on_exit(arrived(VGG19[0]), "vgg19-0", RULES)
    assert len(state.pool.aggregators) == 2
    assert at_period_end(state, RULES).pool.aggregators == {}


def test_below_the_threshold_an_arrival_waits_for_the_period_and_then_gets_new_aggregators():
    rules = ScalingRules(on_demand=3)
    state = arrived(job("a", 10, 9), job("b", 10, 9), rules=rules)
    assert ([each.job for each in state.waiting], len(state.pool.aggregators)) == (["a", "b"], 0)
    assert len(on_arrival(state, job("c", 10, 9), rules).pool.aggregators) == 3
    scaled = at_period_end(state, rules)
    assert (len(scaled.pool.aggregators), scaled.waiting) == (2, ())
    assert [each.job for each in on_exit(state, "a", rules).waiting] == ["b"]


def test_numbers_of_aggregators_are_never_used_again():
    state = at_period_end(on_exit(arrived(VGG19[0]), "vgg19-0", RULES), RULES)
    assert on_arrival(state, VGG19[1], RULES).pool.hosts("vgg19-1") == (3, 4)


def test_an_aggregator_that_hosts_nothing_is_not_used():
    assert hosting().use == 0


@given(jobs=many_demands(8), gone=st.sets(st.integers(0, 7)), resting=st.sets(st.integers(0, 7)))
def test_no_event_loses_a_task_or_breaks_a_limit_and_resting_jobs_stay(jobs, gone, resting):
    state = arrived(*jobs, capacity=SMALL)
    for index in sorted(gone):
        if index < len(jobs):
            before = {name: state.pool.loss(name) for name in state.pool.jobs}
            state = on_exit(state, jobs[index].job, RULES)
            assert all(state.pool.loss(name) <= before[name] for name in state.pool.jobs)
    resting_jobs = {f"job{index}" for index in resting}
    scaled = at_period_end(state, RULES, resting_jobs)
    assert whole(scaled.pool)
    assert scaled.pool.broken_limits(LIMITS) == ()
    assert len(scaled.pool.aggregators) <= len(state.pool.aggregators)
    assert not {move.job for move in moves_between(state.pool, scaled.pool)} & resting_jobs
    assert at_period_end(state, RULES, resting_jobs) == scaled


@given(jobs=many_demands(6), losing=st.integers(0, 5), changed=st.integers(0, 5), moved=st.booleans())
def test_undoing_loses_no_task_and_breaks_no_limit(jobs, losing, changed, moved):
    pool = arrived(*jobs, capacity=SMALL).pool
    names = [each.job for each in jobs]
    name = names[changed % len(names)]
    before = {task.key: index % 7 + 1 for index, task in enumerate(pool.jobs[name].tasks)} if moved else {}
    change = Change(name, 50, before)
    after = undo_for(pool, names[losing % len(names)], [change], LIMITS)
    if after is not None:
        assert whole(after)
        assert after.broken_limits(LIMITS) == ()
        assert {move.job for move in moves_between(pool, after)} <= {name}
        assert after == undo_for(pool, names[losing % len(names)], [change], LIMITS)


@given(jobs=many_demands(6))
def test_a_job_that_goes_on_losing_is_alone_after_as_many_steps_as_it_has_servers(jobs):
    pool = arrived(*jobs, capacity=SMALL).pool
    name = jobs[-1].job
    for _ in range(jobs[-1].servers + 2):
        after = undo_for(pool, name, [Change(name, 1)], LIMITS)
        if after is None:
            break
        assert after != pool
        pool = after
    else:
        raise AssertionError("a job never ran out of neighbours")
    assert all(len(pool.aggregators[number].hosted) == 1 for number in pool.hosts(name))


def test_a_change_names_what_moved():
    before = pool_of((job("a", 10, 1),), (job("b", 10, 2),))
    moved = assign(before.without("a", LIMITS), before.jobs["a"], LIMITS, among={2})
    assert moved is not None
    assert [(m.job, m.task, m.source, m.target) for m in moves_between(before, moved)] == [("a", "t0", 1, 2)]
