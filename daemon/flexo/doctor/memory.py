"""Checks the memory of jobs that request none: without a default, such a job gets all memory of its node."""

from __future__ import annotations

from collections.abc import Sequence

from flexo.doctor.finding import Finding, ok, warning
from flexo.doctor.slurm_says import PartitionSetup, SlurmConfig


def check_memory(config: SlurmConfig, partitions: Sequence[PartitionSetup]) -> list[Finding]:
    """Check for DefMemPerCPU, DefMemPerNode, or DefMemPerGPU in JobDefaults: of the cluster, or of each
    partition."""
    check = "slurm.memory"
    if not config.memory_counted:
        return [ok(check, "memory is not counted (SelectTypeParameters), and so never lacking")]
    if config.memory_by_default:
        return [ok(check, f"a job that says nothing about memory gets {config.memory_by_default}")]
    without = sorted(each.name for each in partitions if each.up and not each.memory_by_default)
    if not without:
        return [ok(check, "each partition says what memory a job gets that says nothing about it")]
    return [
        warning(
            check,
            f"in {', '.join(without)} a job that says nothing about memory gets all of its node's: no"
            " satellite fits beside it, and idle GPUs stay idle",
            "slurm.conf: DefMemPerCPU=N (RealMemory/CPUs of most nodes, MiB) or JobDefaults=DefMemPerGPU=N,"
            " for the cluster or for those partitions; then `scontrol reconfigure`.",
        )
    ]
