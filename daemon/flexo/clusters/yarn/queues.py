"""The queues of a YARN cluster, and the nodes that each may use: node labels keep the others apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flexo.clusters.base import ActionRefused, Borrowed
from flexo.model.nodes import Node, Partition
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.labels import nodes_of, split

BASE_TIER: Final = 10
FLEX_TIER: Final = 1
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that applications are in."""

    name: str
    path: str
    """Like "root.flex"."""
    labels: frozenset[str]
    """The labels whose nodes it may use; "*" stands for all."""
    unlabelled: bool
    """Whether it may use nodes without a label."""
    pending: bool
    """Whether applications in it ask for containers."""

    def uses(self, label: str) -> bool:
        """Whether it may use nodes with this label; "": those without one."""
        return bool(self.labels & {label, _ANY}) if label else self.unlabelled


def queues_of(root: pb.QueueInfo) -> tuple[Queue, ...]:
    """The queues below `root` that have none below them."""
    return tuple(_queue(each) for each in _leaves(root))


def _leaves(queue: pb.QueueInfo) -> Sequence[pb.QueueInfo]:
    return [leaf for child in queue.children for leaf in _leaves(child)] or [queue]


def _queue(report: pb.QueueInfo) -> Queue:
    return Queue(
        name=report.name.rpartition(".")[2],
        path=report.path or report.name,
        labels=frozenset(report.accessible_node_labels),
        unlabelled=not report.HasField("maximum_capacity") or report.maximum_capacity > 0,
        pending=report.statistics.pending_containers > 0,
    )


def lent_label(borrowed: Borrowed | None, flex_queue: str) -> str:
    """The label of the nodes that are lent; "": none are. Raises ActionRefused."""
    if borrowed is None:
        return ""
    queue, label = split(borrowed.partition)
    if queue != flex_queue or not label or not borrowed.static or borrowed.satellite_partition:
        raise ActionRefused(
            f'on YARN, [loaning] needs partition = "{nodes_of(flex_queue, "LABEL")}" with the label of '
            "inference servers, and static = true, and it must not have satellite_partition; "
            f'it says partition = "{borrowed.partition}"'
        )
    return label


class Rooms:
    """Which partitions a node is in: the queues that may use it, by its label.

    The flex queue has a partition for each label, because satellites go to nodes with a label only if they
    are on loan.
    """

    def __init__(self, queues: Iterable[Queue], flex_queue: str) -> None:
        self._queues = tuple(queues)
        self._flex_queue = flex_queue
        self._known: dict[str, frozenset[str]] = {}

    def of(self, label: str) -> frozenset[str]:
        """The partitions of nodes with this label; "": without one."""
        if (known := self._known.get(label)) is None:
            names = (each.name for each in self._queues if each.uses(label))
            known = frozenset(nodes_of(each, label) if each == self._flex_queue else each for each in names)
            self._known[label] = known
        return known

    def partitions(self, nodes: Iterable[Node]) -> tuple[Partition, ...]:
        """All partitions. YARN preempts what the flex queue holds for any other queue."""
        held: dict[str, set[str]] = {each.name: set() for each in self._queues}
        for node in nodes:
            for name in node.partitions:
                held.setdefault(name, set()).add(node.name)
        return tuple(
            Partition(name, self._tier(name), frozenset(nodes)) for name, nodes in sorted(held.items())
        )

    def _tier(self, partition: str) -> int:
        return FLEX_TIER if split(partition)[0] == self._flex_queue else BASE_TIER
