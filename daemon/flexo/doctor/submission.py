"""Checks submission: a job's leader submits its satellites from a compute node, as the job's user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo.doctor.slurm_says import PartitionSetup

_FORBIDDEN_HERE = ("access/permission denied", "not permitted", "root jobs", "submit access denied")
_NOT_THE_CALLER = ("invalid account", "invalid qos", "user's group not permitted", "invalid user id")


@dataclass(frozen=True, slots=True)
class TriedOut:
    """The result of `sbatch --test-only`, which submits nothing."""

    refused: str = ""
    """Slurm's own words; "" where Slurm would take the job."""


def check_submission(
    partitions: Sequence[PartitionSetup], satellite_partition: str, tried: TriedOut
) -> list[Finding]:
    """Check which users may submit from where, and whether Slurm would take a satellite from this host."""
    return [
        _tried(satellite_partition, tried),
        *check_access(partitions, satellite_partition),
        not_checked(
            "submission.commands",
            "submission was tried from this host alone; whether it works from compute nodes, where leaders"
            " do it, cannot be seen from here",
            f"`srun -w NODE sbatch --test-only -p {satellite_partition} -n 1 --wrap true`, once for each"
            " image of compute nodes.",
        ),
    ]


def check_access(partitions: Sequence[PartitionSetup], satellite_partition: str) -> list[Finding]:
    """Check AllocNodes and RootOnly of the satellites' partition."""
    findings: list[Finding] = []
    for partition in partitions:
        if partition.name == satellite_partition:
            findings += [_from_nodes(partition), *_root_only(partition)]
    return findings


def _from_nodes(partition: PartitionSetup) -> Finding:
    check = "submission.alloc_nodes"
    if partition.alloc_nodes is None:
        return ok(check, f"{partition.name}: AllocNodes=ALL, jobs may be submitted from compute nodes")
    barred = sorted(partition.nodes - partition.alloc_nodes)
    if not barred:
        return ok(check, f"{partition.name}: AllocNodes has all of its nodes")
    shown = ", ".join(barred[:3]) + (", ..." if len(barred) > 3 else "")
    return problem(
        check,
        f"{partition.name}: AllocNodes leaves out {len(barred)} of its nodes ({shown}): leaders there cannot"
        " submit satellites",
        f"slurm.conf: PartitionName={partition.name} ... AllocNodes=ALL, then `scontrol reconfigure`.",
    )


def _root_only(partition: PartitionSetup) -> list[Finding]:
    if not partition.root_only:
        return []
    return [
        problem(
            "submission.root_only",
            f"{partition.name}: RootOnly=YES, and satellites are submitted by the users themselves",
            f"slurm.conf: PartitionName={partition.name} ... RootOnly=NO, then `scontrol reconfigure`.",
        )
    ]


def _tried(partition: str, tried: TriedOut) -> Finding:
    check = "submission.test"
    command = f"sbatch --test-only -p {partition} -n 1 --wrap true"
    if not tried.refused:
        return ok(check, f"a job for {partition} would be taken from this host (`{command}`)")
    words = tried.refused.lower()
    if any(each in words for each in _NOT_THE_CALLER):
        return not_checked(
            check, f"you cannot submit jobs yourself: {tried.refused}", f"As a user who can: `{command}`"
        )
    if any(each in words for each in _FORBIDDEN_HERE):
        return problem(
            check,
            f"this host or you may not submit to {partition}: {tried.refused}",
            f"Look at AllocNodes, AllowAccounts, AllowGroups, AllowQos, DisableRootJobs of {partition}; as a"
            f" user: `{command}`.",
        )
    return problem(
        check,
        f"Slurm would not take a job for {partition}: {tried.refused}",
        f"`{command}` has to work for users; `scontrol show partition {partition}` shows its limits.",
    )
