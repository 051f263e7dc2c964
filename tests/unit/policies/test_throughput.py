"""IBM's autoscaler: who is taken in, when, with how many GPUs and which batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from says import says
from thorough import examples
from training_jobs import ONE_GPU, TableSpeed, after, check_plan, job, node, snapshot, snapshots, workers

from flexo.model.nodes import Node
from flexo.model.plans import Plan, Snapshot
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies import allocating, registry
from flexo.policies.autoscaler import Autoscaler
from flexo.policies.fixed_batch import MaxBatch, MinBatch, RandomBatch
from flexo.policies.gpu_optimizer import optimize
from flexo.policies.scaling_factors import GpuTypeSize, choices
from flexo.policies.throughput import Throughput

NAMES = ("throughput", "max-batch", "min-batch", "random-batch")
AT_ONCE = Throughput(delta_s=0.0)
EIGHT = [node("n1"), node("n2")]
BATCHES = Range(16, 64)


@dataclass(frozen=True)
class BatchSpeed:
    """Samples a second: a step takes 6 s, and 1 s for each sample of the largest part."""

    batch: Range = BATCHES
    largest: int = 32

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        batch = batch or self.best_batch(workers, nodes)
        part = -(-batch // workers)
        if not 0 < part <= self.largest:
            return 0.0
        return batch / (6 + part)

    def best_batch(self, workers: int, nodes: int) -> int:
        fits = min(self.batch.max, self.largest * workers)
        return fits if fits >= self.batch.min else 0


def batch_job(job_id: int, size: str = "1-8", **changes) -> TrainingJob:
    speed = changes.pop("speed", BatchSpeed())
    return job(job_id, size, batch=speed.batch, speed=speed, **changes)


def planned(before: Snapshot, policy: Autoscaler = AT_ONCE) -> Plan:
    plan = allocating.plan(policy, before)
    check_plan(before, plan)
    return plan


# What the optimizer is asked.


def test_equation_4s_three_jobs_share_ten_gpus():
    tables = ((1, 1.66, 2.1, 2.4), (1, 1.2, 1.3, 1.35), (0, 1.5, 2.4, 3.0))
    jobs = [job(number, "1-4", speed=TableSpeed(table)) for number, table in enumerate(tables, 1)]
    # the third cannot run on one GPU: the best guess is that it would be half as fast there as on two
    before = snapshot([node("n1", 8), node("n2", 2)], jobs)
    assert workers(planned(before), before) == {1: 4, 2: 2, 3: 4}
    before = snapshot([node("n1", 4)], jobs)
    assert workers(planned(before), before) == {1: 1, 2: 1, 3: 2}


def test_a_factor_is_relative_to_one_gpu_with_the_largest_batch_that_fits_it():
    two = BatchSpeed(batch=Range(64, 64))  # does not fit one GPU
    found = choices(batch_job(1, speed=two), GpuTypeSize(8, 8), 0)
    assert found.fewest == 2
    assert found.worth_of(2) == pytest.approx((64 / 38) / (32 / 38))


def test_a_fixed_batch_is_compared_with_the_same_single_gpu():
    found = choices(batch_job(1), GpuTypeSize(8, 8), 16)
    assert found.worth_of(1) == pytest.approx((16 / 22) / (32 / 38))


def test_workers_of_two_gpus_count_as_two():
    wide = job(1, "1-4", shape=replace(ONE_GPU, gpus=2))
    found = choices(wide, GpuTypeSize(6, 4), 0)
    assert (found.gpus, found.worth) == ((2, 4, 6), (2.0, 4.0, 6.0))


def test_what_a_job_has_is_kept_among_equals():
    jobs = [job(1, "1-3", on={"n1": 1}), job(2, "1-3", on={"n1": 3}), job(3, "1-3", on={"n2": 2})]
    before = snapshot([node("n1"), node("n2", 2)], jobs)
    assert planned(before).allocations == ()


def test_a_job_whose_size_cannot_be_keeps_it_until_a_better_one_is_free():
    jobs = [batch_job(1, on={"n1": 1}, speed=BatchSpeed(batch=Range(64, 64))), job(2, 3, on={"n1": 3})]
    before = snapshot([node("n1")], jobs)
    assert planned(before).allocations == ()
    assert workers(planned(snapshot(EIGHT, jobs)), snapshot(EIGHT, jobs)) == {1: 5, 2: 3}


def test_a_job_whose_batch_is_to_be_chosen_is_tried_out_with_the_fewest_workers():
    unknown, known = job(1, "2-8", batch=BATCHES), job(2, "2-8")
    before = snapshot(EIGHT, [unknown, known])
    assert workers(planned(before), before) == {1: 2, 2: 6}
    before = snapshot(EIGHT, [replace(unknown, shares=(NodeShare("n1", 3),), started_at=before.at)])
    assert planned(before).allocations == ()


# Who is taken in.


def test_the_batch_grows_with_the_gpus():
    before = snapshot([node("n", 2)], [batch_job(1)])
    (alone,) = planned(before).allocations
    assert (alone.shares[0].workers, alone.samples) == (2, 64)
    before = snapshot([node("n", 2)], [batch_job(1), batch_job(2)])
    assert {each.samples for each in planned(before).allocations} == {32}


def test_running_jobs_give_gpus_up_so_that_another_can_start():
    before = snapshot([node("n")], [job(1, "1-4", on={"n": 4}), job(2, "2-4")])
    assert workers(planned(before), before) == {1: 2, 2: 2}


def test_as_many_as_fit_are_taken_in_and_those_that_do_not_are_passed_over():
    before = snapshot([node("n")], [job(1, "3-4"), job(2, "2-4"), job(3, 1), job(4, 1)])
    plan = planned(before)
    assert workers(plan, before) == {1: 3, 2: 0, 3: 1, 4: 0}
    assert [note.job.job_id for note in plan.notes] == [2, 4]
    assert says(plan.notes[0].text, "2 GPUs", 4, 1)


def test_without_overtaking_the_head_of_the_queue_holds_up_all_behind_it():
    before = snapshot([node("n")], [job(1, "3-4"), job(2, "2-4"), job(3, 1)])
    assert workers(planned(before, Throughput(0.0, overtaking=False)), before) == {1: 4, 2: 0, 3: 0}


def test_what_could_never_run_holds_up_nobody():
    before = snapshot([node("n")], [job(1, 5), job(2, 1, speed=TableSpeed((0.0,))), job(3, 1)])
    assert workers(planned(before, Throughput(0.0, overtaking=False)), before) == {1: 0, 2: 0, 3: 1}


def test_with_dropping_whoever_does_not_fit_is_refused():
    before = snapshot([node("n")], [job(1, "3-4"), job(2, "2-4"), job(3, 1)])
    plan = planned(before, Throughput(0.0, drops=True))
    assert [drop.job.job_id for drop in plan.drops] == [2]
    assert plan.notes == ()


@given(before=snapshots(gpus_per_worker=1))
@settings(max_examples=examples(200))
def test_who_is_taken_in_is_what_figure_4_takes_in_one_job_at_a_time(before: Snapshot):
    before = replace(before, nodes=tuple(replace(each, unusable="") for each in before.nodes))
    now = workers(planned(before), before)
    assert {number for number, size in now.items() if size} == _figure_4(before)


def _figure_4(before: Snapshot) -> set[int]:
    """Literally, the optimizer asked for each arrived job."""
    cluster = GpuTypeSize.of(before.nodes)
    executing = [each for each in before.training if each.shares]
    arrived = [each for each in before.training if not each.shares]
    gpus = sum(each.gpus_idle for each in before.nodes) + sum(each.gpus for each in executing)
    position = 0
    while position < len(arrived):
        trial = [*executing, arrived[position]]
        if optimize([choices(each, cluster, 0) for each in trial], gpus) is None:
            position += 1
        else:
            executing = trial
            del arrived[position]
    return {each.key.job_id for each in executing}


# When.


def running(**changes) -> Snapshot:
    """Ten jobs run, another one waits; two GPUs are idle."""
    jobs = [job(number, "1-2", on={"n": 1}) for number in range(1, 11)]
    return replace(snapshot([node("n", 12)], [*jobs, job(11, 1)]), **changes)


@pytest.mark.parametrize(
    ("since_s", "ended", "share", "decides"),
    [
        (599.0, 0, 0.05, False),
        (600.0, 0, 0.05, True),
        (1.0, 1, 0.05, True),
        (1.0, 1, 0.0, False),
        (1.0, 1, 0.2, False),
        (1.0, 3, 0.2, True),
    ],
)
def test_it_decides_every_delta_or_when_enough_jobs_have_ended(
    since_s: float, ended: int, share: float, decides: bool
):
    before = running(ended_count=ended)
    before = replace(before, decided_at=before.at - since_s)
    plan = planned(before, Throughput(600.0, share))
    assert bool(plan.allocations) is decides
    assert plan.again_at == (None if decides else before.decided_at + 600.0)


def test_it_does_not_wait_while_nothing_runs():
    before = snapshot(EIGHT, [job(1, 1)])
    assert planned(replace(before, decided_at=before.at - 1), Throughput()).allocations


# Where.


def test_what_lies_on_an_unusable_node_is_left_alone():
    jobs = [job(1, "1-4", on={"n1": 2}), job(2, "1-8", on={"n2": 1})]
    before = snapshot([node("n1", unusable="DRAIN"), node("n2")], jobs)
    assert workers(planned(before), before) == {1: 2, 2: 4}


def test_a_job_that_grows_stays_where_it_is():
    before = snapshot([node("n1", 8), node("n2", 2)], [job(1, "1-4", on={"n2": 2})])
    (allocation,) = planned(before).allocations
    assert {share.node: share.workers for share in allocation.shares} == {"n2": 2, "n1": 2}


def test_workers_of_several_gpus_that_find_no_place_come_down_to_what_fits():
    pairs = job(1, "1-3", shape=replace(ONE_GPU, gpus=2))
    before = snapshot([node("n1", 3), node("n2", 3)], [pairs])  # six GPUs, but room for two pairs only
    assert workers(planned(before), before) == {1: 2}


def test_each_type_of_gpu_is_a_cluster_of_its_own():
    nodes: list[Node] = [node("n1", gpu_type="v100"), node("n2", 2, gpu_type="t4")]
    anywhere, small = job(1, "1-8"), job(2, "1-8", shape=replace(ONE_GPU, gpu_type="t4"))
    before = snapshot(nodes, [anywhere, small, job(3, 1, shape=replace(ONE_GPU, gpu_type="a100"))])
    plan = planned(before)
    assert workers(plan, before) == {1: 4, 2: 2, 3: 0}
    assert says(plan.notes[0].text, "no GPU", "type")


# With a fixed batch.


def test_the_baselines_fix_the_batch_and_keep_the_gpus_elastic():
    before = snapshot(EIGHT, [batch_job(1, "1-2")])
    assert [each.samples for each in planned(before, MinBatch(0.0)).allocations] == [16]
    assert [each.samples for each in planned(before, MaxBatch(0.0)).allocations] == [64]
    assert 16 <= planned(before, RandomBatch(0.0)).allocations[0].samples <= 64


def test_a_fixed_batch_may_need_more_gpus_at_least():
    jobs = [batch_job(number, "1-2") for number in (1, 2)]
    before = snapshot([node("n", 3)], jobs)
    assert workers(planned(before, MinBatch(0.0)), before) == {1: 2, 2: 1}
    assert workers(planned(before, MaxBatch(0.0)), before) == {1: 2, 2: 0}


def test_random_batches_are_uniform_and_a_jobs_own():
    draws = [RandomBatch(seed=3).batch_of(batch_job(number)) for number in range(1, 2001)]
    assert (min(draws), max(draws)) == (16, 64)
    assert sum(draws) / len(draws) == pytest.approx(40, abs=1)
    assert draws == [RandomBatch(seed=3).batch_of(batch_job(number)) for number in range(1, 2001)]
    assert draws != [RandomBatch(seed=4).batch_of(batch_job(number)) for number in range(1, 2001)]


def test_jobs_with_one_batch_are_treated_alike_by_all():
    before = snapshot(EIGHT, [job(1, "1-8"), job(2, "2-4"), job(3, 3)])
    plans = [allocating.plan(registry.make(name, delta_s=0.0), before) for name in NAMES]
    assert plans == plans[:1] * 4


# Whatever the cluster looks like.


@pytest.mark.parametrize("name", NAMES)
@given(before=snapshots(types=("v100", "t4")), ended=st.integers(0, 2))
@settings(max_examples=examples(100))
def test_plans_are_possible_and_equal_for_equal_snapshots(name: str, before: Snapshot, ended: int):
    policy = registry.make(name)
    before = replace(before, ended_count=ended)
    plan = allocating.plan(policy, before)
    check_plan(before, plan)
    assert allocating.plan(policy, before) == plan
    assert all(allocation.shares for allocation in plan.allocations), "nobody is preempted"


@given(before=snapshots(gpus_per_worker=1))
@settings(max_examples=examples(150))
def test_planning_again_what_was_planned_changes_nothing(before: Snapshot):
    now = after(before, allocating.plan(AT_ONCE, before))
    assert allocating.plan(AT_ONCE, now).allocations == ()


@given(before=snapshots(gpus_per_worker=1))
@settings(max_examples=examples(150))
def test_where_nobody_waits_no_plan_is_worth_less_than_what_it_changes(before: Snapshot):
    before = replace(before, training=tuple(each for each in before.training if each.shares))
    now = after(before, planned(before))

    def worth(at: Snapshot) -> float:
        return sum(_factor(each) for each in at.training if each.shares)

    assert worth(now) >= worth(before) - 1e-3


def _factor(job: TrainingJob) -> float:
    if job.speed is None:
        return float(job.allocated)
    return job.speed.rate(job.allocated, 1) / job.speed.rate(1, 1)
