"""No more satellites than an administrator allows: fewer jobs grow, each by more, and it comes to rest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from flat_records import change_node
from hypothesis import given, settings
from hypothesis import strategies as st
from says import says
from small_clusters import elastic, granted, grown, node, sentence, shrunk, snapshot
from small_worlds import REST_S, World, elastic_jobs, nodes_of, queues, run
from thorough import examples

from flexo.model.elastic import ElasticJob
from flexo.model.plans import Plan, Snapshot
from flexo.model.training import TrainingJob
from flexo.policies import registry, satellites
from flexo_protos.resources import Resources

POLICIES = ("greedy", "lyra", "throughput")


def planned(seen: Snapshot, most: int | None, policy: str = "greedy") -> Plan:
    made = registry.make(policy, **registry.flexod_settings(policy))
    seen = replace(seen, training=tuple(known(job) for job in seen.elastic))
    return satellites.plan(made, seen, REST_S, max_satellites=most)


def known(job: ElasticJob) -> TrainingJob:
    """With as many hours to go as its number says."""
    hours = 3600.0 * job.key.job_id
    return TrainingJob(
        job.key, "ada", job.workers, job.shape, submitted_at=0.0, started_at=0.0, remaining_work=hours
    )


@pytest.mark.parametrize("policy", ["greedy", "lyra"])
def test_where_many_jobs_would_grow_by_little_few_grow_by_much_and_no_gpu_stays_idle(policy):
    nodes = [node("t1", 8, used=8), node("n1", 8), node("n2", 8)]
    jobs = [elastic(number, "1-16") for number in range(1, 9)]
    everybody = grown(planned(snapshot(nodes, jobs), None, policy))
    assert len({job for job, _, _ in everybody}) == 8
    few = grown(planned(snapshot(nodes, jobs), 2, policy))
    assert sorted(workers for _, _, workers in few) == [8, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_limit_that_is_not_reached_changes_nothing(policy):
    nodes = [node("t1", 8, used=8), node("n1", 8), node("n2", 8)]
    seen = snapshot(nodes, [elastic(number, "1-16") for number in range(1, 9)])
    assert planned(seen, 100, policy) == planned(seen, None, policy)


def test_a_satellite_that_is_leaving_is_still_one():
    job = granted(elastic(1, "1-16"), "n1", 4)
    nodes = [node("t1", 8, used=8), node("n1", 8, used=4), node("n2", 8)]
    plan = planned(snapshot(nodes, [job, elastic(2, "1-16")]), 1)
    assert not grown(plan)


def test_a_job_is_told_that_there_may_be_no_more():
    job = granted(elastic(1, "1-16"), "n1", 4)
    nodes = [node("t1", 8, used=8), node("n1", 8, used=4), node("n2", 8)]
    plan = planned(snapshot(nodes, [job, elastic(2, "1-16"), elastic(3, "1-16")]), 1)
    for each in (2, 3):
        assert says(sentence(plan, each), 1, "max_satellites")


def test_the_poorest_gets_the_place_of_a_satellite_whose_job_stays_richer_without_it():
    rich = granted(granted(elastic(1, "1-16"), "n1", 4), "n2", 4)
    nodes = [node("t1", 8, used=8), node("n1", 4, used=4), node("n2", 4, used=4)]
    assert len(shrunk(planned(snapshot(nodes, [rich, elastic(2, "1-16")]), 2))) == 1


def test_a_satellite_is_not_taken_from_a_job_that_would_then_be_as_poor():
    rich = granted(elastic(1, "1-16"), "n1", 4)
    nodes = [node("t1", 8, used=8), node("n1", 4, used=4)]
    seen = snapshot(nodes, [rich, elastic(2, "1-16")])
    assert not planned(seen, 1).actions
    assert shrunk(planned(seen, None)) == ["g1-1"]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_there_are_never_more_and_it_comes_to_rest(policy, data):
    nodes = data.draw(nodes_of())
    names = [each.name for each in nodes]
    jobs = data.draw(elastic_jobs(names))
    if policy == "lyra":  # it counts GPUs alone, and so may take for one what only another's CPUs allow
        nodes = [change_node(each, cpus=64, memory_mib=1_000_000) for each in nodes]
    world = World(nodes, jobs, data.draw(queues(names)))
    most = data.draw(st.one_of(st.none(), st.integers(1, 4)))
    at_first = sum(len(job.grants) for job in world.jobs.values())

    def limited(seen: Snapshot) -> Plan:
        assert most is None or sum(len(job.grants) for job in seen.elastic) <= max(most, at_first)
        return planned(seen, most, policy)

    run(world, 150, limited)


def test_where_satellites_are_few_a_job_leaves_the_cpus_that_another_is_to_have():
    """Else that one would take the node back for them, again and again."""
    nodes = [node("n0", 3, cpus=3)]
    jobs = [elastic(1, "2-4", base="n0"), elastic(3, "2-3", base="n0", shape=Resources(1, 2))]
    jobs.append(elastic(4, "2-3", base="n0"))
    world = World(nodes, jobs, [])
    run(world, 150, partial(planned, most=2))
    assert sorted(job.granted_workers for job in world.jobs.values()) == [2, 3, 3]
