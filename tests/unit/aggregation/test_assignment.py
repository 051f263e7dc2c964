"""Which Aggregator gets a task: the published examples, each limit, and what always holds."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from aggregation_world import (
    LARGE,
    LIMITS,
    MS,
    SMALL,
    demands,
    hosting,
    job,
    many_demands,
    pool_of,
    using,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st

from flexo.aggregation.assignment import TaskTooLarge, assign, assign_evenly
from flexo.aggregation.demand import AggregationTask, Capacity, JobDemand, piece_sizes
from flexo.aggregation.pool import AggregatorPool, most_transfer


def hosts(pool: AggregatorPool | None, name: str) -> tuple[int, ...]:
    assert pool is not None
    return pool.hosts(name)


def test_a_job_goes_beside_another_one_if_neither_loses_and_the_cycle_holds_both():
    assert hosts(assign(pool_of((job("J2", 12, 3),)), job("J1", 6, 2), LIMITS), "J1") == (1,)


def test_a_job_that_would_slow_one_that_is_there_gets_a_new_aggregator():
    assert hosts(assign(pool_of((job("J1", 5, 1),)), job("J2", 12, 3), LIMITS), "J2") == (2,)


def test_a_job_that_would_be_slowed_itself_gets_a_new_aggregator():
    assert hosts(assign(pool_of((job("J2", 12, 3),)), job("J1", 5, 1), LIMITS), "J1") == (2,)


def test_a_loss_of_exactly_the_limit_is_refused_and_a_little_less_is_not():
    assert hosts(assign(pool_of((job("a", 10, 1),)), job("b", 3, 1), LIMITS), "b") == (2,)
    assert hosts(assign(pool_of((job("a", 10, 1),)), job("b", 3.001, 1), LIMITS), "b") == (1,)


def test_a_task_needs_its_time_in_each_iteration_of_the_cycle():
    full = pool_of((job("J2", 12, 9),))
    assert hosts(assign(full, job("J1", 6, 2), LIMITS), "J1") == (2,), "9 + 2 * 2 is 13"
    assert hosts(assign(full, job("J1", 6, 1.5), LIMITS), "J1") == (1,), "9 + 2 * 1.5 is 12"


def test_only_whole_iterations_count_in_the_cycle():
    pool = pool_of((job("J1", 11, 6),))
    assert hosts(assign(pool, job("J2", 12, 6), LIMITS), "J2") == (1,), "J1 runs once in 12, not twice"


def test_the_limits_are_the_printed_ones():
    assert (LIMITS.loss, LIMITS.probation) == (Fraction(1, 10), 100)


def test_the_task_goes_where_the_least_is_free():
    pool = pool_of((job("a", 10, 2),), (job("b", 10, 6),), (job("c", 10, 9),))
    assert hosts(assign(pool, job("new", 10, 4), LIMITS), "new") == (2,)
    assert hosts(assign(pool, job("new", 10, 1), LIMITS), "new") == (3,)


def test_tasks_that_do_not_fit_beside_each_other_are_spread():
    pool = pool_of((job("a", 10, 7),), (job("b", 10, 8),))
    after = assign(pool, job("new", 10, 2, 2, 1), LIMITS)
    assert after is not None
    assert after.places("new") == {"t0": 2, "t1": 1, "t2": 1}


def test_a_job_has_no_more_on_one_aggregator_than_a_dedicated_server_would_have():
    after = assign(AggregatorPool(LARGE), using("vgg19", 600, Fraction(4, 25), servers=2), LIMITS)
    assert hosts(after, "vgg19") == (1, 2)
    again = assign(after, using("other", 600, Fraction(4, 25), servers=2), LIMITS)
    assert hosts(again, "other") == (1, 2)


def test_the_network_interface_is_filled_to_four_fifths_and_no_further():
    narrow = Capacity(network=100_000_000, memory=10**12)
    # two senders push and pull 1 MB every 100 ms: 40 MB/s of the 80 that are allowed
    pool = pool_of((job("a", 100, 1, senders=2),), capacity=narrow)
    after = assign(pool, job("b", 100, 1, senders=2), LIMITS)
    assert hosts(after, "b") == (1,)
    assert after.aggregators[1].transfer == most_transfer(narrow, LIMITS, 100 * MS)
    assert hosts(assign(after, job("c", 100, 0, size=1), LIMITS), "c") == (2,)


def test_the_network_counts_each_iteration_in_the_cycle():
    narrow = Capacity(network=100_000_000, memory=10**12)
    pool = pool_of((job("slow", 200, 1, senders=2),), capacity=narrow)
    assert hosts(assign(pool, job("b", 100, 1, senders=3), LIMITS), "b") == (1,)
    assert hosts(assign(pool, job("b", 100, 1, senders=4), LIMITS), "b") == (2,)


def test_memory_holds_a_buffer_for_each_sender_and_two_more():
    tight = Capacity(network=10**12, memory=9_000_000)
    pool = pool_of((job("a", 10, 1, senders=2),), capacity=tight)
    assert hosts(assign(pool, job("b", 10, 1, senders=3), LIMITS), "b") == (1,)
    assert hosts(assign(pool, job("b", 10, 1, senders=4), LIMITS), "b") == (2,)


def test_a_task_that_no_aggregator_can_host_is_refused_with_its_numbers():
    for demand in (job("j", 10, 11), job("j", 10, 1, size=SMALL.memory), job("j", 1, 0, size=4_000_000)):
        with pytest.raises(TaskTooLarge, match=r"job j, task t0: \d+ bytes from 1 senders"):
            assign(AggregatorPool(SMALL), demand, LIMITS)


def test_nothing_is_assigned_if_it_would_take_more_new_aggregators_than_allowed():
    pool = pool_of((job("a", 10, 9),))
    assert assign(pool, job("b", 10, 5, 6), LIMITS, most_new=1) is None
    assert assign(pool, job("b", 10, 1, 6), LIMITS, most_new=0) is None
    assert hosts(assign(pool, job("b", 10, 1, 6), LIMITS, most_new=1), "b") == (1, 2)


def test_only_the_named_aggregators_and_new_ones_host_a_job():
    pool = pool_of((job("a", 10, 2),), (job("b", 10, 6),))
    assert hosts(assign(pool, job("new", 10, 4), LIMITS, among={1}), "new") == (1,)
    assert hosts(assign(pool, job("new", 10, 4), LIMITS, among=()), "new") == (3,)


def test_an_even_assignment_uses_all_aggregators_about_the_same():
    pool = pool_of((job("a", 10, 4),), (job("b", 10, 4),))
    after = assign_evenly(pool, job("new", 10, *[1] * 7), LIMITS, (1, 2, 3))
    assert after is not None
    assert [each.load_ns // MS for each in after.aggregators.values()] == [5, 5, 5]
    assert assign_evenly(pool, job("new", 10, 7), LIMITS, (1, 2)) is None


def test_pieces_of_a_tensor_are_as_equal_as_bytes_allow_and_none_is_too_large():
    assert piece_sizes(4_000_000) == (4_000_000,)
    assert piece_sizes(4_000_001) == (2_000_000, 2_000_001)
    assert piece_sizes(1) == (1,)


@given(tensor=st.integers(1, 10**9), largest=st.integers(1000, 10**7))
def test_pieces_add_up_to_their_tensor(tensor, largest):
    sizes = piece_sizes(tensor, max(largest, tensor // 500))
    assert sum(sizes) == tensor
    assert min(sizes) > 0
    assert max(sizes) <= max(largest, tensor // 500)


@pytest.mark.parametrize(
    ("field", "value"), [("duration_ns", 0), ("senders", 0), ("servers", 0), ("tasks", "twice")]
)
def test_a_demand_that_makes_no_sense_is_refused(field, value):
    demand = job("j", 10, 1)
    with pytest.raises(ValueError, match="job j"):
        replace(demand, **{field: demand.tasks * 2 if value == "twice" else value})


def test_a_task_without_bytes_or_with_negative_time_is_refused():
    for size, execution in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match="task t"):
            AggregationTask("t", size, execution)


@given(jobs=many_demands())
def test_no_assignment_breaks_a_limit_or_loses_a_task(jobs):
    pool = AggregatorPool(SMALL)
    for each in jobs:
        assigned = assign(pool, each, LIMITS)
        assert assigned is not None
        pool = assigned
        assert pool.broken_limits(LIMITS) == ()
        assert whole(pool)
        assert all(pool.loss(name) < LIMITS.loss for name in pool.jobs)


@given(jobs=many_demands(5))
def test_the_same_jobs_are_assigned_the_same_in_whatever_order_their_tasks_come(jobs):
    one, other = AggregatorPool(SMALL), AggregatorPool(SMALL)
    for each in jobs:
        one = assign(one, each, LIMITS)
        other = assign(other, replace(each, tasks=each.tasks[::-1]), LIMITS)
        assert one.places(each.job) == other.places(each.job)


@given(demand=demands())
def test_equal_tasks_go_where_they_would_go_one_by_one(demand):
    pool = pool_of((job("a", 600, 400),), (job("b", 300, 100),), (job("c", 1200, 1000),), capacity=SMALL)
    equal = replace(demand, servers=1, tasks=tuple(replace(demand.tasks[0], key=f"t{n}") for n in range(9)))
    together = assign(pool, equal, LIMITS)
    assert together is not None
    single = pool
    for each in equal.tasks:
        single = assign(single, equal, LIMITS, tasks=[each])
    numbers = {
        number: len(each.hosted["job"].tasks)
        for number, each in single.aggregators.items()
        if "job" in each.hosted
    }
    assert numbers == {
        n: len(each.hosted["job"].tasks) for n, each in together.aggregators.items() if "job" in each.hosted
    }


def test_an_arrival_of_2000_tasks_on_500_aggregators_is_assigned_in_well_under_a_second():
    pool = AggregatorPool(LARGE)
    for number in range(1, 501):
        for each in range(3):
            there = job(f"j{number}.{each}", 600, 150 + number / 12 + each)
            pool = pool.hosting(there, {number: there.tasks})
    tasks = tuple(AggregationTask(f"t{n}", 1_000_000 + n, 2 * MS + n * 997) for n in range(2000))
    began = time.process_time()
    after = assign(pool, JobDemand("new", 600 * MS, 4, tasks, 8), LIMITS)
    took_s = time.process_time() - began
    assert after is not None
    assert after.broken_limits(LIMITS) == ()
    assert len(after.hosts("new")) >= 8
    assert took_s < 1.0


def test_an_aggregator_that_is_over_a_limit_already_takes_nothing_more():
    small = Capacity(network=250_000_000, memory=2_999_999)
    for over in (hosting(job("a", 10, 11)), hosting(job("a", 10, 1), capacity=small)):
        assert over.broken_limit(LIMITS)
        assert over.room(job("b", 10, 1), LIMITS) is None
