"""How make bench-service judges migrations, with times made up here; and flexod's stand-in, which assigns."""

from __future__ import annotations

import queue
from itertools import accumulate
from pathlib import Path

import grpc
import pytest

pytest.importorskip("torch")

from flexo_bench.local_job.assigning import assigning_flexod, variables_of
from flexo_bench.service.migration import RESIDENT, RESIZE, SUM, Moved, goals_of, summary
from flexo_bench.service.migration_judged import Cost, Migration, cost_of
from flexo_protos.job_secret import FILE_VARIABLE, JobSecret
from flexo_protos.v1 import jobs_pb2, jobs_pb2_grpc
from horovod_elastic.aggregation.control import AssignedAggregator

pytestmark = pytest.mark.thorough


def ends(*gaps: float) -> list[float]:
    """When steps ended, the first one at 100."""
    return list(accumulate(gaps, initial=100.0))


def test_a_pause_is_the_longest_gap_after_a_migration_began_beyond_the_median_step() -> None:
    calm, moved = [0.1, 0.1, 0.13, 0.1, 0.1], [0.1, 0.35, 0.1, 0.1]
    found = cost_of(Migration(100.0, 100.55, 100.9), [ends(*calm, *moved)])
    assert (found.pause_s, found.calm_s, found.step_s) == pytest.approx((0.25, 0.03, 0.1))
    assert found.added_s == pytest.approx(0.22)


def test_a_migration_is_compared_with_as_many_steps_as_it_took() -> None:
    calm = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2]
    short = cost_of(Migration(100.0, 100.95, 100.96), [ends(*calm, 0.1, 0.1, 0.1)])
    long = cost_of(Migration(100.0, 100.95, 101.55), [ends(*calm, *[0.1] * 8)])
    assert (short.calm_s, long.calm_s) == pytest.approx((0.0, 0.1))


def test_one_step_after_a_migration_counts_and_later_ones_do_not() -> None:
    gaps = [0.1, 0.1, 0.1, 0.1, 0.2, 0.9]
    assert cost_of(Migration(100.0, 100.31, 100.35), [ends(*gaps)]).pause_s == pytest.approx(0.1)


def test_the_step_in_which_a_migration_begins_counts() -> None:
    found = cost_of(Migration(100.0, 100.31, 101.0), [ends(0.1, 0.1, 0.1, 0.5, 0.1)])
    assert found.pause_s == pytest.approx(0.4)


def test_the_worker_that_waits_longest_counts() -> None:
    workers = [ends(0.1, 0.1, 0.1, 0.2, 0.1), ends(0.1, 0.1, 0.1, 0.3, 0.1)]
    assert cost_of(Migration(100.0, 100.3, 101.0), workers).pause_s == pytest.approx(0.2)


def test_steps_of_other_migrations_do_not_count() -> None:
    workers = [ends(9.0, 0.1, 0.1, 0.1, 0.2, 0.1, 9.0)]
    found = cost_of(Migration(108.95, 109.3, 109.35), workers)
    assert (found.pause_s, found.calm_s) == pytest.approx((0.1, 0.0))


def test_a_migration_without_steps_before_it_is_not_judged() -> None:
    with pytest.raises(ValueError, match="0 steps before a migration"):
        cost_of(Migration(100.0, 100.05, 101.0), [ends(0.1, 0.1)])


def test_the_goals_are_a_tenth_of_a_mini_batch_or_25_ms_for_sums_and_one_mini_batch_for_tensors() -> None:
    moved = Moved((Cost(0.03, 0.01, 0.4), Cost(0.05, 0.02, 0.4), Cost(0.9, 0.0, 0.4)), {"batches_lost": 0})
    found = summary(moved)
    figures = found["runs"], found["pause_s"], found["added_s"], found["added_worst_s"]
    assert figures == pytest.approx((3, 0.05, 0.03, 0.9))
    assert goals_of(RESIZE, found) == []
    assert [(goal.name, goal.at_most) for goal in goals_of(SUM, found)] == [
        ("migration_s.sum", pytest.approx(0.04)),
        ("migration.sum.batches_lost", 0),
    ]
    assert goals_of(RESIDENT, found)[0].at_most == 0.4
    assert goals_of(SUM, {**found, "mini_batch_s": 0.1})[0].at_most == 0.025


def test_the_stand_in_tells_a_leader_each_assignment_and_hears_which_one_is_in_use() -> None:
    said: queue.SimpleQueue[jobs_pb2.FromLeader | None] = queue.SimpleQueue()
    said.put(jobs_pb2.FromLeader(hello=jobs_pb2.Hello(job_id=17)))
    with assigning_flexod() as flexod, grpc.insecure_channel(flexod.address) as channel:
        flexod.assign([AssignedAggregator("h", 1, "t")])
        told = jobs_pb2_grpc.JobServiceStub(channel).Attach(iter(said.get, None))
        assert next(told).WhichOneof("body") == "welcome"
        assert next(told).aggregators.aggregators[0].host == "h"
        assert flexod.assign([AssignedAggregator("i", 2, "t", 3)]) == 2
        latest = next(told).aggregators
        assert (latest.version, latest.aggregators[0].share) == (2, 3)
        use = jobs_pb2.AggregationUse(version=2)
        said.put(jobs_pb2.FromLeader(report=jobs_pb2.Report(aggregation=use)))
        said.put(None)
        assert list(told) == []
        assert flexod.version_in_use == 2


def test_a_job_of_the_stand_in_has_a_secret_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = variables_of(tmp_path / "job")
    monkeypatch.setenv(FILE_VARIABLE, variables[FILE_VARIABLE])
    JobSecret.from_file()
    assert Path(variables[FILE_VARIABLE]).stat().st_mode & 0o777 == 0o600
