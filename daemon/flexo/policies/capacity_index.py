"""An index of the nodes on which workers still fit, so that no job has to search thousands of nodes.

The index orders nodes by how many workers of a kind their idle resources hold, and by how long these
resources are likely to stay idle. A job needs nothing else of a node but its name.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexo.model.node_filter import ANY_NODE, NodeFilter
from flexo.model.nodes import Node
from flexo.policies.node_capacity import NodeCapacity
from flexo_protos.resources import Resources

Pays = Callable[[int, float], bool]
"""Tells whether capacity for a number of workers, for a number of seconds, is worth a resize to a job."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of workers: jobs of one kind fit on the same nodes."""

    shape: Resources
    gpu_types: frozenset[str] | None = None
    """The GPU types of nodes that suit; None: all nodes suit."""
    nodes: NodeFilter = ANY_NODE
    """The nodes that the job's own request permits."""

    def suits(self, node: Node) -> bool:
        """Whether such workers may be on the node, if it has room."""
        return (self.gpu_types is None or node.gpu_type in self.gpu_types) and self.nodes.permits(node)


class CapacityIndex:
    """Nodes with idle resources, by kind of job. Mutable: belongs to one plan in the making."""

    def __init__(
        self, rooms: Mapping[str, NodeCapacity], names: Sequence[str], idle_for: Mapping[str, float]
    ) -> None:
        """`names`: the nodes to index, in order; `idle_for`: seconds that idle GPUs stay, per node."""
        self._rooms = rooms
        self._names = names
        self._idle_for = idle_for
        self._of: dict[Kind, dict[tuple[int, float], list[str]]] = {}
        self._held: dict[Kind, dict[str, int]] = {}

    def holds(self, kind: Kind, name: str) -> int:
        """Workers for which one node has idle resources; 0: the node does not suit, or is not in the
        index."""
        self._by_size(kind)
        return self._held[kind].get(name, 0)

    def total(self, kind: Kind, pays: Pays) -> int:
        """Workers for which all nodes together have idle resources, counting nodes where that `pays`."""
        sizes = self._by_size(kind).items()
        return sum(fits * len(names) for (fits, stay_s), names in sizes if names and pays(fits, stay_s))

    def tightest_first(self, kind: Kind, wanted: int, pays: Pays) -> Iterator[str]:
        """Nodes that pay: first those that hold all `wanted` workers, the tightest first; then the others,
        the roomiest first."""
        sizes = self._by_size(kind)
        fitting = sorted(
            {fits for (fits, _), names in sizes.items() if names},
            key=lambda fits: (fits < wanted, fits if fits >= wanted else -fits),
        )
        for fits in fitting:
            alike = [names for (each, stay_s), names in sizes.items() if each == fits and pays(fits, stay_s)]
            yield from alike[0] if len(alike) == 1 else heapq.merge(*alike)

    def not_paying(self, kind: Kind, pays: Pays) -> list[str]:
        """Nodes that have idle resources, but for too short a time, in order."""
        sizes = self._by_size(kind).items()
        return sorted(
            name for (fits, stay_s), names in sizes if names and not pays(fits, stay_s) for name in names
        )

    def changed(self, name: str) -> None:
        """Update the index after the idle resources of a node have changed."""
        for kind, held in self._held.items():
            before, now = held.get(name, 0), self._fits(kind, name)
            if before == now:
                continue
            sizes, stay_s = self._of[kind], self._idle_for[name]
            if before:
                names = sizes[before, stay_s]
                del names[bisect_left(names, name)]
            if now:
                insort(sizes.setdefault((now, stay_s), []), name)
            held[name] = now

    def _by_size(self, kind: Kind) -> Mapping[tuple[int, float], list[str]]:
        if kind not in self._of:
            sizes: dict[tuple[int, float], list[str]] = {}
            held = {name: fits for name in self._names if (fits := self._fits(kind, name))}
            for name, fits in held.items():
                sizes.setdefault((fits, self._idle_for[name]), []).append(name)
            self._of[kind], self._held[kind] = sizes, held
        return self._of[kind]

    def _fits(self, kind: Kind, name: str) -> int:
        room = self._rooms[name]
        return room.idle.holds(kind.shape) if kind.suits(room.node) else 0
