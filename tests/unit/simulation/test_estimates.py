"""What policies are told of running times that no scheduler can know."""

from __future__ import annotations

import math

import pytest
from little_simulations import Doing, Script, greedy_fifo, on_one_node, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.measured import Source
from flexo.policies import registry
from flexo.policies.base import Jobs
from flexo.policies.placement import Placement
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimate, Estimates, Estimator, Mode
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload


def estimator(mode: Mode, *seconds: float) -> Estimator:
    """With a history of Ada's jobs of two workers."""
    made = Estimator(Estimates(mode))
    for time in seconds:
        made.ended(trace_job(99, workers=2), 2 * time, None)
    return made


JOB = trace_job(1, 100.0, 2)
LIMITED = trace_job(1, 100.0, 2, time_limit_s=500)
OTHER = trace_job(1, 100.0, 4)


def test_an_oracle_tells_the_truth():
    assert estimator(Mode.ORACLE, 7.0).estimate(JOB, 150.0, 50.0, None) == Estimate(150.0, Source.ORACLE)


def test_history_is_the_median_of_the_last_ten_like_jobs():
    known = estimator(Mode.HISTORY, *[1e6] * 5, *[30.0] * 4, 50.0, *[70.0] * 5)
    assert known.estimate(LIMITED, 200.0, 0.0, None) == Estimate(120.0, Source.HISTORY, 120.0)
    assert known.estimate(LIMITED, 180.0, 20.0, None) == Estimate(100.0, Source.HISTORY, 100.0)


def test_without_like_jobs_it_is_the_time_limit_and_without_one_the_median_of_all():
    known = estimator(Mode.HISTORY, 10.0, 20.0, 40.0)
    limited = trace_job(1, workers=4, time_limit_s=500)
    assert known.estimate(limited, 400.0, 0.0, None) == Estimate(2000.0, Source.TIME_LIMIT, 2000.0)
    assert known.estimate(OTHER, 400.0, 0.0, None) == Estimate(80.0, Source.HISTORY, 80.0)
    assert estimator(Mode.HISTORY).estimate(OTHER, 400.0, 0.0, None) == Estimate(None, Source.TIME_LIMIT)


def test_a_job_that_outruns_its_estimate_is_taken_to_go_on_to_its_limit_or_twice_as_long():
    known = estimator(Mode.HISTORY, 60.0)
    assert known.estimate(JOB, 60.0, 140.0, None) == Estimate(100.0, Source.HISTORY, 100.0)
    assert known.estimate(LIMITED, 60.0, 140.0, None) == Estimate(860.0, Source.HISTORY, 860.0)


def test_the_limit_alone_counts_where_that_is_wanted():
    known = estimator(Mode.LIMIT, 60.0)
    assert known.estimate(LIMITED, 200.0, 0.0, None) == Estimate(1000.0, Source.TIME_LIMIT, 1000.0)
    assert known.estimate(JOB, 200.0, 0.0, None) == Estimate(None, Source.TIME_LIMIT)


def test_a_job_that_has_run_for_a_while_tells_how_far_it_is():
    known = estimator(Mode.PROGRESS, 1000.0)
    assert known.estimate(JOB, 2e4, 0.0, None) == Estimate(2000.0, Source.HISTORY, 600.0)
    assert known.estimate(JOB, 2e4 - 600, 600.0, None) == Estimate(2e4 - 600, Source.PROGRESS)


def test_a_running_job_is_estimated_anew_when_it_outruns_what_was_believed_and_nobody_decides_for_that():
    script = Script({0.0: {1: 1}, 10.0: {2: 1}, 200.0: {3: 1}})
    jobs = [trace_job(1, 10.0), trace_job(2, 1000.0, at=10.0), trace_job(3, 1.0, at=200.0)]
    on_one_node(jobs, script, mode=Mode.HISTORY)
    assert [look.at for look in script.seen] == pytest.approx([0, 10, 200, 201, 1010])
    waiting, running, *_ = script.looks(2)
    assert (waiting.remaining_work, waiting.source) == (10.0, Source.HISTORY)
    # outrun after 10, 20, 40, 80 and 160 s
    assert running.as_of == pytest.approx(10.0 + 160.0)
    assert running.remaining_at(200.0) == pytest.approx(320.0 - 190.0)


@pytest.mark.parametrize(
    ("mode", "policy", "oracle"),
    [
        (Mode.ORACLE, "backfill", True),
        (Mode.HISTORY, "backfill", False),
        (Mode.ORACLE, "fifo", False),
        (Mode.HISTORY, "srtf", True),
    ],
)
def test_results_say_whether_a_policy_went_by_what_no_scheduler_knows(mode, policy, oracle):
    workload = Workload("test", (trace_job(1, time_limit_s=200),))
    place = Scenario((NodeGroup(1, 8),), estimates=Estimates(mode))
    assert simulate(workload, registry.make(policy), place).result.oracle is oracle


def test_no_job_is_believed_to_have_less_than_nothing_left():
    seen: list[float] = []

    def what(jobs: Jobs, placement: Placement):
        seen.extend(job.remaining_at(jobs.at) or 0.0 for job in jobs.training)
        return greedy_fifo(jobs, placement)

    jobs = tuple(trace_job(n, 10.0 ** (n % 4), n % 3 + 1, at=7.0 * n) for n in range(1, 80))
    simulate(Workload("test", jobs), Doing(what), Scenario((NodeGroup(1, 8),)))
    assert min(seen) >= 0.0
    assert all(math.isfinite(value) for value in seen)
