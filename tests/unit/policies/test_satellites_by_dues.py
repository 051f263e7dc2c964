"""Satellites granted and taken back so that jobs on Slurm get what a policy says is their due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from says import says
from small_clusters import NOW, Wishing, elastic, granted, grown, node, pending, sentence, shrunk, snapshot
from small_worlds import REST_S, World, elastic_jobs, nodes_of, queues, run
from thorough import examples

from flexo.model.elastic import ElasticJob
from flexo.model.node_filter import NodeFilter
from flexo.model.nodes import Partition
from flexo.model.plans import Plan, Snapshot
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies import registry, satellites
from flexo.policies.throughput import Throughput
from flexo_protos.resources import Resources


def planned(seen: Snapshot, dues: Mapping[int, int]) -> Plan:
    return satellites.plan(Wishing(dues), seen, REST_S)


def test_a_job_grows_to_its_due_and_no_further():
    seen = snapshot([node("n1", 8), node("t1", 8, used=8)], [elastic(1, "1-8")])
    plan = planned(seen, {1: 4})
    assert grown(plan) == [(1, "n1", 3)]


def test_a_due_above_what_its_owner_allows_counts_for_no_more():
    seen = snapshot([node("n1", 8), node("t1", 8, used=8)], [elastic(1, "1-8", wanted=3)])
    assert grown(planned(seen, {1: 8})) == [(1, "n1", 2)]


def test_a_due_below_the_base_leaves_the_base_alone():
    seen = snapshot([node("n1", 8), node("t1", 8, used=8)], [elastic(1, "2-8")])
    plan = planned(seen, {1: 0})
    assert not plan.actions
    assert says(sentence(plan, 1), "2 of 8 workers", "0 it is")


def test_satellites_wholly_above_the_due_are_given_back_and_the_reason_is_told():
    job = granted(granted(elastic(1, "1-8"), "n1", 2), "n2", 3)
    seen = snapshot([node("n1", 4, used=2), node("n2", 4, used=3), node("t1", 1, used=1)], [job])
    plan = planned(seen, {1: 4})
    assert shrunk(plan) == ["g1-1"]
    assert says(sentence(plan, 1), "4 it is")
    assert [action.why for action in plan.actions] == ["4 it is"]


def test_a_satellite_that_is_partly_due_stays_where_nobody_needs_it():
    job = granted(elastic(1, "1-8"), "n1", 4)
    seen = snapshot([node("n1", 4, used=4), node("t1", 1, used=1)], [job])
    assert not planned(seen, {1: 3}).actions


def test_a_job_that_keeps_more_than_its_due_does_not_read_as_if_it_gave_workers_back():
    """A user read for minutes that a job gives a worker back, which its satellite of three could not."""
    whole = granted(elastic(1, "1-8"), "n1", 3)
    cpus = snapshot([node("n1", 4, used=3), node("t1", 1, used=1)], [whole])
    kept = sentence(planned(cpus, {1: 3}), 1)
    assert says(kept, "4 of 8 workers", "keeps", "3", "as a whole")
    assert "3 it is" not in kept
    changed = replace(whole, last_resize_at=NOW - 1)
    assert says(sentence(planned(replace(cpus, elastic=(changed,)), {1: 1}), 1), "before its next resize")
    stuck = replace(whole, pending_command="profile")
    assert says(sentence(planned(replace(cpus, elastic=(stuck,)), {1: 1}), 1), "keeps", "cannot be resized")


def test_a_satellite_that_is_partly_due_goes_to_a_job_that_gains_more_than_it_costs():
    rich = granted(elastic(1, "1-8"), "n1", 4)
    poor = elastic(2, "1-8")
    seen = snapshot([node("n1", 4, used=4), node("t1", 2, used=2)], [rich, poor])
    assert shrunk(planned(seen, {1: 2, 2: 4})) == ["g1-1"]
    assert not planned(seen, {1: 4, 2: 2}).actions  # it would lose three of its due for one


TWO_GPUS = Resources(gpus=2, cpus=1)


def test_nothing_is_given_back_for_a_job_that_finds_no_room_by_it():
    rich = granted(granted(elastic(1, "1-8"), "n1", 1), "n2", 1)
    poor = elastic(2, "1-8", shape=TWO_GPUS)
    nodes = [node("n1", 1, used=1), node("n2", 1, used=1), node("t1", 3, used=3)]
    assert not planned(snapshot(nodes, [rich, poor]), {1: 1, 2: 2}).actions
    assert shrunk(planned(snapshot(nodes, [rich]), {1: 1})) == ["g1-1", "g1-2"]  # nobody is short


def test_two_jobs_give_back_what_together_is_room_for_one_worker():
    rich = [granted(elastic(number, "1-8"), "n1", 1) for number in (1, 2)]
    poor = elastic(3, "1-8", shape=TWO_GPUS)
    seen = snapshot([node("n1", 2, used=2), node("t1", 4, used=4)], [*rich, poor])
    assert shrunk(planned(seen, {1: 1, 2: 1, 3: 2})) == ["g1-1", "g2-1"]
    assert not planned(seen, {1: 1, 2: 2, 3: 2}).actions


def test_what_is_given_back_lies_where_others_can_use_it():
    rich = granted(granted(elastic(1, "1-8"), "n1", 3), "n2", 2)
    poor = granted(elastic(2, "1-8"), "n1", 1)  # one satellite a node
    nodes = [node("n1", 4, used=4), node("n2", 2, used=2), node("t1", 2, used=2)]
    assert shrunk(planned(snapshot(nodes, [rich, poor]), {1: 3, 2: 4})) == ["g1-2"]


def test_nothing_is_given_back_for_less_than_a_unit():
    rich = granted(granted(elastic(1, "1-8"), "n1", 1), "n2", 2)
    poor = elastic(2, "2-8", unit=2)
    nodes = [node("n1", 1, used=1), node("n2", 2, used=2), node("t1", 3, used=3)]
    assert shrunk(planned(snapshot(nodes, [rich, poor]), {1: 1, 2: 4})) == ["g1-2"]


def test_what_is_left_when_dues_are_rounded_to_units_becomes_a_unit_of_one_job():
    holds = granted(elastic(1, "8-32", unit=8), "n1", 8)
    nodes = [node("n1", 8, used=8), node("t1", 16, used=16)]
    plan = planned(snapshot(nodes, [holds, elastic(2, "8-32", unit=8)]), {1: 12, 2: 12})
    assert not plan.actions
    nodes = [node("n1", 8), node("t1", 16, used=16)]
    plan = planned(snapshot(nodes, [elastic(1, "8-32", unit=8), elastic(2, "8-32", unit=8)]), {1: 12, 2: 12})
    assert [(job, workers) for job, _, workers in grown(plan)] == [(1, 8)]


@pytest.mark.parametrize(
    "limited",
    [
        elastic(1, "2-8", node_filter=NodeFilter("", frozenset({"n1"}))),
        elastic(1, "2-8", retry_at={"n1": NOW + 3600.0}),
    ],
    ids=["excludes the node", "failed there"],
)
def test_gpus_that_are_meant_for_a_job_that_cannot_have_them_go_to_others(limited: ElasticJob):
    jobs = [limited, elastic(2, "2-8")]
    seen = with_training(snapshot([node("n1", 4), node("t1", 4, used=4)], jobs), jobs)
    for name in ("lyra", "throughput", "elastic-tiresias"):
        policy = registry.make(name, **registry.flexod_settings(name))
        plan = satellites.plan(policy, seen, REST_S)
        assert grown(plan) == [(2, "n1", 4)], name


def test_a_job_grows_although_its_base_is_on_no_node_for_satellites():
    """The policy has to know the GPU type of that node, too."""
    nodes = [node(name, 4, used=used, gpu_type="v100") for name, used in (("t1", 4), ("n1", 0))]
    train, flex = Partition("train", 10, frozenset({"t1", "n1"})), Partition("flex", 1, frozenset({"n1"}))
    jobs = [elastic(1, "2-8")]
    seen = with_training(snapshot(nodes, jobs, partitions=(train, flex)), jobs)
    for name in ("lyra", "throughput", "elastic-tiresias"):
        policy = registry.make(name, **registry.flexod_settings(name))
        assert grown(satellites.plan(policy, seen, REST_S)) == [(1, "n1", 4)], name


def with_training(seen: Snapshot, jobs: list[ElasticJob]) -> Snapshot:
    """`seen` with what policies know of these jobs, each with its base on t1."""
    bases = [(job, (NodeShare("t1", job.base_workers),)) for job in jobs]
    training = (
        replace(known(job.key.job_id, str(job.workers)), shares=base, base=base, preemptible=False)
        for job, base in bases
    )
    return replace(seen, training=tuple(training))


def test_a_job_that_has_just_changed_keeps_what_it_has():
    job = replace(granted(elastic(1, "1-8"), "n1", 4), last_resize_at=NOW - REST_S / 2)
    seen = snapshot([node("n1", 4, used=4), node("t1", 1, used=1)], [job])
    assert not planned(seen, {1: 1}).actions


def known(job_id: int, workers: str) -> TrainingJob:
    seen = elastic(job_id, workers)
    return TrainingJob(seen.key, "ada", seen.workers, seen.shape, submitted_at=0.0)


def test_a_policy_is_shown_what_pending_jobs_leave_over_and_what_jobs_hold():
    job = granted(elastic(1, "1-8"), "n1", 2)
    nodes = [node("n1", 8, used=2), node("n2", 4), node("t1", 1, used=1)]
    seen = snapshot(nodes, [job], [pending(500, gpus_per_node=4)])
    seen = replace(seen, training=(known(1, "1-8"),))
    policy = Wishing({1: 5})
    satellites.plan(policy, seen, REST_S)
    ((jobs, placement),) = policy.shown
    assert sum(each.gpus_idle for each in placement.nodes) == 6  # four of ten are kept for the pending job
    (about,) = jobs.training
    assert about.base == (NodeShare("t1", 1),)
    assert about.shares == (NodeShare("t1", 1), NodeShare("n1", 2))
    assert not about.preemptible


def test_a_job_whose_grants_came_to_nothing_keeps_no_gpu_idle_while_it_rests():
    resting = elastic(1, "1-9", rest_until=NOW + 500)
    other = elastic(2, "1-9")
    seen = snapshot([node("n1", 4), node("n2", 4), node("t1", 2, used=2)], [resting, other])
    seen = replace(seen, training=(known(1, "1-9"), known(2, "1-9")))
    plan = satellites.plan(Throughput(), seen, REST_S)
    assert sorted(grown(plan)) == [(2, "n1", 4), (2, "n2", 4)]
    assert "8 min" in sentence(plan, 1)
    later = replace(seen, at=NOW + 500)
    assert (1, "n1", 4) in grown(satellites.plan(Throughput(), later, REST_S))


def test_a_job_that_rests_gives_back_what_others_are_due():
    resting = granted(granted(elastic(1, "1-9", rest_until=NOW + 500), "n1", 4), "n2", 4)
    seen = snapshot(
        [node("n1", 4, used=4), node("n2", 4, used=4), node("t1", 2, used=2)], [resting, elastic(2)]
    )
    assert len(shrunk(planned(seen, {1: 5, 2: 4}))) == 1


def test_what_a_policy_says_of_a_batch_is_told_within_what_the_job_accepts():
    job = replace(elastic(1, "1-8"), batch=Range(8, 40))
    seen = snapshot([node("n1", 8), node("t1", 1, used=1)], [job])
    seen = replace(seen, training=(known(1, "1-8"),))
    for wanted, samples in ((3, 30), (8, 40)):
        plan = satellites.plan(Wishing({1: wanted}), seen, REST_S)
        assert [batch.samples for batch in plan.batches] == [samples]


def test_a_policy_is_not_told_of_the_last_change_because_satellites_need_several():
    seen = replace(snapshot([node("n1", 8), node("t1", 1, used=1)], [elastic(1, "1-8")]), decided_at=NOW - 1)
    seen = replace(seen, training=(known(1, "1-8"),))
    assert grown(satellites.plan(Throughput(), seen, REST_S)) == [(1, "n1", 7)]


def test_a_job_of_which_the_policy_says_nothing_keeps_what_it_has():
    job = granted(elastic(1, "1-8"), "n1", 2)
    seen = snapshot([node("n1", 8, used=2), node("t1", 1, used=1)], [job])
    seen = replace(seen, training=(known(1, "1-8"),))
    assert not satellites.plan(Wishing({}), seen, REST_S).actions


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_is_due_it_never_overcommits_and_comes_to_rest(data):
    nodes = data.draw(nodes_of())
    names = [each.name for each in nodes]
    jobs = data.draw(elastic_jobs(names))
    world = World(nodes, jobs, data.draw(queues(names)))
    for _ in range(2):
        dues = {job.key.job_id: data.draw(st.integers(0, 20)) for job in jobs}
        run(world, 200, lambda seen, dues=dues: planned(seen, dues))


@pytest.mark.parametrize("cpus", [4, 64])
def test_gpus_without_cpus_are_not_shown_as_free(cpus):
    seen = snapshot([node("n1", 8, cpus=cpus), node("t1", 1, used=1)], [elastic(1, "1-16")])
    seen = replace(seen, training=(known(1, "1-16"),))
    policy = Wishing({})
    satellites.plan(policy, seen, REST_S)
    ((_, placement),) = policy.shown
    assert placement.nodes[0].gpus_idle == min(8, cpus)
