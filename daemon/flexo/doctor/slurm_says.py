"""Parses Slurm's description of its own set-up, as far as the doctor judges it (scontrol, sdiag). Pure
functions.

The adapter reads fewer fields of the same answers, once a cycle. The doctor reads them once, for a person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.parse_config import parse_traits, setting, words
from flexo.clusters.slurm.text import is_nothing, number, or_empty, time_limit_s

_MEMORY = ("JobDefaults", "DefMemPerCPU", "DefMemPerNode")
_PROLOG = re.compile(r"^Prolog(?:\[\d+\])?\s*=\s*(\S+)", re.MULTILINE)
"""One line before 24.11, `Prolog = (null)` for none; since then `Prolog[0] = ...`, and no line for none."""
_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """The fields of `scontrol show config` (with SLURM_TIME_FORMAT or without). Empty texts: missing, or
    (null)."""

    version: str
    """The release, as in `22.05.8`."""
    cluster: str
    slurm_user: str
    """The name of Slurm's account."""
    auth_type: str
    select_type: str
    gres_types: tuple[str, ...]
    preempt_type: str
    preempt_mode: tuple[str, ...]
    preempt_parameters: tuple[str, ...]
    preempt_exempt_s: int
    """The time for which a job is safe from preemption."""
    scheduler_type: str
    scheduler_parameters: tuple[str, ...]
    priority_type: str
    accounting_type: str
    job_submit_plugins: tuple[str, ...]
    memory_counted: bool
    """Whether jobs get memory of their own (SelectTypeParameters)."""
    memory_by_default: str
    """The memory of a job that requests none, as in `DefMemPerCPU=4000`; "": all of its node's."""
    path: str
    """The path of slurm.conf on slurmctld's host."""
    task_plugins: tuple[str, ...]
    constrain_devices: bool
    """Whether a job can open the devices that it was allotted, and no others (cgroup.conf)."""
    accounting_tres: tuple[str, ...]
    """The resources that accounting tracks, as in `gres/gpu`."""
    accounting_enforce: tuple[str, ...]
    prologs: tuple[str, ...]
    """The programs that slurmd runs on a node before a job, as paths or patterns (glob(7))."""


@dataclass(frozen=True, slots=True)
class PartitionSetup:
    """The fields of one line of `scontrol show partition -o`."""

    name: str
    nodes: frozenset[str]
    tier: int
    preempt_mode: tuple[str, ...]
    grace_s: int
    max_time_s: int | None
    """The longest time limit; None: no limit."""
    up: bool
    alloc_nodes: frozenset[str] | None
    """Hosts from which jobs may be submitted; None: all."""
    root_only: bool
    memory_by_default: str
    """The default memory, as in SlurmConfig; "": the cluster's default."""
    one_user_a_node: bool
    """Jobs of two users are never on one node at once."""
    qos: str = ""
    """The QOS whose limits hold for all jobs of the partition; "": none."""
    is_default: bool = False
    """Whether jobs that name no partition are in this one."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The figures of `sdiag`."""

    at: float
    """slurmctld's clock when it answered, seconds since the epoch; 0: slurmctld does not say."""
    backfill_turn_s: float
    """The time until backfill's next turn, for a job that only backfill can start: the interval and the
    slowest cycle."""
    main_max_s: float
    """The slowest cycle of the main scheduler."""
    backfill_queue: int
    """The number of jobs in the queue of the last cycle of backfill."""


def parse_config(text: str) -> SlurmConfig:
    """Parse the output of `scontrol show config`."""
    prologs = tuple(path for path in _PROLOG.findall(text) if not is_nothing(path))
    return config_of(lambda name: setting(text, name), prologs)


def config_of(value: Callable[[str], str], prologs: tuple[str, ...] = ()) -> SlurmConfig:
    """The configuration, of which `value` tells each setting by its name; "" for one that is not set."""
    return SlurmConfig(
        version=value("SLURM_VERSION"),
        cluster=value("ClusterName"),
        slurm_user=value("SlurmUser").partition("(")[0],
        auth_type=value("AuthType"),
        select_type=value("SelectType"),
        gres_types=words(value("GresTypes")),
        preempt_type=value("PreemptType"),
        preempt_mode=words(value("PreemptMode")),
        preempt_parameters=words(value("PreemptParameters")),
        preempt_exempt_s=_seconds(value("PreemptExemptTime")),
        scheduler_type=value("SchedulerType"),
        scheduler_parameters=words(value("SchedulerParameters")),
        priority_type=value("PriorityType"),
        accounting_type=value("AccountingStorageType"),
        job_submit_plugins=words(value("JobSubmitPlugins")),
        memory_counted="MEMORY" in value("SelectTypeParameters").upper(),
        memory_by_default=_memory_by_default({name: value(name) for name in _MEMORY}),
        path=value("SLURM_CONF"),
        task_plugins=words(value("TaskPlugin")),
        constrain_devices=value("ConstrainDevices") == "yes",
        accounting_tres=words(value("AccountingStorageTRES")),
        accounting_enforce=words(value("AccountingStorageEnforce")),
        prologs=prologs,
    )


def parse_partition_setups(text: str) -> tuple[PartitionSetup, ...]:
    """Parse the output of `scontrol show partition -a -o`. Raises BadValue, BadHostlist."""
    return tuple(_partition(line) for line in text.splitlines() if line.startswith("PartitionName="))


def parse_stats(config: str, diagnosis: str) -> SchedulerStats:
    """Parse the output of `scontrol show config` and `sdiag`."""
    main, _, backfill = diagnosis.partition("Backfilling stats")
    at = re.search(r"^sdiag output at .*\((\d+)\)", main, re.MULTILINE)
    return SchedulerStats(
        at=float(at[1]) if at else 0.0,
        backfill_turn_s=parse_traits(config, diagnosis).starts.turn_s,
        main_max_s=_figure(main, "Max cycle") / 1e6,
        backfill_queue=_figure(backfill, "Last queue length"),
    )


def parse_node_addresses(text: str) -> frozenset[str]:
    """The NodeAddr of every node in what `scontrol show node -a -o` prints."""
    return frozenset(re.findall(r"^NodeName=\S+ .*?\sNodeAddr=(\S+)", text, re.MULTILINE))


def _partition(line: str) -> PartitionSetup:
    # The first of several counts: reversed, because the last one put into a dictionary stays.
    fields = dict(reversed(_PAIR.findall(line)))
    return partition_of(fields, frozenset(expand(fields.get("Nodes", ""))))


def partition_of(fields: Mapping[str, str], nodes: frozenset[str]) -> PartitionSetup:
    """The partition with these fields, named as scontrol names them. Raises BadValue, BadHostlist."""
    alloc = fields.get("AllocNodes", "ALL")
    return PartitionSetup(
        name=fields["PartitionName"],
        nodes=nodes,
        tier=number(fields.get("PriorityTier", "1")),
        preempt_mode=words(fields.get("PreemptMode", "")),
        grace_s=int(grace) if (grace := fields.get("GraceTime", "")).isdecimal() else 0,
        max_time_s=time_limit_s(fields.get("MaxTime", "UNLIMITED")),
        up=fields.get("State", "UP") == "UP",
        alloc_nodes=None if alloc == "ALL" else frozenset(expand(alloc)),
        root_only=fields.get("RootOnly", "NO") == "YES",
        memory_by_default=_memory_by_default({name: or_empty(fields.get(name, "")) for name in _MEMORY}),
        one_user_a_node=fields.get("ExclusiveUser", "NO") == "YES"
        or fields.get("OverSubscribe", "NO") == "EXCLUSIVE",
        qos=or_empty(fields.get("QoS", "")),
        is_default=fields.get("Default", "NO") == "YES",
    )


def _memory_by_default(settings: Mapping[str, str]) -> str:
    """The default memory. Slurm says UNLIMITED if there is none. JobDefaults may have other words
    (DefCpuPerGPU)."""
    per_gpu = [word for word in words(settings["JobDefaults"]) if word.startswith("DefMemPerGPU=")]
    others = [f"{name}={settings[name]}" for name in _MEMORY[1:] if settings[name].isdecimal()]
    return next(iter([*per_gpu, *others]), "")


def _seconds(text: str) -> int:
    """The seconds of `00:05:00`, as scontrol prints it; `NONE` and the like are 0."""
    return 0 if is_nothing(text) else time_limit_s(text) or 0


def _figure(text: str, name: str) -> int:
    match = re.search(rf"^\s*{name}:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0
