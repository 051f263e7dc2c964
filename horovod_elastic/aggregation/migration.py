"""Pure: when the sums of a generation migrate to other Aggregators of a pool, at a node and at those.

No generation begins for it, and nothing is copied. Nodes connect with the new Aggregators and register their
keys there while the old ones still sum. A new one then makes room for all sums. Once it has met all nodes, it
says so to each. A node that has heard it from all new ones gives them its sums, as after a death, even those
that are under way. So no node waits long for another one to migrate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from horovod_elastic.aggregation.plan import Plan


@dataclass(slots=True)
class Migration:
    """The Aggregators that make a node's sums next. `roots`: their indices in `plan`, by their numbers."""

    plan: Plan
    roots: Mapping[int, int]
    _have_met: set[int] = field(default_factory=set)

    def all_met(self, root: int) -> None:
        """Note that this one has met all nodes."""
        self._have_met.add(root)

    def is_due(self, lives: Callable[[int], bool]) -> bool:
        """Whether all that live have met all nodes."""
        return all(root in self._have_met or not lives(root) for root in self.roots)


@dataclass(slots=True)
class Meeting:
    """The nodes that have registered their keys with a pool's Aggregator."""

    _here: set[int] = field(default_factory=set)
    _is_whole: bool = False

    def comes(self, node: int, nodes: Iterable[int]) -> list[int]:
        """Note that this node has. Who is to be told that all that live have: `nodes`."""
        self._here.add(node)
        return [node] if self._is_whole else self.look(nodes)

    def look(self, nodes: Iterable[int]) -> list[int]:
        """Who is to be told now that all that live have: all of `nodes`, once."""
        living = list(nodes)
        if self._is_whole or not self._here.issuperset(living):
            return []
        self._is_whole = True
        return living
