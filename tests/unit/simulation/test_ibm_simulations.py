"""IBM's policy in the simulator: when it decides, whom it refuses, and the figures that the paper names."""

from __future__ import annotations

import pytest
from little_simulations import trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.fixed_batch import RandomBatch
from flexo.policies.throughput import Throughput
from flexo.scalability.table import TableSpeed
from flexo_simulation.engine import simulate
from flexo_simulation.ibm_training import Arrivals, generate
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.records import End
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

FOUR_GPUS = Scenario((NodeGroup(1, 4),))
PLAIN = Throughput(600.0, ended_share=0.0)


def test_ten_minutes_on_one_gpu_and_six_on_two_are_an_efficiency_of_five_sixths():
    training = LinearTraining(600.0, TableSpeed.of({1: 1.0, 2: 600 / 360}))
    job = trace_job(1, workers="1-2", training=training)
    result = simulate(Workload("one job", (job,)), Throughput(), FOUR_GPUS).result
    assert result.avg_jct_s == pytest.approx(360.0)
    assert result.sjs_efficiency == pytest.approx(0.833, abs=0.001)


def test_who_comes_between_two_decisions_waits_for_the_next():
    jobs = (trace_job(1, 5000.0), trace_job(2, at=60.0), trace_job(3, at=70.0))
    records = simulate(Workload("three jobs", jobs), PLAIN, FOUR_GPUS).records
    assert [record.first_start_at for record in records] == [0.0, 600.0, 600.0]


def test_enough_jobs_that_have_ended_bring_the_decision_forward():
    jobs = (trace_job(1, 5000.0), trace_job(2, 90.0), trace_job(3, at=60.0))
    records = simulate(Workload("three jobs", jobs), Throughput(), FOUR_GPUS).records
    assert [record.first_start_at for record in records] == [0.0, 0.0, 90.0]


def test_who_does_not_fit_is_dropped_or_waits():
    jobs = (trace_job(1, 1000.0, 3), trace_job(2, 100.0, 2, at=10.0))
    workload = Workload("two jobs", jobs)
    dropped = simulate(workload, Throughput(0.0, drops=True), FOUR_GPUS)
    assert dropped.records[1].end is End.DROPPED
    assert dropped.result.drop_ratio == 0.5
    queued = simulate(workload, Throughput(0.0), FOUR_GPUS)
    assert queued.records[1].first_start_at == 1000.0


@pytest.mark.parametrize("drops", [True, False])
def test_batch_size_elasticity_beats_a_random_batch_on_ibms_jobs(drops: bool):
    workload = generate(Arrivals(240.0), 40, 5)
    scenario = Scenario((NodeGroup(20, 2),), interval_s=600.0)
    elastic = simulate(workload, Throughput(0.0, drops=drops), scenario).result
    fixed = simulate(workload, RandomBatch(0.0, drops=drops, seed=5), scenario).result
    assert elastic.sjs_efficiency > 1.3 * fixed.sjs_efficiency
    if drops:
        assert fixed.drop_ratio > 2 * elastic.drop_ratio
        assert elastic.finished + round(elastic.drop_ratio * elastic.jobs) == elastic.jobs
    else:
        assert elastic.finished == fixed.finished == len(workload.jobs)
        assert fixed.avg_jct_s > 2 * elastic.avg_jct_s
