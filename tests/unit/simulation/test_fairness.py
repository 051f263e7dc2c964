"""Finish-time fairness, as Themis and Sia count it."""

from __future__ import annotations

import math

import pytest
from little_simulations import on_one_node, trace_job

from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo_protos.resources import Resources
from flexo_simulation.alone import alone_s
from flexo_simulation.fairness import finish_time_fairness
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.records import End, JobRecord
from flexo_simulation.workload import TraceJob

EIGHT = make_nodes([NodeGroup(2, 4)])


class SlowOnS:
    """A training that is half as fast on nodes whose names begin with s."""

    def __init__(self, work: float) -> None:
        self.work = work
        self.finished = False

    def begin(self) -> SlowOnS:
        return SlowOnS(self.work)

    def time_left_s(self, shares, samples):
        pace = sum(share.workers * (0.5 if share.node.startswith("s") else 1.0) for share in shares)
        return self.work / pace

    def advance(self, seconds, shares, samples):
        self.finished = True
        return seconds


def done(job: TraceJob, end: float) -> JobRecord:
    return JobRecord(job, End.FINISHED, job.submitted_at, end)


def test_a_job_alone_on_the_cluster_is_as_fast_as_alone():
    fairness = finish_time_fairness([done(trace_job(1, 100.0, "1-8"), 100.0)], EIGHT)
    assert (fairness.worst, fairness.unfair_share) == (pytest.approx(1.0), 0.0)


def test_the_share_of_a_job_is_one_of_as_many_as_there_were_beside_it():
    """With one other job all the time, it has 4 of 8 GPUs: 200 s of its 100 with 8."""
    jobs = [trace_job(1, 100.0, "1-8"), trace_job(2, 100.0, "1-8")]
    fairness = finish_time_fairness([done(jobs[0], 300.0), done(jobs[1], 300.0)], EIGHT)
    assert (fairness.worst, fairness.unfair_share) == (pytest.approx(1.5), 1.0)


def test_a_job_that_was_there_for_half_of_the_time_counts_half():
    """1.5 jobs in the mean: 5 of 8 GPUs for a job that is linear up to 8."""
    jobs = [trace_job(1, 100.0, "1-8"), trace_job(2, 10.0, "1-8", at=100.0)]
    records = [done(jobs[0], 200.0), JobRecord(jobs[1], End.LIMIT, 100.0, 200.0)]
    assert finish_time_fairness(records, EIGHT).worst == pytest.approx(200.0 / 160.0)


def test_a_job_too_large_for_its_share_takes_turns():
    """The first needs 8 GPUs and has a share of 4, which is all of them half of the time: 200 s. Beside the
    second there were 1.5 jobs in the mean: 150 s."""
    jobs = [trace_job(1, 100.0, 8), trace_job(2, 100.0, 8)]
    records = [done(jobs[0], 100.0), done(jobs[1], 200.0)]
    fairness = finish_time_fairness(records, EIGHT)
    assert (fairness.worst, fairness.unfair_share) == (pytest.approx(200.0 / 150.0), 0.5)


def test_the_time_alone_is_the_mean_of_the_types_that_a_job_may_use():
    """64 s on 4 fast GPUs and 128 s on 12 slow ones: (4 * 64 + 12 * 128) / 16."""
    nodes = make_nodes([NodeGroup(1, 4, "fast", "f"), NodeGroup(3, 4, "slow", "s")])
    training = SlowOnS(256.0)
    anywhere = trace_job(1, workers=4, training=training)
    only = trace_job(1, workers=4, training=training, shape=Resources(1, 1, 0, "fast"))
    assert finish_time_fairness([done(anywhere, 112.0)], nodes).worst == pytest.approx(1.0)
    assert finish_time_fairness([done(only, 112.0)], nodes).worst == pytest.approx(112.0 / 64.0)


def test_jobs_without_an_end_and_clusters_without_nodes_have_no_fairness():
    limited = JobRecord(trace_job(1), End.LIMIT, 4.0, 9.0)
    assert math.isnan(finish_time_fairness([limited], EIGHT).worst)
    assert math.isnan(finish_time_fairness([done(trace_job(1), 9.0)], ()).unfair_share)


def test_a_simulation_reports_it():
    jobs = [trace_job(1, 100.0, 8), trace_job(2, 100.0, 8)]
    result = on_one_node(jobs).result
    assert (result.worst_fairness, result.unfair_share) == (pytest.approx(200.0 / 150.0), 0.5)


def test_alone_a_training_takes_what_its_runs_take():
    assert alone_s(LinearTraining(120.0), 3) == pytest.approx(40.0)


def test_a_training_that_cannot_run_takes_for_ever():
    training = SlowOnS(math.inf)
    assert math.isinf(alone_s(training, 1))


def test_a_job_that_has_nothing_to_do_does_not_count():
    nothing, something = trace_job(1, 0.0, "1-8"), trace_job(2, 100.0, "1-8", at=5.0)
    fairness = finish_time_fairness([done(nothing, 5.0), done(something, 105.0)], EIGHT)
    assert fairness.worst == pytest.approx(1.0)
