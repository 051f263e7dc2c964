"""Checks the satellites' partition and, if a site has them, those of lent servers and of shared GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo.config import Settings
from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo.doctor.preemption import BY_PARTITION
from flexo.doctor.slurm_says import PartitionSetup, SlurmConfig
from flexo.loaning.settings import LoaningSettings
from flexo.sharing.settings import SharingSettings

_RECONFIGURE = "then `scontrol reconfigure`"


@dataclass(frozen=True, slots=True)
class Satellites:
    """The required settings of the partition for satellites."""

    partition: str
    time_limit_s: int
    """The time limit that a satellite asks for."""


def of_satellites(settings: Settings) -> frozenset[str]:
    """The names of the partitions of satellites, but for that of satellites on shared GPUs."""
    loaning = settings.loaning
    return frozenset({settings.slurm.satellite_partition, loaning.partition, loaning.satellite_partition})


def check_partitions(
    config: SlurmConfig, partitions: Sequence[PartitionSetup], wanted: Satellites
) -> list[Finding]:
    """Check that the satellites' partition exists, is below others on its nodes, and gives way in time."""
    found = _named(partitions, wanted.partition)
    if found is None:
        return [_missing("partition.exists", wanted.partition, "[slurm] satellite_partition", partitions)]
    return [
        _nodes("partition.exists", found),
        _tier("partition.tier", config, found, _others(partitions, found)),
        _mode("partition.preempt_mode", found, config),
        _grace("partition.grace", found, config),
        _max_time(found, wanted.time_limit_s),
        _default(found),
        *_exposed(config, found, partitions),
    ]


def check_borrowed(
    config: SlurmConfig, partitions: Sequence[PartitionSetup], loaning: LoaningSettings
) -> list[Finding]:
    """Check the partitions of lent servers, if servers are lent."""
    if not loaning.enabled:
        return [ok("borrowed", "no servers are lent ([loaning] enabled = false)")]
    inference = _named(partitions, loaning.inference_partition)
    if inference is None:
        key = "[loaning] inference_partition"
        return [_missing("borrowed.inference", loaning.inference_partition, key, partitions)]
    findings = [_nodes("borrowed.inference", inference)]
    names = [loaning.partition, *filter(None, [loaning.satellite_partition])]
    keys = ("[loaning] partition", "[loaning] satellite_partition")
    for name, key in zip(names, keys, strict=False):
        borrowed = _named(partitions, name)
        if borrowed is None:
            findings.append(_missing("borrowed.exists", name, key, partitions))
        else:
            findings += _borrowed(config, borrowed, inference)
    return findings


def check_shared(
    config: SlurmConfig,
    partitions: Sequence[PartitionSetup],
    sharing: SharingSettings,
    satellites: frozenset[str],
) -> list[Finding]:
    """Check the partition of satellites on GPUs that other jobs hold. `satellites`: the other partitions of
    satellites, which may have the same tier."""
    shared = _named(partitions, sharing.partition)
    if shared is None:
        return [_missing("sharing.partition", sharing.partition, "[sharing] partition", partitions)]
    above = [each for each in _others(partitions, shared) if each.name not in satellites]
    return [
        _nodes("sharing.partition", shared),
        _tier("sharing.tier", config, shared, above),
        _mode("sharing.preempt_mode", shared, config),
        _grace("sharing.grace", shared, config),
    ]


def _borrowed(config: SlurmConfig, borrowed: PartitionSetup, inference: PartitionSetup) -> list[Finding]:
    check = "borrowed.tier"
    if config.preempt_type != BY_PARTITION:
        tier = not_checked(check, f"tiers matter with PreemptType={BY_PARTITION} alone")
    elif borrowed.tier < inference.tier:
        tier = ok(check, f"{borrowed.name} (tier {borrowed.tier}) is below {inference.name}")
    else:
        tier = problem(
            check,
            f"{borrowed.name} has PriorityTier={borrowed.tier} and {inference.name} {inference.tier}:"
            " the inference cluster does not get its servers back by Slurm alone",
            f"slurm.conf: PartitionName={borrowed.name} ... PriorityTier={max(1, inference.tier - 1)},"
            f" below that of {inference.name}; {_RECONFIGURE}.",
        )
    return [tier, _grace("borrowed.grace", borrowed, config)]


def _missing(check: str, name: str, key: str, partitions: Sequence[PartitionSetup]) -> Finding:
    there = ", ".join(sorted(partition.name for partition in partitions)) or "none"
    return problem(
        check,
        f"there is no partition {name} ({key} in flexo.toml); there are: {there}",
        f"slurm.conf: PartitionName={name} ... as docs/howto/admin-guide.md has it, and restart slurmctld; or"
        f" name yours in {key}.",
    )


def _nodes(check: str, partition: PartitionSetup) -> Finding:
    if partition.nodes and partition.up:
        return ok(check, f"the partition {partition.name} is there and up, with {len(partition.nodes)} nodes")
    if not partition.nodes:
        line = f"PartitionName={partition.name} Nodes=..."
        return problem(
            check, f"the partition {partition.name} has no nodes", f"slurm.conf: {line}; {_RECONFIGURE}."
        )
    return problem(
        check,
        f"the partition {partition.name} is not up: nothing is started there",
        f"`scontrol update PartitionName={partition.name} State=UP`",
    )


def _tier(
    check: str, config: SlurmConfig, satellites: PartitionSetup, others: Sequence[PartitionSetup]
) -> Finding:
    if config.preempt_type != BY_PARTITION:
        return not_checked(check, f"tiers matter with PreemptType={BY_PARTITION} alone")
    if not others:
        return warning(
            check,
            f"no other partition has nodes of {satellites.name}: nobody's jobs can grow into it",
            f"slurm.conf: PartitionName={satellites.name} Nodes=... with the nodes of your training"
            f" partition; {_RECONFIGURE}.",
        )
    above = [each for each in others if each.tier > satellites.tier]
    if len(above) == len(others):
        names = ", ".join(f"{each.name} {each.tier}" for each in others)
        return ok(check, f"{satellites.name} (tier {satellites.tier}) is below all others there: {names}")
    wrong = min((each for each in others if each not in above), key=lambda each: each.tier)
    low = max(0, wrong.tier - 1)
    raised = f"PartitionName={wrong.name} ... PriorityTier={satellites.tier + 1} or more"
    lowered = f"PartitionName={satellites.name} ... PriorityTier={low}"
    return problem(
        check,
        f"{satellites.name} has PriorityTier={satellites.tier} and {wrong.name}, on the same nodes,"
        f" {wrong.tier}: jobs in {wrong.name} do not get GPUs of satellites",
        f"slurm.conf: {lowered if low else raised}; {_RECONFIGURE}.",
    )


def _mode(check: str, partition: PartitionSetup, config: SlurmConfig) -> Finding:
    if config.preempt_type != BY_PARTITION:
        return not_checked(check, f"a partition's PreemptMode matters with PreemptType={BY_PARTITION} alone")
    modes = partition.preempt_mode or config.preempt_mode
    fix = f"slurm.conf: PartitionName={partition.name} ... PreemptMode=CANCEL; {_RECONFIGURE}."
    if "CANCEL" in modes:
        return ok(check, f"{partition.name}: PreemptMode=CANCEL, a satellite that is taken back is gone")
    if "REQUEUE" in modes:
        said = f"{partition.name}: PreemptMode=REQUEUE; satellites cannot be requeued, so Slurm cancels them"
        return warning(check, said, fix)
    said = f"{partition.name}: PreemptMode={','.join(modes) or 'OFF'}: satellites do not free their GPUs"
    return problem(check, said, fix)


def _grace(check: str, partition: PartitionSetup, config: SlurmConfig) -> Finding:
    if config.preempt_type != BY_PARTITION:
        return not_checked(check, f"a partition's GraceTime matters with PreemptType={BY_PARTITION} alone")
    if partition.grace_s:
        return ok(check, f"{partition.name}: GraceTime={partition.grace_s} s to reach the next commit")
    return warning(
        check,
        f"{partition.name}: GraceTime=0: workers are killed within a mini-batch, which the others repeat",
        f"slurm.conf: PartitionName={partition.name} ... GraceTime=60; {_RECONFIGURE}.",
    )


def _max_time(partition: PartitionSetup, time_limit_s: int) -> Finding:
    check, limit = "partition.max_time", partition.max_time_s
    if limit is None or limit >= time_limit_s:
        return ok(check, f"{partition.name}: MaxTime lets satellites ask for {time_limit_s} s")
    return problem(
        check,
        f"{partition.name}: MaxTime is {limit} s; Slurm refuses satellites, which ask for {time_limit_s} s",
        f"slurm.conf: PartitionName={partition.name} ... MaxTime=24:00:00, {_RECONFIGURE}; or a smaller"
        " [controller] time_limit_s in flexo.toml.",
    )


def _default(partition: PartitionSetup) -> Finding:
    check = "partition.default"
    if not partition.is_default:
        return ok(check, f"{partition.name} is not the default partition")
    return problem(
        check,
        f"{partition.name} is the default partition: every job that names none is in it, and is ended when"
        " others need its GPUs",
        f"slurm.conf: PartitionName={partition.name} ... Default=NO, and Default=YES for another one;"
        f" {_RECONFIGURE}.",
    )


def _exposed(
    config: SlurmConfig, satellites: PartitionSetup, partitions: Sequence[PartitionSetup]
) -> list[Finding]:
    """Warnings about ordinary partitions whose jobs may be preempted, perhaps without anybody having meant
    it."""
    if config.preempt_type != BY_PARTITION:
        return []
    exposed = []
    for each in _others(partitions, satellites):
        above = [other.name for other in _others(partitions, each) if other.tier > each.tier]
        if above and set(each.preempt_mode or config.preempt_mode) - {"OFF", "GANG"}:
            exposed.append((each, above))
    return [
        warning(
            "partition.exposed",
            f"jobs in {each.name} can be preempted by jobs in {', '.join(above)}"
            f" (PreemptMode={','.join(each.preempt_mode or config.preempt_mode)})",
            f"If that is not meant, slurm.conf: PartitionName={each.name} ... PreemptMode=OFF;"
            f" {_RECONFIGURE}.",
        )
        for each, above in exposed
    ]


def _named(partitions: Sequence[PartitionSetup], name: str) -> PartitionSetup | None:
    return next((partition for partition in partitions if partition.name == name), None)


def _others(partitions: Sequence[PartitionSetup], one: PartitionSetup) -> list[PartitionSetup]:
    """The other partitions that have nodes of `one`."""
    return [each for each in partitions if each.name != one.name and each.nodes & one.nodes]
