"""Serving jobs in an order, where counting GPUs alone does not do."""

from __future__ import annotations

from dataclasses import replace

from training_jobs import after, job, node, pending_order, planned, snapshot, workers

from flexo.model.ranges import Range
from flexo.model.training import NodeShare
from flexo.policies.elastic_tiresias import ElasticTiresias
from flexo.policies.tiresias import Tiresias
from flexo_protos.resources import Resources

FOUR_GPUS = Resources(4, 1)
OLD = 1e6


def test_a_job_that_fits_by_count_but_on_no_node_waits_and_others_are_served():
    jobs = [job(1, 1, shape=FOUR_GPUS), job(2, 4)]
    before = snapshot([node("n0", 2), node("n1", 2)], jobs)
    plan = planned(Tiresias(), before)
    assert workers(plan, before) == {1: 0, 2: 4}
    assert pending_order(Tiresias(), after(before, plan)) == [1]


def test_nobody_is_preempted_for_a_job_that_then_does_not_fit():
    old = job(1, 2, on={"n0": 2}, service_gpu_s=OLD)
    before = snapshot([node("n0", 2), node("n1", 2)], [old, job(2, 1, shape=FOUR_GPUS)])
    assert planned(Tiresias(), before).allocations == ()


def test_a_job_takes_gpus_of_its_own_type_only():
    nodes = [node("n0", gpu_type="v100"), node("n1", gpu_type="t4")]
    old = [job(1, 4, on={"n0": 4}, service_gpu_s=OLD), job(2, 4, on={"n1": 4}, service_gpu_s=OLD)]
    before = snapshot(nodes, [*old, job(3, 4, shape=Resources(1, 1, gpu_type="t4"))])
    assert workers(planned(Tiresias(), before), before) == {1: 4, 2: 0, 3: 4}


def test_a_job_on_an_unusable_node_is_left_alone():
    old = job(1, 4, on={"n0": 4}, service_gpu_s=OLD)
    before = snapshot([node("n0", unusable="DRAIN"), node("n1")], [old, job(2, 4), job(3, 4)])
    assert workers(planned(Tiresias(), before), before) == {1: 4, 2: 4, 3: 0}


def test_a_job_that_is_not_preemptible_gives_back_what_is_beyond_its_base():
    grown = replace(
        job(1, 1, on={"n0": 4}, service_gpu_s=OLD),
        workers=Range(1, 4),
        requested_workers=4,
        base=(NodeShare("n0", 1),),
        preemptible=False,
    )
    before = snapshot([node("n0", 4)], [grown, job(2, 2)])
    assert workers(planned(Tiresias(), before), before) == {1: 2, 2: 2}


def test_a_job_that_names_no_type_starts_on_one_however_many_gpus_are_idle():
    nodes = [node("n0", gpu_type="v100"), node("n1", gpu_type="t4"), node("n2", gpu_type="t4")]
    grows = replace(job(1, 2), workers=Range(1, 12))
    before = snapshot(nodes, [grows])
    assert workers(planned(ElasticTiresias(), before), before) == {1: 8}
