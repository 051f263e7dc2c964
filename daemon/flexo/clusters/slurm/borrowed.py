"""The partitions that lent servers are put into, and the edit that does it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flexo.clusters.base import ActionRefused
from flexo.clusters.slurm.commands import SlurmCommands

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Nothing that Slurm reads as more than one node."""


@dataclass(frozen=True, slots=True)
class BorrowedPartition:
    """Where lent servers are found, and who may put them there."""

    name: str
    command: tuple[str, ...] = ()
    """What is called as `COMMAND set NAME NODES` (slurm_plugin/flexo_partition.py, through sudo) where
    flexod's account may not edit partitions; (): it may, as SlurmUser may, and calls scontrol itself."""
    satellites: str = ""
    """The partition of satellites on lent servers, where they have one of their own, below that of bases."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them; last the one by which a loan is known, so that an edit cut short is done again."""
        return tuple(name for name in (self.satellites, self.name) if name)


def let_have(commands: SlurmCommands, borrowed: BorrowedPartition, nodes: frozenset[str]) -> None:
    """Set the nodes of all of them. Raises ActionRefused, ClusterUnreachable."""
    if odd := sorted(name for name in nodes if _NODE_NAME.fullmatch(name) is None):
        raise ActionRefused(f"'{odd[0][:80]}' cannot be the name of a node")
    listed = ",".join(sorted(nodes))
    for name in borrowed.names:
        if borrowed.command:
            commands.act(*borrowed.command, "set", name, listed)
        else:
            commands.act("scontrol", "update", f"PartitionName={name}", f"Nodes={listed}")
