"""Where Aggregators in satellites go, which CPUs they leave alone, and when they are given back."""

from __future__ import annotations

from dataclasses import replace

from small_clusters import NOW, ONE_GPU, elastic, granted, grown, node, sentence, shrunk, snapshot

from flexo.model.aggregation import AggregationUse
from flexo.model.elastic import AggregatorGrants, ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node, NodeCondition
from flexo.model.plans import Grow, Plan, Snapshot
from flexo.policies.aggregator_satellites import with_aggregators
from flexo.policies.node_capacity import build_rooms
from flexo_protos.resources import Resources


def asking(satellites: int, *on: str, state: str = "training", **changes: object) -> ElasticJob:
    """A job on t1 that asks for so many Aggregators in satellites, and has some on these nodes."""
    job = elastic(1, attached=True, aggregation=AggregationUse(False, 0, 0.0, 1, 0, 0, 1, (), satellites))
    grants = tuple(
        Grant(f"a{number}", job.key, name, 0, "flex", 100.0 + number, SatelliteState(state), 900 + number)
        for number, name in enumerate(on)
    )
    return replace(job, aggregators=AggregatorGrants(grants), **changes)


def cpus(name: str, cpus: int = 4, used: int = 0, **changes: object) -> Node:
    """A node without GPUs."""
    return node(name, 0, cpus=cpus, cpus_allocated=used, **changes)


def plan(nodes: list[Node], *jobs: ElasticJob, before: Plan | None = None, most: int | None = None) -> Plan:
    return with_aggregators(before or Plan(), snapshot(nodes, list(jobs)), 10.0, most)


def test_nodes_without_gpus_come_first_and_the_job_spreads_over_them() -> None:
    nodes = [node("t1", used=4), node("t2", used=4), cpus("c1"), cpus("c2", used=1)]
    assert grown(plan(nodes, asking(2))) == [(1, "c1", 0), (1, "c2", 0)]
    assert grown(plan(nodes, asking(3))) == [(1, "c1", 0), (1, "c1", 0), (1, "c2", 0)]


def test_the_nodes_where_the_job_trains_are_left_alone() -> None:
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    job = granted(asking(3), "t2", 2)
    assert grown(plan(nodes, job)) == [(1, "t3", 0)] * 3
    growing = Plan((Grow(job.key, "t3", 1, "flex", "more"),))
    told = plan([node("t1", used=4), node("t3", used=3, cpus=80)], job, before=growing)
    assert grown(told) == [(1, "t3", 1)]


def test_the_cpus_of_idle_gpus_are_left_alone() -> None:
    nodes = [node("t1", used=4), node("t2", used=3)]
    assert grown(plan(nodes, asking(4))) == [(1, "t2", 0)] * 3, "of five idle CPUs, one GPU has two"
    idle = plan([node("t1", used=4), node("t2")], asking(1))
    assert grown(idle) == []
    assert "no node of partition flex" in sentence(idle, 1)


def test_a_cpu_goes_back_when_gpus_become_idle_whose_cpus_the_node_has_not_any_more() -> None:
    busy = node("t2", used=4, cpus_allocated=6)  # two of its CPUs run Aggregators
    assert plan([node("t1", used=4), busy], asking(2, "t2", "t2")).actions == ()
    idle = node("t2", used=3, cpus_allocated=7)
    assert shrunk(plan([node("t1", used=4), idle], asking(2, "t2", "t2"))) == ["a1"], "the newest one"
    told = plan([node("t1", used=4), idle, cpus("c1")], asking(2, "t2", "t2"))
    assert (shrunk(told), grown(told)) == (["a1"], [(1, "c1", 0)])


def test_a_cpu_that_is_on_its_way_back_is_counted_and_no_second_one_taken() -> None:
    idle = node("t2", used=3, cpus_allocated=7)
    job = asking(2, "t2", "t2")
    leaving = replace(job.aggregators.grants[1], state=SatelliteState.LEAVING)
    job = replace(job, aggregators=AggregatorGrants((job.aggregators.grants[0], leaving)))
    assert shrunk(plan([node("t1", used=4), idle], job)) == []


def test_an_aggregator_is_in_nobodys_way_and_moves_off_a_node_onto_which_its_job_grows() -> None:
    nodes = [node("t1", used=4), node("t2", used=3, cpus=80, cpus_allocated=4)]
    growing = Plan((Grow(asking(1).key, "t2", 1, "flex", "more"),))
    stays = plan(nodes, asking(1, "t2"), before=growing)
    assert (shrunk(stays), grown(stays)) == ([], [(1, "t2", 1)]), "its CPU is its own"
    moves = plan([*nodes, cpus("c1")], asking(1, "t2"), before=growing)
    assert (shrunk(moves), grown(moves)) == (["a0"], [(1, "c1", 0), (1, "t2", 1)])
    later = granted(asking(2, "t2", "t2"), "t2", 1)
    assert shrunk(plan([*nodes, cpus("c1")], later)) == ["a0"], "one after the other"
    just_changed = replace(later, aggregators=replace(later.aggregators, last_change_at=NOW - 9))
    assert plan([*nodes, cpus("c1")], just_changed).actions == ()


def test_a_cluster_that_allocates_cores_gives_all_their_threads() -> None:
    nodes = [cpus("c1", 3, threads_per_core=2)]
    assert grown(plan(nodes, asking(2))) == [(1, "c1", 0)]


def test_a_job_whose_base_asked_for_memory_needs_the_share_of_a_cpu() -> None:
    job = asking(1, shape=Resources(gpus=1, cpus=4, memory_mib=4002))
    assert grown(plan([cpus("c1", memory_mib=1001)], job)) == [(1, "c1", 0)]
    assert grown(plan([cpus("c1", memory_mib=1000)], job)) == []


def test_what_is_granted_and_not_yet_seen_by_the_cluster_is_taken() -> None:
    assert grown(plan([cpus("c1", 2)], asking(3, "c1", state="granted"))) == [(1, "c1", 0)]


def test_no_more_satellites_than_are_allowed() -> None:
    told = plan([cpus("c1")], granted(asking(3, "c1"), "t2", 2), most=3)
    assert grown(told) == [(1, "c1", 0)]
    assert "max_satellites" in sentence(told, 1)


def test_the_oldest_stay_if_a_job_asks_for_fewer() -> None:
    assert shrunk(plan([cpus("c1")], asking(1, "c1", "c1", "c1"))) == ["a1", "a2"]


def test_a_node_that_is_wanted_empty_is_left_and_another_one_taken() -> None:
    drained = cpus("c1", unusable="drained", conditions=frozenset({NodeCondition.DRAIN}))
    told = plan([drained, cpus("c2")], asking(1, "c1"))
    assert (shrunk(told), grown(told)) == (["a0"], [(1, "c2", 0)])


def test_a_job_without_a_leader_keeps_what_it_has() -> None:
    told = plan([cpus("c1")], replace(asking(0, "c1"), attached=False, aggregation=None))
    assert told.actions == ()


def test_nothing_is_granted_before_training_begins_or_while_the_job_rests() -> None:
    rests = replace(asking(1), aggregators=AggregatorGrants(rest_until=NOW + 60))
    fresh = replace(asking(1), aggregators=AggregatorGrants(last_change_at=NOW - 9))
    for job, why in (
        (asking(1, scalable=False), "does not train yet"),
        (asking(1, suspended=True), "suspended"),
        (asking(1, pending_command="profile"), "profile"),
        (rests, "for 60 s"),
        (fresh, "not long before"),
    ):
        told = plan([cpus("c1")], job)
        assert grown(told) == []
        assert why in sentence(told, 1)


def test_a_node_that_rests_for_the_job_is_passed_over() -> None:
    job = replace(asking(1), aggregators=AggregatorGrants(retry_at={"c1": NOW + 60}))
    assert grown(plan([cpus("c1"), cpus("c2", used=3)], job)) == [(1, "c2", 0)]


def test_a_job_that_asks_for_none_changes_nothing() -> None:
    before = Plan((Grow(elastic(1).key, "t2", 1, "flex", "more"),))
    assert with_aggregators(before, snapshot([cpus("c1")], [elastic(1)]), 10.0, None) is before


def test_an_aggregators_satellite_is_nobodys_to_take_and_its_cpu_is_not_free() -> None:
    job = asking(1, "c1", state="granted")
    seen: Snapshot = snapshot([cpus("c1", 4)], [job])
    room = build_rooms(seen)["c1"]
    assert (room.idle.cpus, room.standing) == (3, [])
    assert job.granted_workers == 1
    assert job.shape == ONE_GPU
