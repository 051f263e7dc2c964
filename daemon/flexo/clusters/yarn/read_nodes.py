"""Converts the ResourceManager's reports of nodes to flexo's types. Pure functions."""

from __future__ import annotations

from typing import Final

from flexo.clusters.yarn.queues import Rooms
from flexo.model.nodes import Node, NodeCondition
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources
from flexo_yarn.records import gpus

_CONDITIONS: Final = {
    pb.NS_DECOMMISSIONING: NodeCondition.DRAIN,
    pb.NS_DECOMMISSIONED: NodeCondition.DRAIN,
    pb.NS_NEW: NodeCondition.UNKNOWN,
}


def resources_of(amount: pb.Resource) -> Resources:
    """An amount of resources."""
    return Resources(gpus(amount), amount.virtual_cores, amount.memory)


def to_node(report: pb.NodeReport, rooms: Rooms) -> Node:
    """Convert one node. A node of YARN has one label at most."""
    conditions, why = frozenset[NodeCondition](), ""
    if report.state != pb.NS_RUNNING:
        conditions = frozenset({_CONDITIONS.get(report.state, NodeCondition.OUT_OF_SERVICE)})
        said = " ".join(report.health_report.split())[:200]
        why = pb.NodeState.Name(report.state).removeprefix("NS_").lower() + (f": {said}" if said else "")
    return Node(
        name=report.node_id.host,
        capacity=resources_of(report.capability),
        allocated=resources_of(report.used),
        partitions=rooms.of(next(iter(report.labels), "")),
        features=frozenset(report.labels),
        unusable=why,
        conditions=conditions,
    )
