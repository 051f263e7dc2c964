"""Jobs in virtual time as on Slurm: bases stay, flexible demand comes and goes as satellites."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from little_simulations import ONE_GPU, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim_steps import Timing
from flexo.model.ranges import Range
from flexo.policies import registry
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo_simulation.demand_trace import DemandTrace
from flexo_simulation.engine import simulate
from flexo_simulation.inference import Inference
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime
from flexo_simulation.records import End, JobRecord
from flexo_simulation.results import SimulatedRun
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


def lends(servers: int, *needs: tuple[float, int]) -> Inference:
    """An inference cluster of servers of two slow GPUs, whose need changes at these times."""
    times, numbers = zip(*needs, strict=True)
    return Inference(
        NodeGroup(servers, 2, "t4", "i"),
        DemandTrace("test", times, tuple(map(float, numbers))),
        rules=Rules(
            interval_s=5.0, rest_s=0.0, hysteresis_servers=0.0, headroom_servers=0.0, reclaim_s=40.0
        ),
        timing=Timing(0.0, 20.0, 5.0),
        edit_interval_s=5.0,
        forecast=False,
    )  # fmt: skip


def run_with_loans(inference: Inference, *jobs: TraceJob, checkpoints: bool = False) -> SimulatedRun:
    times = replace(TIMES, evict_s=2.0, grace_s=15.0, again_s=30.0)
    scenario = Scenario(
        (NodeGroup(1, 2, "v100"),),
        on_slurm=times,
        inference=inference,
        checkpoints=checkpoints,
        gpu_speeds=GpuSpeeds({"t4": 0.5}),
    )
    return simulate(Workload("test", jobs), registry.make("greedy"), scenario)


def test_only_a_fungible_job_starts_on_a_lent_server_and_is_slower_there() -> None:
    full = trace_job(1, seconds=500, workers=2)
    other = trace_job(2, seconds=50, workers=2, at=20.0)
    fungible = replace(trace_job(3, seconds=50, workers=2, at=20.0), fungible=True)
    run = run_with_loans(lends(2, (0.0, 0)), full, other, fungible)
    _, waited, lent = run.records
    assert waited.first_start_at is not None
    assert waited.first_start_at > 500
    assert (lent.first_start_at, lent.ended_at) == (21.0, 121.0)
    assert lent.on_loan
    assert run.loans is not None
    assert run.loans.lent == 2


def test_a_job_that_fits_on_training_nodes_leaves_lent_servers_alone() -> None:
    (record,) = run_with_loans(
        lends(2, (0.0, 0)), replace(trace_job(1, seconds=50, workers=2, at=20.0), fungible=True)
    ).records
    assert not record.on_loan
    assert record.ended_at == 71.0


def test_a_base_waits_until_shortly_before_the_deadline_and_begins_anew_elsewhere() -> None:
    full = trace_job(1, seconds=230, workers=2)
    fungible = replace(trace_job(2, seconds=100, workers=2, at=20.0), fungible=True)
    # one of two servers is needed at 100: the empty one. Both are needed at 150
    run = run_with_loans(lends(2, (0.0, 0), (100.0, 1), (150.0, 2)), full, fungible)
    assert run.loans is not None
    assert run.loans.preempted == (2,)
    _, record = run.records
    assert record.preemptions == 1
    assert record.first_start_at == 21.0
    # Slurm takes the server for the inference job that waits; the job begins again on the training node
    assert record.ended_at is not None
    assert record.ended_at == pytest.approx(231 + TIMES.free_s + 100, abs=1.0)


def test_an_inference_job_starts_on_an_idle_server_before_one_that_is_in_use() -> None:
    full = trace_job(1, seconds=300, workers=2)
    fungible = replace(trace_job(2, seconds=50, workers=2, at=20.0), fungible=True)
    run = run_with_loans(lends(2, (0.0, 0), (60.0, 1)), full, fungible)
    assert run.loans is not None
    assert run.loans.preempted == ()
    assert run.records[1].preemptions == 0


def test_a_preempted_job_with_checkpoints_goes_on_where_it_was() -> None:
    full = trace_job(1, seconds=230, workers=2)
    fungible = replace(trace_job(2, seconds=100, workers=2, at=20.0), fungible=True)
    needs = lends(2, (0.0, 0), (100.0, 1), (150.0, 2))
    anew = run_with_loans(needs, full, fungible).records[1].ended_at
    goes_on = run_with_loans(needs, full, fungible, checkpoints=True).records[1].ended_at
    assert anew is not None
    assert goes_on is not None
    assert goes_on < anew


def test_flexod_orders_pending_jobs_if_it_is_asked_to() -> None:
    full = trace_job(1, seconds=200, workers=4, time_limit_s=300)
    long = trace_job(2, seconds=100, workers=4, at=10.0, time_limit_s=3000)
    short = trace_job(3, seconds=100, workers=4, at=20.0, time_limit_s=150)

    def starts(times: SlurmTimes) -> list[int]:
        records = run(full, long, short, policy="lyra", nodes=1, times=times)
        return [each.job.job_id for each in sorted(records, key=lambda each: each.first_start_at or 0.0)]

    assert starts(TIMES) == [1, 2, 3]
    assert starts(replace(TIMES, order="policy")) == [1, 3, 2]
