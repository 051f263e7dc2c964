"""The placement of workers on nodes: `Placement` holds a policy's choices, `FreeGpus` finds nodes with room.

`FreeGpus` keeps nodes in buckets by the number of their free GPUs, so that a placement looks at a handful of
nodes however many there are. It counts GPUs only. For satellites, `node_capacity` counts CPUs and memory too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from flexo.model.nodes import Node
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo_protos.resources import UNBOUNDED, Amount, Resources, total


class Placement:
    """The nodes that a policy may use, and the shares that it has put on them. Mutable: belongs to one
    decision."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._put: dict[JobKey, tuple[NodeShare, ...]] = {}

    @property
    def any_idle(self) -> bool:
        """Whether a usable node has an idle GPU."""
        return any(node.gpus_idle for node in self.nodes)

    def free(self, taken: Iterable[TrainingJob] = ()) -> FreeGpus:
        """The idle GPUs of usable nodes, and the shares of `taken`, as if these jobs did not run.

        A job in `taken` may keep its GPUs on an unusable node (`place`); no other job may have them.
        """
        free = FreeGpus(self.nodes)
        for job in taken:
            free.give(job.shape, job.shares)
        return free

    def could_ever_hold(self, job: TrainingJob, workers: int) -> bool:
        """Whether the usable nodes would hold `workers` of `job` if no other job were there."""
        shape = job.shape
        by_type: dict[str, int] = {}
        for node in self.nodes:
            if not node.unusable and shape.gpu_type in ("", node.gpu_type):
                fits = node.gpus // shape.gpus if shape.gpus else workers
                by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + fits
        return max(by_type.values(), default=0) >= workers

    def put(self, job: JobKey, shares: tuple[NodeShare, ...]) -> int:
        """Give `job` exactly `shares` in this placement. Returns the number of workers."""
        self._put[job] = shares
        return sum(share.workers for share in shares)

    def of(self, job: JobKey) -> tuple[NodeShare, ...] | None:
        """The shares of `job`; None: it has not been put yet."""
        return self._put.get(job)


class _Pool:
    """Usable nodes of one GPU type, by the number of their free GPUs."""

    __slots__ = ("counts", "heaps")

    def __init__(self) -> None:
        self.counts: dict[Amount, int] = {}
        self.heaps: dict[Amount, list[int]] = {}
        """Per number of free GPUs: indexes of nodes. A node that has another number by now is skipped when it
        comes up."""

    def enter(self, index: int, free: Amount) -> None:
        """Enter node `index` with `free` free GPUs."""
        if free in self.counts:
            self.counts[free] += 1
            heappush(self.heaps[free], index)
        else:
            self.counts[free] = 1
            self.heaps[free] = [index]

    def leave(self, free: Amount) -> None:
        """Record that one of the nodes with `free` free GPUs has another number now."""
        self.counts[free] -= 1

    def most_first(self) -> list[Amount]:
        """The numbers of free GPUs that nodes have, the largest first."""
        return sorted((free for free, count in self.counts.items() if count), reverse=True)

    def workers(self, gpus: Amount) -> int:
        """The number of workers of `gpus` GPUs each that fit, each on one node."""
        return sum(_fitting(free, gpus) * count for free, count in self.counts.items() if count)


class FreeGpus:
    """Free GPUs by node. Mutable: belongs to one decision.

    The workers of one placement are all on one GPU type, because the slowest would set the pace of all. A
    caller that mixes types places part by part. Ties go to the node that comes first in the snapshot.
    """

    __slots__ = ("_free", "_index", "_names", "_pool_of", "_pools", "total")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._names = [node.name for node in nodes]
        self._index = dict(zip(self._names, range(len(nodes)), strict=True))
        self._free = [node.gpus_idle for node in nodes]
        self._pools: dict[str, _Pool] = {}
        self._pool_of: list[_Pool | None] = []
        for index, (node, free) in enumerate(zip(nodes, self._free, strict=True)):
            if node.unusable:
                self._pool_of.append(None)
                continue
            gpu_type = node.capacity.gpu_type
            pool = self._pools.get(gpu_type)
            if pool is None:
                pool = self._pools[gpu_type] = _Pool()
            heap = pool.heaps.get(free)
            if heap is None:
                pool.heaps[free] = [index]
            else:
                heap.append(index)  # indexes ascend, and such a list is a heap
            self._pool_of.append(pool)
        for pool in self._pools.values():
            pool.counts = {free: len(heap) for free, heap in pool.heaps.items()}
        self.total = total(self._free)
        """Free GPUs of usable nodes in all."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all nodes, in their order."""
        return self._names

    def of_node(self, name: str) -> Amount:
        """Free GPUs of a node that may be placed on; 0 if the node is unusable or unknown."""
        index = self._index.get(name)
        return 0 if index is None or self._pool_of[index] is None else self._free[index]

    def workers(self, shape: Resources) -> int:
        """The number of workers of `shape` that fit in all; on the best GPU type if `shape` names none."""
        return max((pool.workers(shape.gpus) for pool in self._matching(shape)), default=0)

    def place(
        self, shape: Resources, workers: int, keep: Sequence[NodeShare] = ()
    ) -> tuple[NodeShare, ...] | None:
        """Nodes for `workers`, or None if they do not fit. Takes nothing.

        The shares in `keep` (in order of importance) stay where they are, as far as they still fit and are
        needed. More workers go beside them as far as there is room. The rest goes to the one node that holds
        it with the least left over. If there is none, it goes to as few nodes as possible: those with most
        free GPUs first, and the last part best-fit again.
        """
        kept = self._kept(shape.gpus, workers, keep)
        left = workers - sum(kept.values())
        if left <= 0:
            return self._shares(kept)
        if not kept:
            chosen = self._spread(self._matching(shape), shape.gpus, left)
        else:
            chosen = self._spread_beside(kept, shape, left)
        return None if chosen is None else self._shares(chosen)

    def place_widest(self, shape: Resources, workers: int) -> tuple[NodeShare, ...] | None:
        """Like `place`, but each time from the node with the most free GPUs, never the one that fits best.

        The nodes are in the order in which they were taken.
        """
        for pool in self._matching(shape):
            if pool.workers(shape.gpus) >= workers:
                chosen = self._widest(pool, shape.gpus, workers)
                return tuple(NodeShare(self._names[index], count) for index, count in chosen.items())
        return None

    def take(self, shape: Resources, shares: Sequence[NodeShare]) -> None:
        """Remove these GPUs from the free ones."""
        for share in shares:
            self._change(share.node, -shape.gpus * share.workers)

    def give(self, shape: Resources, shares: Sequence[NodeShare]) -> None:
        """Add these GPUs to the free ones."""
        for share in shares:
            self._change(share.node, shape.gpus * share.workers)

    def _change(self, name: str, gpus: Amount) -> None:
        index = self._index.get(name)
        if index is None:
            return  # a node that the cluster does not have any more
        before = self._free[index]
        self._free[index] = before + gpus
        pool = self._pool_of[index]
        if pool is not None:
            pool.leave(before)
            pool.enter(index, before + gpus)
            self.total += gpus

    def _matching(self, shape: Resources) -> Iterable[_Pool]:
        if not shape.gpu_type:
            return self._pools.values()
        return (self._pools[shape.gpu_type],) if shape.gpu_type in self._pools else ()

    def _kept(self, gpus: Amount, workers: int, keep: Sequence[NodeShare]) -> dict[int, int]:
        """Per node index: the workers that stay; at most `workers` in all."""
        kept: dict[int, int] = {}
        for share in keep:
            index = self._index.get(share.node)
            if index is None:
                continue
            already = kept.get(index, 0)
            stay = min(share.workers, workers, _fitting(self._free[index], gpus) - already)
            if stay > 0:
                kept[index] = already + stay
                workers -= stay
        return kept

    def _spread_beside(self, kept: dict[int, int], shape: Resources, left: int) -> dict[int, int] | None:
        """Place `left` more workers: first on the nodes of `kept`, then on others of their type."""
        chosen = dict(kept)
        for index in sorted(kept, key=lambda index: (kept[index] * shape.gpus - self._free[index], index)):
            if self._pool_of[index] is not None:
                more = min(left, _fitting(self._free[index], shape.gpus) - kept[index])
                chosen[index] += more
                left -= more
        if not left:
            return chosen
        # every node of `kept` is full now, so that no other part can be placed there
        full = self._shares(chosen)
        pool = next((pool for pool in map(self._pool_of.__getitem__, kept) if pool is not None), None)
        self.take(shape, full)
        rest = self._spread(self._matching(shape) if pool is None else (pool,), shape.gpus, left)
        self.give(shape, full)
        return None if rest is None else chosen | rest

    def _spread(self, pools: Iterable[_Pool], gpus: Amount, workers: int) -> dict[int, int] | None:
        """The placement on the fewest nodes of one type."""
        best: dict[int, int] | None = None
        for pool in pools:
            chosen = self._spread_in(pool, gpus, workers)
            if chosen is not None and (best is None or len(chosen) < len(best)):
                best = chosen
        return best

    def _spread_in(self, pool: _Pool, gpus: Amount, workers: int) -> dict[int, int] | None:
        tightest = self._tightest(pool, gpus * workers)
        if tightest is not None:
            return {tightest: workers}
        if pool.workers(gpus) < workers:
            return None
        chosen: dict[int, int] = {}
        left = workers
        for free in pool.most_first():
            each = _fitting(free, gpus)
            full = min(pool.counts[free], left // each)
            chosen.update(dict.fromkeys(self._first(pool, free, full), each))
            left -= full * each
            if not left or full < pool.counts[free]:
                break  # what is left, if anything, is less than such a node holds
        return chosen | self._last_part(pool, gpus, left, chosen)

    def _last_part(self, pool: _Pool, gpus: Amount, left: int, chosen: dict[int, int]) -> dict[int, int]:
        """The last `left` workers, on the tightest node that holds them and is not chosen yet."""
        if not left:
            return {}
        for free in reversed(pool.most_first()):
            if free < gpus * left:
                continue
            used = sum(1 for index in chosen if self._free[index] == free)
            if pool.counts[free] > used:
                nodes = self._first(pool, free, used + 1)
                return {next(index for index in nodes if index not in chosen): left}
        raise AssertionError("a pool has room for workers that no node of it has room for")

    def _widest(self, pool: _Pool, gpus: Amount, workers: int) -> dict[int, int]:
        """Nodes for `workers`, which are known to fit: those with most free GPUs first."""
        chosen: dict[int, int] = {}
        for free in pool.most_first():
            each = _fitting(free, gpus)
            for index in self._first(pool, free, min(pool.counts[free], -(-workers // each))):
                chosen[index] = min(each, workers)
                workers -= chosen[index]
            if not workers:
                break
        return chosen

    def _tightest(self, pool: _Pool, gpus: Amount) -> int | None:
        """The node with the fewest free GPUs of those that have at least `gpus`; None: there is none."""
        fits = min((free for free, count in pool.counts.items() if count and free >= gpus), default=None)
        return None if fits is None else self._first(pool, fits, 1)[0]

    def _first(self, pool: _Pool, free: Amount, many: int) -> list[int]:
        """The first `many` nodes with `free` free GPUs; there are that many."""
        heap = pool.heaps[free]
        found: list[int] = []
        while len(found) < many:
            index = heappop(heap)
            # an entry may be out of date, or occur twice after the node came back to this bucket
            if self._free[index] == free and (not found or found[-1] != index):
                found.append(index)
        for index in found:
            heappush(heap, index)
        return found

    def _shares(self, chosen: dict[int, int]) -> tuple[NodeShare, ...]:
        return tuple(NodeShare(self._names[index], chosen[index]) for index in sorted(chosen))


def shares_to_keep(job: TrainingJob) -> tuple[NodeShare, ...]:
    """The shares of a job, as `FreeGpus.place` takes them in `keep`: its base, then the largest shares
    first."""
    if not job.base:
        return tuple(sorted(job.shares, key=lambda share: -share.workers))
    base = {share.node: share.workers for share in job.base}
    rest = [NodeShare(share.node, share.workers - base.get(share.node, 0)) for share in job.shares]
    return (*job.base, *sorted(rest, key=lambda share: -share.workers))


def _fitting(free: Amount, gpus: Amount) -> int:
    return free // gpus if gpus else UNBOUNDED
