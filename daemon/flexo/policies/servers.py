"""Free GPUs by group of servers: training or inference, GPU type, with base demand or without (Lyra, slides).

"Different servers are prioritised for jobs during placement": base demand goes to training servers, flexible
demand and fungible and heterogeneous jobs to inference servers. Base and flexible demand are on separate
groups, so that whole servers become free when flexible demand is taken back. Best fit on few nodes has
priority over that.

The slides do not treat slower inference GPUs. They count GPUs in V100s, and a T4 is a third of one. A run
keeps its GPUs to its end. So here a job that may have either type goes by speed first: it is on a slower GPU
only if no faster one is available.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flexo.model.nodes import Node
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.gpu_speeds import Paces
from flexo.policies.placement import FreeGpus
from flexo_protos.resources import Amount, Resources, total

Shares = tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The common properties of the servers of a group."""

    gpu_type: str
    inference: bool
    hosts_base: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Servers that are alike for a placement, with their free GPUs."""

    kind: _Kind
    free: FreeGpus


class Servers:
    """The free GPUs of all servers, by group. Mutable: belongs to one decision."""

    def __init__(
        self, nodes: Iterable[Node], base_nodes: Container[str], inference: str, paces: Paces
    ) -> None:
        """`base_nodes`: nodes with base demand; `inference`: partition or feature of the servers on loan."""
        self._paces = paces
        members: dict[tuple[str, bool, bool], list[Node]] = {}
        for node in nodes:
            on_loan = inference in node.partitions or inference in node.features
            kind = (node.capacity.gpu_type, on_loan, node.name in base_nodes)
            if kind in members:
                members[kind].append(node)
            else:
                members[kind] = [node]
        self._groups = [_Group(_Kind(*kind), FreeGpus(alike)) for kind, alike in members.items()]
        self._group_of: dict[str, _Group] = {}
        for group in self._groups:
            self._group_of.update(dict.fromkeys(group.free.names, group))
        self._base_types: dict[tuple[str, bool, bool, bool], list[tuple[str, ...]]] = {}
        types = dict.fromkeys(gpu_type for gpu_type, _, _ in members)
        self.gpu_types = tuple(sorted(types, key=self._without_inference))
        """The GPU types of all nodes; types of inference servers come first."""

    @property
    def total(self) -> Amount:
        """Free GPUs in all."""
        return total(group.free.total for group in self._groups)

    def free(self, gpu_type: str) -> Amount:
        """Free GPUs of one type."""
        return total(group.free.total for group in self._groups if group.kind.gpu_type == gpu_type)

    def gpu_type_of(self, share: NodeShare) -> str | None:
        """The GPU type of the share's node; None: the cluster does not have the node any more."""
        group = self._group_of.get(share.node)
        return None if group is None else group.kind.gpu_type

    def of_node(self, name: str) -> Amount:
        """Free GPUs of one node."""
        group = self._group_of.get(name)
        return 0 if group is None else group.free.of_node(name)

    def flexible_rank(self, share: NodeShare) -> int:
        """The rank of the share's node for flexible demand; 0 is best."""
        group = self._group_of.get(share.node)
        return 4 if group is None else _flexible_rank(group)

    def base_types(self, job: TrainingJob) -> list[tuple[str, ...]]:
        """The GPU types on which the whole base of `job` may be, as alternatives, the best first."""
        kind = (job.shape.gpu_type, job.fungible, job.heterogeneous, job.elastic)
        if kind not in self._base_types:  # a plan asks this for every pending job, and there are few kinds
            self._base_types[kind] = self._base_types_of(job)
        return self._base_types[kind]

    def _base_types_of(self, job: TrainingJob) -> list[tuple[str, ...]]:
        asked = job.shape.gpu_type
        own = [each for each in self.gpu_types if asked in ("", each)]
        others = [each for each in self.gpu_types if each not in own]
        choices = [*own, *others] if job.fungible or job.heterogeneous else own
        choices.sort(key=lambda each: self._order(job, each, not self._without_inference(each)))
        singles: list[tuple[str, ...]] = [(each,) for each in choices]
        if not job.heterogeneous or len(choices) < 2:
            return singles
        pace = self._paces.of_one(asked, choices[0])
        fast = sum(self._paces.of_one(asked, each) >= pace for each in choices)
        return [*singles[:fast], tuple(choices), *singles[fast:]]

    def pace(self, job: TrainingJob, gpu_types: Collection[str]) -> float:
        """The pace of `job` on the slowest of these types, relative to the type that it asks for."""
        return min(self._paces.of_one(job.shape.gpu_type, each) for each in gpu_types)

    def _order(self, job: TrainingJob, gpu_type: str, inference: bool) -> tuple[bool, float, bool]:
        """The rank of such servers for the base of `job`; the least is best."""
        inference_first = prefers_inference(job)
        pace = self._paces.of_one(job.shape.gpu_type, gpu_type)
        return inference and not inference_first, -pace, inference != inference_first

    def place_base(self, job: TrainingJob, gpu_types: Sequence[str]) -> Shares | None:
        """Nodes for the base of `job` on these types, or None if it does not fit. Takes nothing."""
        groups = [group for group in self._groups if group.kind.gpu_type in gpu_types]
        groups.sort(
            key=lambda group: (
                self._order(job, group.kind.gpu_type, group.kind.inference),
                not group.kind.hosts_base,
            )
        )
        if len({self._paces.of_one(job.shape.gpu_type, each) for each in gpu_types}) > 1:
            return _spread(groups, job.shape.of_any_type(), job.workers.min)  # as many fast ones as there are
        return _place(groups, job.shape, job.workers.min)

    def place_flexible(self, shape: Resources, workers: int, gpu_type: str) -> Shares | None:
        """Nodes for more workers of a running job, or None if they do not fit. Takes nothing."""
        return _place(self._for_flexible(gpu_type), shape, workers)

    def room(self, shape: Resources, gpu_type: str) -> int:
        """The number of workers of `shape` that fit on one type."""
        plain = shape.of_any_type()
        return sum(group.free.workers(plain) for group in self._for_flexible(gpu_type))

    def take(self, shape: Resources, shares: Iterable[NodeShare]) -> None:
        """Remove these GPUs from the free ones."""
        for group, share in self._by_group(shares):
            group.free.take(shape, (share,))

    def give(self, shape: Resources, shares: Iterable[NodeShare]) -> None:
        """Add these GPUs to the free ones."""
        for group, share in self._by_group(shares):
            group.free.give(shape, (share,))

    def _by_group(self, shares: Iterable[NodeShare]) -> Iterator[tuple[_Group, NodeShare]]:
        for share in shares:
            group = self._group_of.get(share.node)
            if group is not None:
                yield group, share

    def _for_flexible(self, gpu_type: str) -> list[_Group]:
        return sorted(
            (group for group in self._groups if group.kind.gpu_type == gpu_type), key=_flexible_rank
        )

    def _without_inference(self, gpu_type: str) -> bool:
        return not any(group.kind.inference for group in self._groups if group.kind.gpu_type == gpu_type)


def prefers_inference(job: TrainingJob) -> bool:
    """Whether inference servers come first for the whole job: it is not elastic, but fungible or
    heterogeneous."""
    return not job.elastic and (job.fungible or job.heterogeneous)


def _flexible_rank(group: _Group) -> int:
    return 2 * group.kind.hosts_base + (not group.kind.inference)


def _place(groups: Sequence[_Group], shape: Resources, workers: int) -> Shares | None:
    """Nodes in one group if one holds all workers: the group that needs the fewest nodes, the first of
    equals. Else nodes in several groups."""
    plain = shape.of_any_type()
    best: Shares | None = None
    for group in groups:
        found = group.free.place(plain, workers)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return _spread(groups, plain, workers) if best is None and len(groups) > 1 else best


def _spread(groups: Sequence[_Group], plain: Resources, workers: int) -> Shares | None:
    shares: list[NodeShare] = []
    for group in groups:
        part = min(workers, group.free.workers(plain))
        if part:
            shares.extend(group.free.place(plain, part) or ())
            workers -= part
    return None if workers else tuple(shares)
