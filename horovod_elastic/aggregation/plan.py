"""Whose sums an Aggregator makes: the plan of one generation's nodes and ranks, and who introduces itself.

A plan comes from whoever connects, so every field is checked. All who connect for a generation must bring the
same plan.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod_elastic.aggregation.frames import BadFrame

MOST_RANKS = 4096
PART_BYTES = 1 << 20
"""Size of a part: what one frame carries, and what one Aggregator sums of a key."""
NEW = -1
LEAST_PART_BYTES, MOST_PART_BYTES = 1 << 12, 4 << 20
"""The upper limit is the paper's (AutoPS, section 4: partitions of at most 4 MB)."""


class Role(enum.StrEnum):
    """Who connects to an Aggregator."""

    WORKER = "worker"
    NODE = "node"
    """Another node's Aggregator, with that node's sums."""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node of a generation: its ranks, in ascending order, and its Aggregator. One without ranks is a
    pool's."""

    name: str
    ranks: tuple[int, ...]
    host: str = ""
    port: int = 0
    token: str = ""
    """What this node's Aggregator wants to hear from those who connect."""
    share: int = 1
    """Of a pool's Aggregator: how many parts it sums, in proportion to the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation of a job. Its nodes are in the order of their lowest ranks, and so are sums.

    Aggregators of a pool come last. If there are any, they sum all parts over the nodes.
    """

    job: str
    generation: int
    nodes: tuple[PlannedNode, ...]
    part_bytes: int = PART_BYTES
    version: int = 0
    """The version of the assignment of the pool's Aggregators; 0: there are none."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(len(node.ranks) for node in self.nodes)

    @property
    def pool(self) -> frozenset[tuple[str, int]]:
        """Where the pool's Aggregators are: host and port."""
        return frozenset((node.host, node.port) for node in self.nodes if not node.ranks)

    def with_pool(self, version: int, pool: Sequence[PlannedNode]) -> Plan:
        """The same generation with these Aggregators of a pool, of that version of the assignment."""
        ranked = tuple(node for node in self.nodes if node.ranks)
        return replace(self, nodes=(*ranked, *pool), version=version)

    def told_to(self, node: int) -> Plan:
        """The plan as a pool's Aggregator is told it: of the others, it need not know where they are."""
        return replace(
            self,
            nodes=tuple(
                each if index == node else replace(each, host="", port=0, token="")
                for index, each in enumerate(self.nodes)
            ),
        )

    def node_of(self, rank: int) -> int:
        """The index of the node with this rank. Raises ValueError if none has it."""
        for index, node in enumerate(self.nodes):
            if rank in node.ranks:
                return index
        raise ValueError(f"no node of the plan has rank {rank}")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection."""

    role: Role
    number: int
    """A worker's rank, or a node's index in the plan."""
    to: int
    """The index, in the plan, of the node whose Aggregator this is for."""
    token: str
    plan: Plan
    keys: int = NEW
    """How many keys a worker had registered with an Aggregator that is gone; 0 from a node; NEW: none is."""


def to_bytes(hello: Hello) -> bytes:
    """The message's bytes: JSON."""
    plan = hello.plan
    nodes = [
        [node.name, list(node.ranks), node.host, node.port, node.token, node.share] for node in plan.nodes
    ]
    return json.dumps(
        {
            "role": hello.role,
            "number": hello.number,
            "token": hello.token,
            "to": hello.to,
            "keys": hello.keys,
            "job": plan.job,
            "generation": plan.generation,
            "part_bytes": plan.part_bytes,
            "version": plan.version,
            "nodes": nodes,
        }
    ).encode()


def from_bytes(data: bytes) -> Hello:
    """The message in `data`. Raises BadFrame that says which field is wrong."""
    return hello_of(fields_of(data))


def fields_of(data: bytes) -> Mapping[str, Any]:
    """The fields of the message in `data`, unchecked. Raises BadFrame."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a hello that cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise BadFrame(f"a hello that is {str(said)[:40]!r}, where fields belong")
    return said


def hello_of(said: Mapping[str, Any]) -> Hello:
    """The message with these fields. Raises BadFrame that says which field is wrong."""
    try:
        plan = Plan(
            str(said["job"]),
            _number(said, "generation", 0, 2**62),
            tuple(map(_node, _list(said["nodes"]))),
            _number(said, "part_bytes", LEAST_PART_BYTES, MOST_PART_BYTES),
            _number(said, "version", 0, 2**62),
        )
        _check(plan)
        role = Role(said["role"])
        with_workers = sum(1 for node in plan.nodes if node.ranks)  # a pool's, which come last, push nothing
        most = {Role.WORKER: plan.size, Role.NODE: with_workers}[role] - 1
        number, to = _number(said, "number", 0, most), _number(said, "to", 0, len(plan.nodes) - 1)
        return Hello(role, number, to, str(said["token"]), plan, _number(said, "keys", NEW, 2**31))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFrame(f"a hello that cannot be read: {error}") from error


def _check(plan: Plan) -> None:
    if not 0 < plan.size <= MOST_RANKS:
        raise ValueError(f"a plan of {plan.size} ranks; 1 to {MOST_RANKS} are allowed")
    ranks = sorted(rank for node in plan.nodes for rank in node.ranks)
    if ranks != list(range(plan.size)):
        raise ValueError("a plan whose nodes do not have each rank once")
    lowest = [node.ranks[0] if node.ranks else plan.size for node in plan.nodes]
    if lowest != sorted(lowest):
        raise ValueError("a plan whose nodes are not in the order of their lowest ranks, a pool's last")


def _node(said: Any) -> PlannedNode:
    name, ranks, host, port, token, share = _list(said)
    numbers = tuple(_whole(rank, "a rank", 0, MOST_RANKS) for rank in _list(ranks))
    if list(numbers) != sorted(set(numbers)):
        raise ValueError("a node whose ranks are not in ascending order")
    port, share = _whole(port, "a port", 0, 65535), _whole(share, "a share", 1, 2**31)
    return PlannedNode(str(name), numbers, str(host), port, str(token), share)


def _list(said: Any) -> Sequence[Any]:
    if not isinstance(said, list):
        raise TypeError(f"{str(said)[:40]!r} where a list belongs")
    return said


def _number(said: Mapping[str, Any], field: str, least: int, most: int) -> int:
    return _whole(said[field], field, least, most)


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what} is {str(value)[:40]!r}; {least} to {most} are allowed")
    return value
