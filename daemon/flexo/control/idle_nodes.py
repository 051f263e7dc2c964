"""Records why idle GPUs stay idle, whatever jobs want more: nodes are unusable, or take no satellites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from flexo.control.due_events import DueEvents, Record
from flexo.events import Event
from flexo.model.nodes import Node
from flexo.words import takes_no_satellites

_MOST_NODES: Final = 10_000
_MOST_IN_A_CYCLE: Final = 20
"""The most events of one cycle. Nodes with the same reason share one."""
_NAMED: Final = 50
"""The most nodes that an event names."""


class IdleNodes:
    """The nodes whose idle GPUs stay idle. For the controller's thread alone."""

    def __init__(self) -> None:
        self._due = DueEvents[str]()

    def look(
        self, nodes: Iterable[Node], satellite_partitions: Collection[str], now: float, record: Record
    ) -> Mapping[str, int]:
        """Record the reasons that are new. Returns the numbers of the events of all that stand, by node."""
        reasons = dict(_reasons(tuple(nodes), frozenset(satellite_partitions)))
        groups = defaultdict[str, list[str]](list)
        for name in self._due.due(reasons, reasons, now, _MOST_NODES):
            groups[reasons[name]].append(name)
        events = [(Event(now, "node", None, _text(names, why)), names) for why, names in groups.items()]
        self._due.record(events[:_MOST_IN_A_CYCLE], record)
        return self._due.numbers()


def _reasons(nodes: Collection[Node], satellite_partitions: frozenset[str]) -> Iterable[tuple[str, str]]:
    """The nodes that have idle GPUs which no satellite may use, and why not."""
    anywhere = any(node.partitions & satellite_partitions for node in nodes)
    where = takes_no_satellites(sorted(satellite_partitions))
    for node in nodes:
        if node.gpus > node.allocated.gpus:
            if node.unusable:
                yield node.name, node.unusable
            elif anywhere and not node.partitions & satellite_partitions:
                yield node.name, where


def _text(nodes: list[str], why: str) -> str:
    """``the idle GPUs of t1, t2 stay idle: DRAIN: bad fan``."""
    more = f" and {len(nodes) - _NAMED} more nodes" if len(nodes) > _NAMED else ""
    return f"the idle GPUs of {', '.join(nodes[:_NAMED])}{more} stay idle: {why}"
