"""Pure: which Aggregator is the root of which part of a key, among those that live."""

from __future__ import annotations

from collections.abc import Sequence

from horovod_elastic.aggregation.plan import Plan


class RootChoice:
    """The same everywhere, if all know the same of those who are gone.

    Aggregators of a pool are nodes without workers. If the plan has any, they are the roots of all parts, in
    proportion to their shares. If all are gone, the nodes with workers take turns.
    """

    def __init__(self, plan: Plan, own: int) -> None:
        """`own`: the node that asks. It has to do if nobody lives."""
        self.gone: set[int] = set()
        """Ranks."""
        self.left_out: set[int] = set()
        """Aggregators of the pool that are gone."""
        self.ranked = [index for index, node in enumerate(plan.nodes) if node.ranks]
        """Nodes with workers."""
        self.pool = [index for index, node in enumerate(plan.nodes) if not node.ranks]
        self._plan = plan
        self._own = own

    def lives(self, node: int) -> bool:
        """Whether this node of the plan has a worker that lives, or belongs to the pool and is not gone."""
        ranks = self._plan.nodes[node].ranks
        return not self.gone.issuperset(ranks) if ranks else node not in self.left_out

    def shares(self) -> dict[int, int]:
        """The shares of the pool's Aggregators that live."""
        return {index: self._plan.nodes[index].share for index in self.pool if self.lives(index)}

    def root_of(self, key: int, part: int) -> int:
        """The node whose Aggregator sums this part. The parts of all keys go around those that live."""
        pool = [index for index in self.pool if self.lives(index)]
        if pool:
            return self._by_share(pool, key + part)
        count = len(self.ranked)
        for step in range(count):
            node = self.ranked[(key + part + step) % count]
            if self.lives(node):
                return node
        return self._own

    def _by_share(self, pool: Sequence[int], number: int) -> int:
        """The Aggregator of the pool that has this part, in proportion to the shares."""
        number %= sum(self._plan.nodes[index].share for index in pool)
        for index in pool:
            number -= self._plan.nodes[index].share
            if number < 0:
                return index
        raise AssertionError("the number is less than the sum of the shares")
