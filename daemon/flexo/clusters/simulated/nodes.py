"""The nodes of a simulated cluster, by groups of equals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo.model.nodes import Node
from flexo_protos.resources import Resources

PARTITION = "all"
"""Of all training nodes."""
INFERENCE = "infer"
"""The partition of the inference cluster's servers, where there is one."""
BORROWED = "borrowed"
"""The partition of those of its servers that training may use."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` nodes that are alike."""

    count: int
    gpus: int
    """Of each node."""
    gpu_type: str = ""
    name: str = "n"
    """What the names of its nodes begin with; a number follows."""
    features: frozenset[str] = frozenset()
    """As policies look for them: "inference" marks servers on loan."""


def make_nodes(groups: Sequence[NodeGroup], partition: str = PARTITION) -> tuple[Node, ...]:
    """Idle nodes, in the order of the groups. Raises ValueError where two would have one name.

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
