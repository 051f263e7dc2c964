"""Where workers still fit, found without looking at every node for every job: a cluster has thousands.

Nodes are kept by how many workers of a kind their idle resources hold, and by how long those are likely to
stay: all that a job asks of a node before it may be given it, but for its name.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexo.policies.rooms import Room
from flexo_protos.resources import Resources

Pays = Callable[[int, float], bool]
"""Whether a job does more with so many workers' room, for so many seconds, than a resize costs it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Whose workers: jobs of one kind fit on the same nodes."""

    shape: Resources
    gpu_types: frozenset[str] | None = None
    """Of the nodes that suit; None: all do."""


class Openings:
    """Nodes with idle resources, by kind of job. Mutable: belongs to one plan in the making."""

    def __init__(self, rooms: Mapping[str, Room], names: Sequence[str], stays: Mapping[str, float]) -> None:
        """`names`: nodes to look for, in order; `stays`: how long idle GPUs stay on each, in seconds."""
        self._rooms = rooms
        self._names = names
        self._stays = stays
        self._of: dict[Kind, dict[tuple[int, float], list[str]]] = {}
        self._held: dict[Kind, dict[str, int]] = {}

    def holds(self, kind: Kind, name: str) -> int:
        """Workers that one node has idle resources for; 0 where it does not suit, or is none of these."""
        self._by_size(kind)
        return self._held[kind].get(name, 0)

    def total(self, kind: Kind, pays: Pays) -> int:
        """Workers that all nodes have idle resources for where that `pays`."""
        sizes = self._by_size(kind).items()
        return sum(fits * len(names) for (fits, stay_s), names in sizes if names and pays(fits, stay_s))

    def tightest_first(self, kind: Kind, wanted: int, pays: Pays) -> Iterator[str]:
        """Nodes that hold all `wanted`, the tightest first, then the others, the roomiest first."""
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
        """What is idle on a node is something else now."""
        for kind, held in self._held.items():
            before, now = held.get(name, 0), self._fits(kind, name)
            if before == now:
                continue
            sizes, stay_s = self._of[kind], self._stays[name]
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
                sizes.setdefault((fits, self._stays[name]), []).append(name)
            self._of[kind], self._held[kind] = sizes, held
        return self._of[kind]

    def _fits(self, kind: Kind, name: str) -> int:
        room = self._rooms[name]
        if kind.gpu_types is not None and room.node.gpu_type not in kind.gpu_types:
            return 0
        return room.idle.holds(kind.shape)
