"""Checks whether users share nodes: there, a user can reach the ports of another user's workers."""

from __future__ import annotations

from collections.abc import Sequence

from flexo.doctor.finding import Finding, ok, warning
from flexo.doctor.slurm_says import PartitionSetup, SlurmConfig


def check_neighbours(
    config: SlurmConfig, partitions: Sequence[PartitionSetup], satellite_partition: str
) -> list[Finding]:
    """Check for ExclusiveUser=YES, or whole nodes for each job, in every partition with nodes that satellites
    use."""
    check = "partition.users"
    if config.select_type == "select/linear":
        return [ok(check, "each job has its nodes for itself (select/linear)")]
    nodes = frozenset[str]().union(*(each.nodes for each in partitions if each.name == satellite_partition))
    shared = sorted(
        each.name for each in partitions if each.up and each.nodes & nodes and not each.one_user_a_node
    )
    if not shared:
        return [ok(check, "no node that satellites use has jobs of several users at once")]
    return [
        warning(
            check,
            f"in {', '.join(shared)} users share nodes: a user can connect to the ports of other users'"
            " workers (Gloo, NCCL) and delay their resizes",
            "slurm.conf: PartitionName=... ExclusiveUser=YES for each of them, then `scontrol reconfigure`;"
            " or give each job a network namespace of its own. Where users trust each other: nothing"
            " (docs/explanation/security.md).",
        )
    ]
