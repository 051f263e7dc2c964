"""Figures of simulations, each as its docstring defines it."""

from __future__ import annotations

import json

import pytest
from little_simulations import Script, allocate, on_one_node, trace_job

from flexo.policies.base import Jobs
from flexo.policies.placement import Placement
from flexo.scalability.table import TableSpeed
from flexo_simulation.costs import Costs
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.records import End, JobRecord
from flexo_simulation.results import summarize


def finished(number: int, at: float, start: float, end: float, gpu_s: float = 1.0) -> JobRecord:
    return JobRecord(trace_job(number, 1.0, at=at), End.FINISHED, start, end, gpu_s)


def test_completion_and_waiting_times_are_counted_from_submission():
    records = [finished(n, 10.0 * n, 10.0 * n + n, 10.0 * n + 2 * n) for n in range(1, 101)]
    result = summarize(records, gpus=4)
    assert (result.jobs, result.finished) == (100, 100)
    assert (result.avg_jct_s, result.median_jct_s, result.max_jct_s) == (101.0, 101.0, 200.0)
    assert (result.p95_jct_s, result.p99_jct_s) == pytest.approx((190.1, 198.02))
    assert (result.avg_queue_s, result.median_queue_s) == (50.5, 50.5)
    assert result.p95_queue_s == pytest.approx(95.05)
    assert result.makespan_s == 1200.0 - 10.0


def test_utilization_is_of_all_gpus_during_the_makespan():
    outcome = on_one_node([trace_job(1, 100.0, 4, at=50.0), trace_job(2, 50.0, 2, at=50.0)])
    assert outcome.result.gpu_utilization == pytest.approx((400 + 100) / (8 * 100))
    assert outcome.gpus == 8


def test_jobs_that_did_not_finish_have_no_completion_time_and_those_that_never_ran_no_waiting_time():
    dropped = JobRecord(trace_job(2), End.DROPPED, None, 5.0)
    limited = JobRecord(trace_job(3), End.LIMIT, 4.0, 9.0)
    result = summarize([finished(1, 0.0, 1.0, 3.0), dropped, limited], gpus=1)
    assert (result.avg_jct_s, result.avg_queue_s, result.drop_ratio) == (3.0, 2.5, pytest.approx(1 / 3))
    assert (result.jobs, result.finished) == (3, 1)


def test_efficiency_compares_with_one_worker_as_ibm_does():
    # 10 minutes on one GPU, 6 on two (FACTS: 0.833)
    speed = TableSpeed.of({1: 1.0, 2: 10 / 6})
    job = trace_job(1, workers=2, training=LinearTraining(600.0, speed))
    assert on_one_node([job]).result.sjs_efficiency == pytest.approx(0.8333, abs=1e-4)


def test_a_job_that_one_worker_cannot_train_is_compared_with_the_fewest_that_can():
    training = LinearTraining(100.0, TableSpeed.of({2: 1.0, 4: 1.6}))
    assert on_one_node([trace_job(1, workers=4, training=training)]).result.sjs_efficiency == pytest.approx(
        0.8
    )


def test_gpus_held_while_a_start_is_paid_for_are_not_efficient():
    result = on_one_node([trace_job(1, 100.0, 2)], costs=Costs(start_s=25.0)).result
    assert result.sjs_efficiency == pytest.approx(0.8)


def test_resizes_and_preemptions_of_all_jobs_are_added_up():
    script = Script({0.0: {1: 2, 2: 2}, 5.0: {1: 3, 2: 0}, 6.0: {1: 4, 2: 2}})
    jobs = [trace_job(1, 50.0, "1-4"), trace_job(2, 50.0, 2)]
    ticks = [trace_job(n, 1.0, at=n + 2.0) for n in (3, 4)]
    result = on_one_node([*jobs, *ticks], script).result
    assert (result.resizes, result.preemptions) == (2, 1)


def test_nothing_to_count_is_null_in_json():
    def nothing(jobs: Jobs, placement: Placement):
        return []

    result = on_one_node([trace_job(1)], nothing).result
    written = json.loads(json.dumps(result.to_json()))
    assert written["avg_jct_s"] is None
    assert written["gpu_utilization"] is None
    assert written["never_started"] == ["1"]
    assert set(written) >= {
        *("jobs", "avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "max_jct_s", "avg_queue_s"),
        *("median_queue_s", "p95_queue_s", "makespan_s", "gpu_utilization", "resizes", "preemptions"),
        *("sjs_efficiency", "drop_ratio", "wall_s", "events", "oracle"),
    }


def test_being_given_what_it_has_is_no_resize():
    def again(jobs: Jobs, placement: Placement):
        return [allocate(job.key.job_id, 1) for job in jobs.training]

    result = on_one_node([trace_job(1, 10.0, "1-2"), trace_job(2, 1.0, at=1.0)], again).result
    assert (result.resizes, result.preemptions) == (0, 0)
