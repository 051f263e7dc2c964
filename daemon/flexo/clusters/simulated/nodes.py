"""Makes the nodes of a simulated cluster, from groups of equal nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo.model.nodes import Node
from flexo_protos.resources import Resources

PARTITION = "all"
"""The partition of all training nodes."""
INFERENCE = "infer"
"""The partition of the inference cluster's servers, if there is one."""
BORROWED = "borrowed"
"""The partition of the inference cluster's servers that training may use."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` nodes that are alike."""

    count: int
    gpus: int
    """The number of GPUs of each node."""
    gpu_type: str = ""
    name: str = "n"
    """The prefix of its nodes' names; a number follows."""
    features: frozenset[str] = frozenset()
    """The features that policies look for: "inference" marks servers on loan."""


def make_nodes(groups: Sequence[NodeGroup], partition: str = PARTITION) -> tuple[Node, ...]:
    """Make idle nodes, in the order of the groups. Raises ValueError if two would have the same name.

    CPUs and memory are not simulated: a node has one CPU for each GPU, so that they never decide anything.
    """
    nodes = [
        Node(
            name=f"{group.name}{index:0{len(str(group.count))}d}",
            capacity=Resources(group.gpus, group.gpus, gpu_type=group.gpu_type),
            allocated=Resources(),
            partitions=frozenset({partition}),
            features=group.features,
        )
        for group in groups
        for index in range(1, group.count + 1)
    ]
    if len({node.name for node in nodes}) < len(nodes):
        raise ValueError("two groups of nodes have the same name")
    return tuple(nodes)
