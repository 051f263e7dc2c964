"""The pure parts of the paper's figures 7 and 10: small models, placements, cycles of a pool, and traces."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from flexo.aggregation.demand import AggregationTask, JobDemand
from flexo.aggregation.pool import AggregatorPool
from flexo.aggregation.scaling import Scaled, ScalingRules, on_arrival
from flexo_bench.service.case_study import dealt
from flexo_bench.service.case_study_judged import Point, Stage, loss_in, trace
from flexo_bench.service.philly_jobs import AGGREGATOR, MODELS, Model
from flexo_bench.service.resident.frames import Cycle, Work
from flexo_bench.service.resident.job import Plan
from flexo_bench.service.resident.partitions import Partition, busiest_share, partitions_of, round_robin
from flexo_bench.service.resident.pool_master import cycle_of, holders_in, profiled
from flexo_bench.service.small_models import SCALE, SERVERS, compute_s, plan_of, tensors
from flexo_bench.service.standalone import BALANCED, PARTITIONS, TENSORS, placed

pytestmark = pytest.mark.thorough

MS = 1_000_000


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_small_models_have_the_published_sizes_over_the_scale_and_the_assumed_use(model: Model) -> None:
    counts = tensors(model.name)
    assert 4 * SCALE * sum(counts) == pytest.approx(model.size, rel=0.02)
    plan = plan_of(model, 1)
    busy_s = 4 * sum(counts) / SERVERS * plan.ns_per_byte / 1e9
    assert busy_s == pytest.approx(float(model.use) * model.duration_s)
    assert busy_s + compute_s(model) == pytest.approx(model.duration_s)
    assert max(part.count for part in plan.partitions) * 4 <= 4_000_000 / SCALE


def test_round_robin_of_whole_tensors_gives_all_weights_of_a_network_of_layers_to_one_server() -> None:
    for name in ("AlexNet", "VGG19"):
        (model,) = (each for each in MODELS if each.name == name)
        jobs = placed(model)
        share = {way: busiest_share(job.plan.partitions, job.holders) for way, job in jobs.items()}
        assert share[TENSORS] > 0.99
        assert share[BALANCED] <= share[PARTITIONS] < 0.53


def test_partitions_go_round_in_their_order_and_the_busiest_server_counts() -> None:
    parts = partitions_of([(6,), (1,), (2,)])
    assert parts == (Partition(0, 0, 6), Partition(1, 0, 1), Partition(2, 0, 2))
    assert round_robin(parts, 2) == (0, 1, 0)
    assert busiest_share(parts, (0, 1, 0)) == pytest.approx(8 / 9)


def test_a_job_without_a_profile_is_dealt_to_the_servers_that_it_is_given() -> None:
    assert dealt(Plan([(5,), (3,), (2,)]), (3, 4)) == [3, 4, 4]


def demand(job: int, duration_ms: int, *executions_ms: int) -> JobDemand:
    tasks = tuple(AggregationTask(str(key), 4, execution * MS) for key, execution in enumerate(executions_ms))
    return JobDemand(str(job), duration_ms * MS, 2, tasks, 2)


def test_servers_get_the_cycles_and_the_partitions_that_the_pool_decides() -> None:
    state = Scaled(AggregatorPool(AGGREGATOR))
    for each in (demand(1, 650, 60, 40), demand(2, 205, 50, 50)):
        state = on_arrival(state, each, ScalingRules())
    assert sorted(holders_in(state.pool, "2")) == [0, 1]
    largest = state.pool.places("1")["0"]
    works = {"1": Work(650 * MS, 60 * MS), "2": Work(205 * MS, 50 * MS)}
    assert cycle_of(state.pool.aggregators[largest]) == Cycle(650 * MS, works)


def test_a_profile_has_the_median_duration_after_the_warm_up_and_the_core_times_of_the_plan() -> None:
    plan = Plan([(10,), (5,)], number=7, ns_per_byte=1000)
    found = profiled(plan, 2, 2, [9_000_000, 200_000, 210_000, 700_000], warm_up=1)
    assert (found.job, found.duration_ns, found.senders) == ("7", 210_000, 2)
    assert [(task.key, task.size, task.execution_ns) for task in found.tasks] == [
        ("0", 40, 40_000),
        ("1", 20, 20_000),
    ]


def test_a_loss_counts_the_steps_that_lie_within_a_stage() -> None:
    stage = Stage("together", asked=9.0, since=10.0, until=11.0, aggregators=2)
    assert loss_in(stage, [9.5, 10.0, 10.25, 10.5, 19.0], alone_s=0.2) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="together"):
        loss_in(stage, [9.5, 10.5, 11.5], alone_s=0.2)


def test_a_trace_has_the_mean_speed_of_each_second_in_which_a_step_ended() -> None:
    ends = [99.0, 100.5, 100.75, 101.0, 103.0]
    assert trace(ends, origin=100.0, alone_s=0.5) == [
        Point(0.5, 0.5 / 0.875),
        Point(1.5, 2.0),
        Point(3.5, 0.25),
    ]
