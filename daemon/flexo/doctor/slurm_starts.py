"""Checks a slurm.conf for mistakes with which slurmctld does not start, or knows no GPUs."""

from __future__ import annotations

from collections import Counter
from typing import Final

from flexo.doctor.finding import Finding, ok, problem, warning
from flexo.doctor.slurm_conf import Defined, SlurmConf

_SHOWN: Final = 4


def check_start(slurm: SlurmConf) -> list[Finding]:
    """Check keys, the controller's host, nodes and partitions twice or nowhere, and counted GPUs."""
    return [
        *_misspelt(slurm),
        *_controller(slurm),
        *_twice("slurm.nodes", "NodeName", slurm.nodes),
        *_twice("slurm.partitions", "PartitionName", slurm.named_partitions),
        *_undefined(slurm),
        _counted(slurm),
    ]


def check_gpus(slurm: SlurmConf, partition: str) -> list[Finding]:
    """Check that nodes of the satellites' partition have GPUs. No finding if none of its nodes is defined."""
    check = "partition.gpus"
    nodes = frozenset[str]().union(*(each.nodes for each in slurm.partitions if each.name == partition))
    nodes &= {each.name for each in slurm.nodes}
    with_gpus = nodes & slurm.gpu_nodes
    if not nodes:
        return []
    if with_gpus:
        return [ok(check, f"{len(with_gpus)} of the {len(nodes)} nodes of {partition} have GPUs (Gres=gpu)")]
    return [
        problem(
            check,
            f"no node of {partition} has Gres=gpu:N: Slurm knows no GPU there, and no job grows",
            f"slurm.conf: NodeName={_some(nodes)} ... Gres=gpu:N; restart slurmctld.",
        )
    ]


def _misspelt(slurm: SlurmConf) -> list[Finding]:
    return [
        problem(
            "slurm.keys",
            f"{line.place}: {written} is not a key of slurm.conf; did you mean {meant}?",
            f"slurm.conf: {meant}=...; all other checks take it as {meant}.",
        )
        for line in slurm.lines
        for written, meant in line.misspelt
    ]


def _controller(slurm: SlurmConf) -> list[Finding]:
    needed = {"ClusterName": ("clustername",), "SlurmctldHost": ("slurmctldhost", "controlmachine")}
    there = frozenset[str]().union(*(line.words for line in slurm.lines))
    return [
        problem("slurm.controller", f"there is no {name}: Slurm does not start", f"slurm.conf: {name}=...")
        for name, keys in needed.items()
        if there.isdisjoint(keys)
    ]


def _twice(check: str, key: str, defined: tuple[Defined, ...]) -> list[Finding]:
    counted = Counter(each.name for each in defined)
    places: dict[str, list[str]] = {}
    for each in defined:
        if counted[each.name] > 1:
            places.setdefault(each.name, []).append(each.place)
    return [
        problem(
            check,
            f"{places[name][1]}: {key}={name} is there already, in {places[name][0]}:"
            " slurmctld does not start",
            "slurm.conf: one line for each; make one of the two.",
        )
        for name in list(places)[:_SHOWN]
    ]


def _undefined(slurm: SlurmConf) -> list[Finding]:
    known = {each.name for each in slurm.nodes}
    return [
        problem(
            "partition.nodes",
            f"{each.place}: partition {each.name} has nodes that no NodeName= defines:"
            f" {_some(each.nodes - known)}; slurmctld does not start",
            f"slurm.conf: PartitionName={each.name} Nodes=... with nodes that are there, or NodeName=... for"
            " these.",
        )
        for each in slurm.named_partitions
        if each.nodes - known
    ]


def _counted(slurm: SlurmConf) -> Finding:
    """Slurm refuses to count GPUs without slurmdbd, and does not count them by itself with it."""
    check, config = "slurm.tres", slurm.config
    with_database = "slurmdbd" in config.accounting_type
    gres = [each for each in config.accounting_tres if each.startswith("gres/")]
    if gres and not with_database:
        return problem(
            check,
            f"AccountingStorageTRES={','.join(gres)} without slurmdbd: slurmctld does not start",
            "slurm.conf: AccountingStorageType=accounting_storage/slurmdbd; or leave"
            " AccountingStorageTRES out.",
        )
    if with_database and "gres/gpu" not in gres:
        return warning(
            check,
            "AccountingStorageTRES has no gres/gpu: sacct does not tell GPUs, which `flexo whatif` needs",
            "slurm.conf: AccountingStorageTRES=gres/gpu; restart slurmctld.",
        )
    return ok(check, "accounting counts GPUs" if gres else "no slurmdbd, and so no GPUs in its accounting")


def _some(names: frozenset[str] | set[str]) -> str:
    return ",".join(sorted(names)[:_SHOWN]) + (",..." if len(names) > _SHOWN else "")
