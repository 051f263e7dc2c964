"""Which nodes the queues of a YARN cluster may use, and what flexod says of the nodes."""

from __future__ import annotations

import pytest

from flexo.clusters.base import ActionRefused, Borrowed
from flexo.clusters.yarn.queues import Rooms, lent_label, queues_of
from flexo.clusters.yarn.read_nodes import to_node
from flexo.model.nodes import Node, NodeCondition
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records


def queue(name: str, *labels: str, unlabelled: float = 1.0) -> pb.QueueInfo:
    return pb.QueueInfo(name=name, accessible_node_labels=labels, maximum_capacity=unlabelled)


def rooms(*children: pb.QueueInfo) -> Rooms:
    return Rooms(queues_of(pb.QueueInfo(name="root", children=children)), "flex")


def report(host: str = "h1", label: str = "") -> pb.NodeReport:
    return pb.NodeReport(
        node_id=pb.NodeId(host=host, port=8041),
        state=pb.NS_RUNNING,
        capability=records.resource(4096, 8, 4),
        used=records.resource(1024, 2, 1),
        labels=[label] if label else [],
    )


def test_a_node_that_does_not_run_says_why() -> None:
    ill = report()
    ill.state, ill.health_report = pb.NS_UNHEALTHY, "1/1 local-dirs\nare bad"
    node = to_node(ill, rooms(queue("default")))
    assert node.conditions == {NodeCondition.OUT_OF_SERVICE}
    assert "unhealthy" in node.unusable
    assert "local-dirs are bad" in node.unusable
    assert (node.gpus, node.gpus_idle) == (4, 0)
    assert to_node(report(), rooms(queue("default"))).gpus_idle == 3


def test_queues_without_queues_below_them_are_partitions_and_the_flex_queue_is_the_lowest() -> None:
    below = pb.QueueInfo(name="root.a", children=[pb.QueueInfo(name="root.a.b", path="root.a.b")])
    found = rooms(below, queue("flex"))
    partitions = {each.name: each for each in found.partitions([to_node(report(), found)])}
    assert set(partitions) == {"b", "flex"}
    assert partitions["flex"].priority_tier < partitions["b"].priority_tier
    assert partitions["b"].nodes == {"h1"}


def test_a_node_with_a_label_is_for_the_queues_that_have_it_and_for_satellites_only_on_loan() -> None:
    found = rooms(
        queue("default"),
        queue("all", "*"),
        queue("infer", "inference", unlabelled=0.0),
        queue("flex", "inference"),
    )
    nodes = [to_node(report("h1"), found), to_node(report("h2", "inference"), found)]
    assert nodes[0].partitions == {"default", "all", "flex"}
    assert nodes[1].partitions == {"all", "infer", "flex@inference"}
    partitions = {each.name: each for each in found.partitions(nodes)}
    assert partitions["infer"].nodes == partitions["flex@inference"].nodes == {"h2"}
    assert partitions["flex"].nodes == {"h1"}
    assert partitions["flex@inference"].priority_tier == partitions["flex"].priority_tier
    assert partitions["flex@inference"].priority_tier < partitions["infer"].priority_tier


def test_a_queue_without_a_node_is_a_partition_too() -> None:
    found = rooms(queue("default"), queue("idle", unlabelled=0.0))
    nodes: list[Node] = [to_node(report(), found)]
    assert {each.name: each.nodes for each in found.partitions(nodes)}["idle"] == frozenset()


def test_loans_need_the_flex_queue_at_a_label_that_is_never_edited() -> None:
    assert lent_label(None, "flex") == ""
    assert lent_label(Borrowed("flex@inference", static=True), "flex") == "inference"


@pytest.mark.parametrize(
    "borrowed",
    [
        Borrowed("borrowed", static=True),
        Borrowed("flex@", static=True),
        Borrowed("other@inference", static=True),
        Borrowed("flex@inference", static=False),
        Borrowed("flex@inference", satellite_partition="more", static=True),
    ],
)
def test_loans_that_are_set_up_as_on_slurm_are_refused_with_what_is_needed(borrowed: Borrowed) -> None:
    with pytest.raises(ActionRefused, match=r"flex@LABEL.*static = true"):
        lent_label(borrowed, "flex")
