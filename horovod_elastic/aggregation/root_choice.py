"""Pure: which Aggregator is the root of which part of a key, among those that live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horovod_elastic.aggregation.plan import Plan


class RootChoice:
    """The same everywhere, if all know the same of those who are gone.

    Aggregators of a pool are nodes without workers. If the plan has any, they are the roots of all parts, in
    proportion to their shares. If all are gone, the nodes with workers take turns. Nodes are numbered as in
    the plan. Aggregators that are assigned later have the numbers after those.
    """

    def __init__(self, plan: Plan, own: int) -> None:
        """`own`: the node that asks. It has to do if nobody lives."""
        self.gone: set[int] = set()
        """Ranks."""
        self.left_out: set[int] = set()
        """Aggregators of the pool that are gone."""
        self._retired: set[int] = set()
        """Those of earlier assignments."""
        self.ranked = [index for index, node in enumerate(plan.nodes) if node.ranks]
        """Nodes with workers."""
        self.pool = [index for index, node in enumerate(plan.nodes) if not node.ranks]
        self._nodes = list(plan.nodes)
        self._names = [(plan.version, index) for index in range(len(plan.nodes))]
        """By node: the version of its assignment, and its index in the plan with this version."""
        self._own = own

    # --- assignments --------------------------------------------------------------------------------------

    def add(self, plan: Plan) -> dict[int, int]:
        """Number the pool's Aggregators of a later plan. Their indices in that plan, by number here."""
        added = {}
        for index, node in enumerate(plan.nodes):
            if not node.ranks:
                added[len(self._nodes)] = index
                self._nodes.append(node)
                self._names.append((plan.version, index))
        return added

    def retire(self, nodes: Iterable[int]) -> None:
        """Use these Aggregators of the pool no more, because the job is assigned others."""
        self._retired.update(nodes)

    def use(self, pool: Iterable[int]) -> list[int]:
        """Have these Aggregators be the pool from now on. Returns those before, which are retired."""
        before, self.pool = self.pool, list(pool)
        self.retire(before)
        return before

    def name(self, node: int) -> tuple[int, int]:
        """What others know a node of the pool by: the version of the assignment, its index in the plan."""
        return self._names[node]

    def named(self, version: int, index: int) -> int | None:
        """The node with this name; None if it is not known here."""
        return self._names.index((version, index)) if (version, index) in self._names else None

    # --- roots --------------------------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """Whether there is but one node, with workers, and nobody else to sum."""
        return len(self.ranked) == 1 and not self.pool

    def is_of_pool(self, node: int) -> bool:
        """Whether this node is an Aggregator of the pool."""
        return not self._nodes[node].ranks

    def lives(self, node: int) -> bool:
        """Whether this node has a worker that lives, or belongs to the pool and is not gone or retired."""
        ranks = self._nodes[node].ranks
        return not self.gone.issuperset(ranks) if ranks else node not in self.left_out | self._retired

    def shares(self) -> dict[int, int]:
        """The shares of the pool's Aggregators that live."""
        return {index: self._nodes[index].share for index in self.pool if self.lives(index)}

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
        number %= sum(self._nodes[index].share for index in pool)
        for index in pool:
            number -= self._nodes[index].share
            if number < 0:
                return index
        raise AssertionError("the number is less than the sum of the shares")
