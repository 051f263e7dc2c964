"""Jobs in virtual time as on Slurm: bases stay, flexible demand comes and goes as satellites."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from little_simulations import ONE_GPU, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.ranges import Range
from flexo.policies import registry
from flexo_simulation.engine import simulate
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime
from flexo_simulation.records import End, JobRecord
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

TIMES = SlurmTimes(
    submit_s=1.0,
    free_s=2.0,
    backfill_s=5.0,
    boot=StartTime(10.0, 1.0),
    end_s=3.0,
    look_s=2.0,
    satellite_s=1.0,
    warm=StartTime(20.0, 2.0),
    leave_s=4.0,
    join_s=0.5,
    part_s=0.25,
    min_resize_interval_s=0.0,
)


def elastic(number: int, work: float, least: int, most: int, at: float = 0.0, **changes) -> TraceJob:
    """A job of so many seconds of one worker."""
    training = LinearTraining(work)
    return TraceJob(number, at, Range(least, most), least, ONE_GPU, training, user="ada", **changes)


def run(
    *jobs: TraceJob, policy: str = "greedy", nodes: int = 2, gpus: int = 4, times: SlurmTimes = TIMES
) -> tuple[JobRecord, ...]:
    scenario = Scenario((NodeGroup(nodes, gpus),), on_slurm=times)
    return simulate(Workload("test", jobs), registry.make(policy), scenario).records


def sizes(record: JobRecord) -> list[tuple[float, int]]:
    return [(held.at, held.workers) for held in record.timeline]


def test_a_job_that_is_not_elastic_waits_for_slurm_only() -> None:
    (record,) = run(trace_job(1, seconds=100, workers=2))
    assert (record.first_start_at, record.ended_at) == (1.0, 101.0)
    assert record.gpu_s == 200.0


def test_a_base_boots_before_it_trains_and_ends_a_while_after_it() -> None:
    (record,) = run(elastic(1, 100, 2, 3), policy="backfill")
    assert record.first_start_at == 1.0
    assert record.ended_at == pytest.approx(1 + 11 + 50 + 3)


def test_a_base_trains_on_while_its_satellite_warms_up() -> None:
    (record,) = run(elastic(1, 1000, 1, 4), gpus=4)
    # started at 1, trains from 11 on, granted at once: the satellite runs at 12, its three join at 36
    assert sizes(record) == [(1.0, 1), (36.0, 4)]
    left = 1000 - (36 - 11)
    assert record.ended_at == pytest.approx(36 + 0.5 + left / 4 + 3)
    held_by_satellite = record.ended_at - 12
    assert record.gpu_s == pytest.approx((record.ended_at - 1) + 3 * held_by_satellite, rel=0.01)


def test_slurm_takes_satellites_for_a_job_that_waits_and_never_a_base() -> None:
    growing, waiting = run(elastic(1, 1000, 1, 4), trace_job(2, 30, 4, at=60.0), nodes=1)
    # submitted at 60, looked at at 61; it has to wait for the base
    assert [workers for _, workers in sizes(growing)] == [1, 4]
    assert waiting.first_start_at == pytest.approx(growing.ended_at + TIMES.free_s)
    growing, waiting = run(elastic(1, 1000, 1, 4), trace_job(2, 30, 3, at=60.0), nodes=1)
    assert [workers for _, workers in sizes(growing)][:3] == [1, 4, 1]
    assert waiting.first_start_at == 61.0 + TIMES.leave_s
    assert growing.preemptions == 0


def test_a_job_begins_where_no_satellite_has_to_go() -> None:
    growing, waiting = run(elastic(1, 2000, 1, 4), trace_job(2, 30, 4, at=60.0), nodes=2)
    assert waiting.first_start_at == 61.0
    assert [workers for _, workers in sizes(growing)] == [1, 4]


def test_a_job_further_back_starts_first_only_if_its_limit_ends_in_time() -> None:
    running = trace_job(1, 100, 3, time_limit_s=120)
    head = trace_job(2, 50, 4, at=10.0, time_limit_s=100)
    short = trace_job(3, 30, 1, at=20.0, time_limit_s=60)
    long = trace_job(4, 30, 1, at=20.0, time_limit_s=600)
    _, head_record, short_record, long_record = run(running, head, short, long, nodes=1)
    assert short_record.first_start_at == 21.0
    assert head_record.first_start_at == 103.0
    assert long_record.first_start_at > head_record.ended_at


def test_a_satellite_is_given_up_that_would_hold_up_a_waiting_job() -> None:
    times = replace(TIMES, min_resize_interval_s=0.0)
    rigid = trace_job(1, 100, 3, time_limit_s=120)
    head = trace_job(2, 50, 6, at=1.0, time_limit_s=100)
    growing, *_ = run(
        elastic(3, 200, 1, 3), replace(rigid, submitted_at=0.0), head, nodes=2, gpus=4, times=times
    )
    # a satellite's lease is longer than the head would have to wait, on whichever node it is
    assert sizes(growing)[0][1] == 1
    assert growing.end is End.FINISHED


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["backfill", "fifo", "greedy", "lyra", "elastic-tiresias", "goodput"])
def test_every_job_ends_and_no_gpu_is_held_twice(policy: str) -> None:
    of = random.Random(policy)
    jobs, at = [], 0.0
    for number in range(1, 40):
        at += of.expovariate(1 / 20)
        least = of.choice([1, 1, 2, 4])
        if of.random() < 0.5:
            jobs.append(elastic(number, of.uniform(50, 2000), least, 4 * least, at))
        else:
            jobs.append(trace_job(number, of.uniform(20, 300), least, at, time_limit_s=600))
    records = run(*jobs, policy=policy, nodes=4)
    assert all(record.end is End.FINISHED for record in records)
    for record in records:
        assert all(
            record.job.workers.min <= workers <= record.job.workers.max for _, workers in sizes(record)
        )
    assert _most_held(records) <= 16


def _most_held(records: tuple[JobRecord, ...]) -> int:
    """Workers that trained at once, at most: those that held GPUs without training are not among them."""
    changes: list[tuple[float, int]] = []
    for record in records:
        assert record.ended_at is not None
        before = 0
        for at, workers in sizes(record):
            changes.append((at, workers - before))
            before = workers
        changes.append((record.ended_at, -before))
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def test_a_simulation_on_slurm_gives_the_same_every_time() -> None:
    jobs = [elastic(number, 400.0, 1, 6, at=5.0 * number) for number in range(1, 8)]
    first, second = run(*jobs, nodes=3), run(*jobs, nodes=3)
    assert [(record.ended_at, record.timeline) for record in first] == [
        (record.ended_at, record.timeline) for record in second
    ]
