"""Edits the borrowed partitions: puts lent servers in, and takes them out."""

from __future__ import annotations

import re

from flexo.clusters.base import ActionRefused, Borrowed
from flexo.clusters.slurm.commands import SlurmCommands

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The pattern of a node's name. It excludes all that Slurm reads as more than one node."""


def let_have(commands: SlurmCommands, borrowed: Borrowed, nodes: frozenset[str]) -> None:
    """Set the nodes of all borrowed partitions. Raises ActionRefused, ClusterUnreachable."""
    if odd := sorted(name for name in nodes if _NODE_NAME.fullmatch(name) is None):
        raise ActionRefused(f"'{odd[0][:80]}' cannot be the name of a node")
    listed = ",".join(sorted(nodes))
    for name in borrowed.partitions:
        if borrowed.edit_command:  # slurm_plugin/flexo_partition.py, through sudo
            commands.act(*borrowed.edit_command, "set", name, listed)
        else:
            commands.act("scontrol", "update", f"PartitionName={name}", f"Nodes={listed}")
