"""The event store says why idle GPUs stay idle: once for all nodes with the same reason, when it begins."""

from __future__ import annotations

from event_recorder import Recorder
from flat_records import make_node
from says import says

from flexo.control.idle_nodes import IdleNodes
from flexo.model.nodes import Node

FLEX = frozenset({"flex"})
BAD_FAN = "IDLE+DRAIN: bad fan"


def node(name: str, why: str = "", *, used: int = 0, partition: str = "flex") -> Node:
    return make_node(name, 4, used, partitions=frozenset({partition}), unusable=why)


def looked(idle: IdleNodes, recorder: Recorder, at: float, *nodes: Node) -> dict[str, int]:
    return dict(idle.look(nodes, FLEX, at, recorder))


def test_nodes_that_become_unusable_together_share_one_event_which_names_them_and_why() -> None:
    idle, recorder = IdleNodes(), Recorder()
    nodes = node("t1"), node("t2", BAD_FAN), node("t3", BAD_FAN)
    found = [looked(idle, recorder, at, *nodes) for at in (0.0, 5.0, 10.0)]
    assert found == [{}, {"t2": 1, "t3": 1}, {"t2": 1, "t3": 1}]
    (event,) = recorder.events
    assert (event.kind, event.job) == ("node", None)
    assert says(event.text, "t2", "t3", BAD_FAN)


def test_a_node_outside_the_partitions_of_satellites_says_so() -> None:
    idle, recorder = IdleNodes(), Recorder()
    for at in (0.0, 5.0):
        found = looked(idle, recorder, at, node("t1"), node("i1", partition="infer"))
    assert found == {"i1": 1}
    assert says(recorder.events[0].text, "i1", "no partition of satellites", "flex")


def test_nodes_are_inside_where_the_cluster_does_not_say_who_is_in_which_partition() -> None:
    idle, recorder = IdleNodes(), Recorder()
    for at in (0.0, 5.0):
        assert looked(idle, recorder, at, node("i1", partition="infer")) == {}
    assert recorder.events == []


def test_a_node_without_idle_gpus_needs_no_reason() -> None:
    idle, recorder = IdleNodes(), Recorder()
    for at in (0.0, 5.0):
        assert looked(idle, recorder, at, node("t1", BAD_FAN, used=4)) == {}


def test_a_reason_ends_with_the_state_of_its_node_and_begins_anew() -> None:
    idle, recorder = IdleNodes(), Recorder()
    told = ["", BAD_FAN, BAD_FAN, "", "DOWN", "DOWN"]
    found = [looked(idle, recorder, 5.0 * number, node("t1", why)) for number, why in enumerate(told)]
    assert found == [{}, {}, {"t1": 1}, {}, {}, {"t1": 2}]


def test_what_could_not_be_written_has_no_event_until_it_can() -> None:
    idle, recorder = IdleNodes(), Recorder()
    recorder.full = True
    assert [looked(idle, recorder, at, node("t1", BAD_FAN)) for at in (0.0, 5.0)] == [{}, {}]
    recorder.full = False
    assert looked(idle, recorder, 10.0, node("t1", BAD_FAN)) == {"t1": 1}


def test_thousands_of_nodes_are_one_entry_of_bearable_length() -> None:
    idle, recorder = IdleNodes(), Recorder()
    nodes = [node(f"t{number}", BAD_FAN) for number in range(5000)]
    for at in (0.0, 5.0):
        found = looked(idle, recorder, at, *nodes)
    assert (len(recorder.events), len(found)) == (1, 5000)
    assert len(recorder.events[0].text) < 500
    assert says(recorder.events[0].text, "t49", "4950 more")
