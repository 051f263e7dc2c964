"""Parses `scontrol show node -d -o` and `scontrol show partition -o` into Nodes and Partitions. Pure
functions.

Neither output has text of users. Free text of administrators (Reason, Comment, Extra) always follows the
fields that are read here. If a field occurs twice, the first occurrence counts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.node_states import conditions, first_line, why_unusable
from flexo.clusters.slurm.text import BadValue, generic_resources, number, or_empty, shared_gpus_in_use
from flexo.model.nodes import Node, NodeCondition, Partition

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_REASON = re.compile(r"\sReason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\]|\s(?:Comment|Extra)=|$)")


def parse_nodes(text: str) -> tuple[Node, ...]:
    """All nodes. Raises BadValue when a field is missing or not understood."""
    return tuple(_node(line) for line in text.splitlines() if line.startswith("NodeName="))


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """All partitions. Raises BadValue when a field is missing or not understood."""
    return tuple(_partition(line) for line in text.splitlines() if line.startswith("PartitionName="))


def _fields(line: str) -> dict[str, str]:
    # The first of several counts: reversed, because the last one put into a dictionary stays.
    return dict(reversed(_PAIR.findall(line)))


def _node(line: str) -> Node:
    fields = _fields(line)
    try:
        state, *flags = fields["State"].split("+")
        in_use = fields.get("GresUsed", "")  # from 24.11 on, nodes without any GRES lack it
        owner = _owner(fields.get("Owner", ""))
        unusable, keeps = why_unusable(state, flags, _reason(line), owner), conditions(state, flags, owner)
        if not unusable and shared_gpus_in_use(in_use):
            unusable = "GPUs in use in pieces (shard or mps)"
            keeps = frozenset({NodeCondition.OUT_OF_SERVICE})
        return Node(
            name=fields["NodeName"],
            capacity=replace(
                generic_resources(fields["Gres"]),
                # Effective: without the CPUs that the node keeps for itself (CoreSpecCount)
                cpus=number(fields["CPUEfctv"] if "CPUEfctv" in fields else fields["CPUTot"]),
                memory_mib=number(fields["RealMemory"]) - number(fields.get("MemSpecLimit", "0")),
            ),
            allocated=replace(
                generic_resources(in_use),
                cpus=number(fields["CPUAlloc"]),
                memory_mib=number(fields["AllocMem"]),
            ),
            partitions=_names(fields.get("Partitions", "")),
            features=_names(fields.get("ActiveFeatures", "")),
            unusable=unusable,
            conditions=keeps,
            threads_per_core=number(fields.get("ThreadsPerCore", "1")),
        )
    except KeyError as missing:
        raise BadValue(f"node without {missing} in `scontrol show node`: {line[:120]}") from missing


def _partition(line: str) -> Partition:
    fields = _fields(line)
    try:
        return Partition(
            name=fields["PartitionName"],
            priority_tier=number(fields["PriorityTier"]),
            nodes=frozenset(expand(fields["Nodes"])),
            up=fields["State"] == "UP",
        )
    except KeyError as missing:
        raise BadValue(f"partition without {missing} in `scontrol show partition`: {line[:120]}") from missing


def _names(text: str) -> frozenset[str]:
    return frozenset(or_empty(text).split(",")) - {""}


def _owner(text: str) -> str:
    """The owner of a node: `root(0)` -> root; "" for a node without an owner."""
    return or_empty(text).partition("(")[0]


def _reason(line: str) -> str:
    match = _REASON.search(line)
    return first_line(match[1]) if match else ""
