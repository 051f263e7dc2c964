"""A new job's temporary Aggregators, and the profile that comes of its first iterations."""

from __future__ import annotations

import pytest

from flexo.aggregation.profiling import JobProfiler, deal


def profiler(**more: int) -> JobProfiler:
    return JobProfiler("j", {"a": 4_000_000, "b": 1000}, senders=2, servers=2, **more)


def test_the_tasks_of_a_new_job_are_dealt_by_bytes_to_as_many_aggregators_as_it_has_servers():
    assert deal({"a": 5, "b": 3, "c": 3, "d": 1}, 2) == (("a", "d"), ("b", "c"))
    assert deal({"a": 5}, 3) == (("a",), (), ())


def test_first_iterations_and_stragglers_do_not_count_and_execution_times_are_rounded_up():
    watched = profiler(iterations=5, warm_up=2)
    for duration, execution in ((900, 90), (800, 80), (100, 10), (101, 10), (700, 10), (99, 10), (100, 11)):
        assert not watched.done
        watched.note(duration, {"a": execution, "b": 1})
    assert watched.done
    demand = watched.demand()
    assert (demand.duration_ns, demand.senders, demand.servers) == (100, 2, 2)
    assert [(task.key, task.size, task.execution_ns) for task in demand.tasks] == [
        ("a", 4_000_000, 11),
        ("b", 1000, 1),
    ]


def test_iterations_after_the_profile_change_nothing():
    watched = profiler(iterations=1, warm_up=0)
    watched.note(100, {"a": 10, "b": 1})
    before = watched.demand()
    watched.note(10_000, {"a": 10_000, "b": 10_000})
    assert watched.demand() == before


def test_a_profile_takes_100_iterations_after_the_first_10():
    watched = profiler()
    for _ in range(109):
        watched.note(100, {"a": 10, "b": 1})
    with pytest.raises(ValueError, match="99 of 100"):
        watched.demand()
    watched.note(100, {"a": 10, "b": 1})
    assert watched.demand().duration_ns == 100


def test_an_iteration_that_lacks_a_task_is_refused():
    with pytest.raises(KeyError, match="b"):
        profiler(warm_up=0).note(100, {"a": 10})
