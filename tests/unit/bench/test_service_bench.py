"""The pure parts of make bench-service: how parts are merged, and the replay of jobs with servers."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from traces import needs_traces

from flexo.aggregation.scaling import ScalingRules
from flexo_bench.service import few_jobs, results, simulation
from flexo_bench.service.philly_jobs import (
    MODELS,
    SERVER_USE,
    Assumptions,
    TracedJob,
    demand_of,
    load,
    with_servers,
)
from flexo_bench.service.savings import Policy, replay

pytestmark = pytest.mark.thorough

ALEXNET, VGG19, *_ = MODELS


def traced(name: str, begins: float, ends: float, servers: int = 2) -> TracedJob:
    return TracedJob(begins, ends, demand_of(name, VGG19, servers), servers)


def test_a_part_replaces_its_own_keys_and_leaves_those_of_other_parts(tmp_path):
    path = tmp_path / "bench" / "service.json"
    results.merge(path, "one", {"a": 1, "b": 2}, "make one", quick=True)
    results.merge(path, "two", {"c": 3}, "make two", quick=False)
    results.merge(path, "one", {"a": 4}, "make again", quick=False)
    found = json.loads(path.read_text())
    assert (found["a"], found["b"], found["c"]) == (4, 2, 3)
    assert found["parts"]["one"]["command"] == "make again"
    assert not found["parts"]["one"]["quick"]
    assert found["parts"]["two"]["written_at"] > "2026"


def test_the_models_have_the_use_that_was_fixed_and_the_one_that_is_printed():
    assert Fraction(33, 100) == SERVER_USE
    assert Fraction(16, 100) == VGG19.use
    for model in MODELS:
        demand = demand_of("j", model, servers=3)
        assert demand.execution_ns / demand.duration_ns == pytest.approx(3 * float(model.use), abs=1e-6)
        assert sum(task.size for task in demand.tasks) == pytest.approx(model.size, rel=1e-4)
        assert max(task.size for task in demand.tasks) <= 4_000_000


def test_few_jobs_save_what_is_printed():
    found = few_jobs.figure_8()
    assert found["VGG19"] == [2, 2, 2, 2]
    assert [many[1] for many in found.values()] == [3, 2, 2, 2]
    assert few_jobs.table_2() == few_jobs.TABLE_2


def test_a_job_alone_has_as_many_aggregators_as_servers_and_saves_nothing():
    found = replay([traced("a", 0, 7200)], Policy(period_s=0))
    assert found.saved == pytest.approx(0)
    assert (found.below_one, found.worst) == (0, 1)
    assert (found.mean_servers, found.mean_aggregators) == (2, 2)


def test_a_second_job_shares_once_it_is_profiled():
    # 110 iterations of 0.6 s on 2 temporary Aggregators each, and then 2 for both
    found = replay([traced("a", 0, 6600), traced("b", 0, 6600)], Policy(period_s=0))
    assert found.mean_servers == 4
    assert found.mean_aggregators == pytest.approx((66 * 4 + 6534 * 2) / 6600)
    assert found.below_one == pytest.approx(1 - 2 / 110)


def test_aggregators_of_a_job_that_ended_count_until_the_period_ends():
    jobs = [traced("a", 0, 610, 8), traced("b", 0, 3600, 2)]
    assert replay(jobs, Policy(period_s=1800)).worst > replay(jobs, Policy(period_s=0)).worst
    assert replay(jobs, Policy(period_s=1800)).worst == 8 / 2
    alone = replay([traced("a", 0, 7200)], Policy(period_s=1000))
    assert alone.saved == pytest.approx(-800 / 7200)


def test_only_the_window_counts():
    jobs = [traced("a", 0, 6600), traced("b", 0, 6600)]
    assert replay(jobs, Policy(), (600, 1200)).saved == pytest.approx(0.5)


def test_jobs_below_the_threshold_wait_on_temporary_aggregators_until_the_period_ends():
    rules = ScalingRules(on_demand=3)
    found = replay([traced("a", 0, 1200), traced("b", 0, 1200)], Policy(rules, period_s=600))
    assert found.mean_aggregators == pytest.approx((600 * 4 + 600 * 2 + 600 * 2) / 1800)


def test_the_use_that_gives_a_saving_lies_between_two_points_of_the_curve():
    curve = [{"server_use": 0.2, "saved": 0.7}, {"server_use": 0.4, "saved": 0.5}]
    assert simulation.use_saving(0.6, curve) == pytest.approx(0.3)
    assert simulation.use_saving(0.8, curve) is None


def test_jobs_of_the_trace_have_a_server_for_each_worker_and_the_same_models_for_each_seed():
    workload = load(needs_traces("philly").parent)
    jobs = with_servers(workload, Assumptions(), 1)
    assert len(jobs) == 1932
    assert {job.servers for job in jobs} >= {2, 4, 8, 16, 32}
    assert jobs == with_servers(workload, Assumptions(), 1)
    assert jobs != with_servers(workload, Assumptions(), 2)
    narrow = with_servers(workload, replace(Assumptions(), as_wide_as_servers=False), 1, most=5)
    assert [job.demand.servers for job in narrow] == [1] * 5
