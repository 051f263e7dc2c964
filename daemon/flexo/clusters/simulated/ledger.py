"""Records who holds GPUs on each node of a simulated cluster: the one place where a plan is checked.

Each GPU has two seats: its owner's, and a second one for another job (AntMan). A policy's plan is carried out
or refused as a whole, with a sentence that names job, node and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flexo.clusters.base import ImpossiblePlan
from flexo.clusters.simulated.nodes import BORROWED, INFERENCE
from flexo.model.nodes import Node
from flexo.model.plans import Allocate
from flexo.model.training import NodeShare, TrainingJob
from flexo_protos.resources import Amount, Resources, rounded_up

Change = tuple[TrainingJob, Allocate]
"""A job as it is, and its new allocation."""


_Delta = dict[tuple[str, bool], Amount]
"""Per node and kind of seat (True: second seats): the seats that are taken more; fewer if negative."""


class Ledger:
    """The number of seats held on each node. Mutable: belongs to the cluster."""

    def __init__(self, nodes: Sequence[Node], apart: Sequence[Node] = ()) -> None:
        """`apart`: further nodes. The GPUs that jobs hold there are counted in `held_apart`."""
        nodes = (*nodes, *apart)
        self._apart = frozenset(node.name for node in apart)
        self.held_apart: Amount = 0
        """The seats of either kind that jobs hold on the nodes of `apart`."""
        self._nodes = {node.name: node for node in nodes}
        self._held: dict[str, Amount] = dict.fromkeys(self._nodes, 0)
        """Owners' seats."""
        self._second: dict[str, Amount] = dict.fromkeys(self._nodes, 0)
        """Second seats."""
        self._seen: dict[str, dict[Amount, Node]] = {name: {0: node} for name, node in self._nodes.items()}
        """Each node, by its number of held GPUs. There are few such objects, and each is made once."""
        self._current = dict(self._nodes)
        self._tuple: tuple[Node, ...] | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, as they are now."""
        if self._tuple is None:
            self._tuple = tuple(self._current.values())
        return self._tuple

    def carry_out(self, changes: Sequence[Change]) -> None:
        """Move the GPUs. Raises ImpossiblePlan, and then has changed nothing."""
        delta: _Delta = {}
        for job, allocation in changes:
            self._check(job, allocation)
            gpus = job.shape.gpus
            for share in job.shares:
                seats = share.node, job.shared
                delta[seats] = delta.get(seats, 0) - share.workers * gpus
            for share in allocation.shares:
                seats = share.node, allocation.shared
                delta[seats] = delta.get(seats, 0) + share.workers * gpus
        for (name, second), more in delta.items():
            held = self._second if second else self._held
            if more > 0 and held[name] + more > self._nodes[name].gpus:
                raise ImpossiblePlan(self._overcommitted(name, second, held[name] + more, changes))
        self._move(delta)

    def held(self, name: str) -> Amount:
        """The seats of a node, of either kind, that somebody holds."""
        return self._held[name] + self._second[name]

    def node(self, name: str) -> Node:
        """The node of this name, as it is with nothing held."""
        return self._nodes[name]

    def change(self, node: Node) -> None:
        """Replace a node from now on, whatever is held there. `node`: the node with nothing held."""
        self._nodes[node.name] = node
        self._seen[node.name] = {0: node}
        self._current[node.name] = self._picture(node.name, self._held[node.name])
        self._tuple = None

    def hold(self, name: str, gpus: Amount) -> None:
        """Hold this number of GPUs more for somebody who is no job; fewer if it is negative. There must be
        room."""
        assert 0 <= self._held[name] + gpus <= self._nodes[name].gpus
        self._hold(name, gpus)

    def free(self, job: TrainingJob) -> None:
        """Free everything that `job` holds."""
        delta: _Delta = {}
        for share in job.shares:
            seats = share.node, job.shared
            delta[seats] = delta.get(seats, 0) - share.workers * job.shape.gpus
        self._move(delta)

    def _move(self, delta: Mapping[tuple[str, bool], Amount]) -> None:
        for (name, second), more in delta.items():
            if not more:
                continue
            if second:
                self._second[name] += more
            else:
                self._hold(name, more)
            if name in self._apart:
                self.held_apart += more

    def _hold(self, name: str, more: Amount) -> None:
        held = self._held[name] = self._held[name] + more
        self._current[name] = self._picture(name, held)
        self._tuple = None

    def _picture(self, name: str, held: Amount) -> Node:
        pictures = self._seen[name]
        node = pictures.get(held)
        if node is None:
            node = pictures[held] = replace(self._nodes[name], allocated=Resources(held, rounded_up(held, 1)))
        return node

    def _check(self, job: TrainingJob, allocation: Allocate) -> None:
        """Check the allocation of one job, apart from what other jobs hold. Raises ImpossiblePlan."""
        shares = allocation.shares
        if not shares:
            _check_preemption(job)
            return
        workers = sum(share.workers for share in shares)
        if not job.workers.min <= workers <= job.workers.max:
            raise ImpossiblePlan(f"job {job.key} of {job.workers} workers is to have {workers}")
        if len(shares) > 1 and len({share.node for share in shares}) < len(shares):
            raise ImpossiblePlan(f"job {job.key} has one node twice: {_text(shares)}")
        for share in shares:
            self._check_share(job, share)
        for base in job.base:
            have = sum(share.workers for share in shares if share.node == base.node)
            if have < base.workers:
                raise ImpossiblePlan(
                    f"job {job.key} has a base of {base.workers} workers on {base.node}, not of {have}"
                )
        self._check_types(job, shares)

    def _check_share(self, job: TrainingJob, share: NodeShare) -> None:
        node = self._nodes.get(share.node)
        if node is None or share.workers < 1:
            raise ImpossiblePlan(f"job {job.key} is to have {share.workers} workers on node '{share.node}'")
        if INFERENCE in node.partitions and BORROWED not in node.partitions and not _has(job, share):
            raise ImpossiblePlan(
                f"job {job.key} is to have {share.workers} workers on {node.name}, which is not lent"
            )
        wanted = job.shape.gpu_type
        if wanted and node.gpu_type != wanted and not job.fungible and not job.heterogeneous:
            raise ImpossiblePlan(
                f"job {job.key} needs {wanted}, and is to have {share.workers} workers on {node.name},"
                f" which has {node.gpu_type or 'another type'}"
            )

    def _check_types(self, job: TrainingJob, shares: Sequence[NodeShare]) -> None:
        if job.heterogeneous or len(shares) < 2:
            return
        types = {self._nodes[share.node].gpu_type for share in shares}
        if len(types) > 1:
            raise ImpossiblePlan(
                f"job {job.key} is to run on {' and '.join(sorted(types))} at once: {_text(shares)}"
            )

    def _overcommitted(self, name: str, second: bool, total: Amount, changes: Iterable[Change]) -> str:
        takers = [
            (share.workers * job.shape.gpus, job.key)
            for job, allocation in changes
            for share in allocation.shares
            if share.node == name and allocation.shared == second
        ]
        others = total - sum(gpus for gpus, _ in takers)
        parts = [f"{gpus} of job {key}" for gpus, key in takers] + [f"{others} of others"] * (others > 0)
        seats = "second seats on GPUs" if second else "GPUs"
        return f"node {name} has {self._nodes[name].gpus} {seats}, and is to give {total}: {', '.join(parts)}"


def _check_preemption(job: TrainingJob) -> None:
    if not job.shares:
        raise ImpossiblePlan(f"job {job.key} waits, and is to have nothing")
    if not job.preemptible or job.base:
        raise ImpossiblePlan(f"job {job.key} is not preemptible, and is to have nothing: {_text(job.shares)}")


def _has(job: TrainingJob, share: NodeShare) -> bool:
    return any(own.node == share.node and own.workers >= share.workers for own in job.shares)


def _text(shares: Iterable[NodeShare]) -> str:
    return ", ".join(f"{share.workers} on {share.node}" for share in shares)
