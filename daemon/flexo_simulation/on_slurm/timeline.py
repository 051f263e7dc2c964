"""Free GPUs of every node from now on, as far as time limits tell; Slurm's backfill plans with them.

Every waiting job gets the first window of its own length in which it fits, in the order of the queue. A job
that fits now starts, and windows given for later are kept. This is "conservative" backfilling: Mu'alem and
Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
backfilling", IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flexo.model.nodes import Node
from flexo.model.training import NodeShare
from flexo.policies.placement import FreeGpus
from flexo_protos.resources import Amount, Resources


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of a waiting job."""

    shape: Resources
    workers: int
    limit_s: float
    """The job's time limit; infinite: none."""


@dataclass(frozen=True, slots=True)
class Release:
    """GPUs of a node that are free from an instant on."""

    at: float
    node: str
    gpus: Amount


class Timeline:
    """Free GPUs of all nodes over time. Mutable. Times are those of the simulation."""

    def __init__(
        self, nodes: Sequence[Node], free: Mapping[str, Amount], releases: Iterable[Release], now: float
    ) -> None:
        """`free`: GPUs of each of `nodes` that are free now."""
        self._nodes = nodes
        self._column = {node.name: column for column, node in enumerate(nodes)}
        self._times = [now]
        self._rows: list[NDArray[np.int64]] = [np.array([free[node.name] for node in nodes], dtype=np.int64)]
        for release in releases:
            first = self._cut(max(now, release.at))
            for row in self._rows[first:]:
                row[self._column[release.node]] += release.gpus

    def free(self, node: str, seconds: float) -> int:
        """GPUs of a node that are free for `seconds` from now on."""
        return int(self._least(0, self._times[0] + seconds)[self._column[node]])

    def first_window(self, ask: Ask) -> tuple[float, tuple[NodeShare, ...]] | None:
        """The first instant, and the nodes, at which the job fits for as long as it may run; None: it never
        will."""
        for index, at in enumerate(self._times):
            shares = self._place(ask, self._least(index, at + ask.limit_s))
            if shares is not None:
                return at, shares
        return None

    def place_now(self, ask: Ask, held: Mapping[str, Amount]) -> tuple[NodeShare, ...] | None:
        """Nodes on which the job fits from now on, beside the `held` GPUs; None: it does not fit."""
        free = self._least(0, self._times[0] + ask.limit_s)
        for node, gpus in held.items():
            free[self._column[node]] -= gpus
        return self._place(ask, free)

    def _place(self, ask: Ask, free: NDArray[np.int64]) -> tuple[NodeShare, ...] | None:
        if ask.workers * ask.shape.gpus > int(np.maximum(free, 0).sum()):
            return None  # most calls end here
        nodes = [
            replace(node, allocated=Resources(node.gpus - max(0, int(gpus))))
            for node, gpus in zip(self._nodes, free, strict=True)
        ]
        return FreeGpus(nodes).place(ask.shape, ask.workers)

    def take(self, ask: Ask, at: float, shares: Iterable[NodeShare]) -> None:
        """Give the job these shares from `at` on, until its time limit."""
        first = self._cut(at)
        last = len(self._rows) if math.isinf(ask.limit_s) else self._cut(at + ask.limit_s)
        for share in shares:
            for row in self._rows[first:last]:
                row[self._column[share.node]] -= share.workers * ask.shape.gpus

    def _least(self, index: int, until: float) -> NDArray[np.int64]:
        """The fewest free GPUs of each node from step `index` until `until`."""
        last = max(index + 1, bisect_left(self._times, until))
        least: NDArray[np.int64] = np.minimum.reduce(self._rows[index:last])
        return least

    def _cut(self, at: float) -> int:
        """The step that begins at `at`, made if there is none."""
        index = bisect_left(self._times, at)
        if index == len(self._times) or self._times[index] != at:
            self._times.insert(index, at)
            self._rows.insert(index, self._rows[index - 1].copy())
        return index
