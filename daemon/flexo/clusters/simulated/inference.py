"""The servers of a simulated inference cluster: those that it uses itself, and those that are lent to
training.

A lent server is in the partition `borrowed` and stays in its own, as on real clusters. The inference cluster
uses only servers that are not lent and that training has left: no server is ever used by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexo.clusters.base import ActionRefused
from flexo.clusters.simulated.ledger import Ledger
from flexo.clusters.simulated.nodes import BORROWED, INFERENCE
from flexo.model.nodes import Node, Partition
from flexo_protos.resources import Amount


class InferenceServers:
    """The state of the inference servers. Mutable: belongs to the cluster, whose ledger has their jobs."""

    def __init__(self, nodes: Sequence[Node], ledger: Ledger) -> None:
        self._ledger = ledger
        self._gpus = {node.name: node.gpus for node in nodes}
        self._lent: frozenset[str] = frozenset()
        self._left_behind: frozenset[str] = frozenset()
        """Servers that are not lent any more, and on which training may still hold GPUs."""
        self._busy: dict[str, None] = {}
        """The servers that the inference cluster uses, in the order in which it took them."""
        self.times_lent = 0
        """The number of times that servers were lent: each loan counts."""

    @property
    def lent(self) -> frozenset[str]:
        """The servers in the partition `borrowed`."""
        return self._lent

    @property
    def busy(self) -> frozenset[str]:
        """The servers that the inference cluster uses."""
        return frozenset(self._busy)

    @property
    def away(self) -> int:
        """The number of servers that the inference cluster cannot use: lent, or not yet left by training."""
        self._left_behind = frozenset(filter(self._ledger.held, self._left_behind))
        return len(self._lent) + len(self._left_behind)

    def held(self, name: str) -> Amount:
        """The GPUs of a server that jobs hold."""
        return 0 if name in self._busy else self._ledger.held(name)

    def lend(self, names: frozenset[str]) -> None:
        """Lend exactly these servers from now on. Training keeps what it holds on others until it leaves.

        Raises ActionRefused for unknown servers, and for servers that the inference cluster uses.
        """
        if unknown := names - self._gpus.keys():
            raise ActionRefused(f"no servers of the inference cluster: {', '.join(sorted(unknown))}")
        if used := names & self._busy.keys():
            raise ActionRefused(f"in use by the inference cluster: {', '.join(sorted(used))}")
        changed, self._left_behind = names ^ self._lent, (self._left_behind | self._lent) - names
        self.times_lent += len(names - self._lent)
        self._lent = names
        for name in sorted(changed):
            partitions = frozenset({INFERENCE, BORROWED} if name in names else {INFERENCE})
            self._ledger.change(replace(self._ledger.node(name), partitions=partitions))

    def use(self, servers: int) -> int:
        """Let the inference cluster use this number of servers, or as many as it has. Returns the number in
        use.

        It keeps the servers that it has, and gives the last ones up first.
        """
        while len(self._busy) > servers:
            name, _ = self._busy.popitem()
            self._ledger.hold(name, -self._gpus[name])
        if len(self._busy) < servers:
            idle = [name for name in self._gpus if name not in self._lent and not self._ledger.held(name)]
            for name in idle[: servers - len(self._busy)]:
                self._busy[name] = None
                self._ledger.hold(name, self._gpus[name])
        return len(self._busy)

    def __contains__(self, name: str) -> bool:
        return name in self._gpus

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Both partitions. Inference goes first (a higher tier), as on real clusters."""
        return (
            Partition(INFERENCE, 10, frozenset(self._gpus)),
            Partition(BORROWED, 1, self._lent),
        )
