"""The data of `flexo lab status`, also for a lab that is half up or has lost its record."""

from __future__ import annotations

from dataclasses import dataclass

from flexo_lab.errors import LabCommandFailed
from flexo_lab.lab import Lab
from flexo_lab.layout import Layout
from flexo_lab.processes import Daemon, daemons_of
from flexo_lab.record import Record
from flexo_lab.slurm_files import gpus_of_nodes
from flexo_lab.spec import LabSpec, Profile


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as sinfo shows it."""

    name: str
    state: str
    gpus: int
    gpus_used: int
    cpus: int
    cpus_used: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition as scontrol shows it."""

    name: str
    priority_tier: int
    preempt_mode: str
    nodes: str
    """Nodes in Slurm's notation, as in t[1-3]; "" for none."""


@dataclass(frozen=True, slots=True)
class LabStatus:
    """The status of a lab. `lab` is None unless the lab's record says "up".

    `nodes` and `partitions` are empty when slurmctld does not answer.
    """

    name: str
    lab: Lab | None
    daemons: tuple[Daemon, ...]
    missing: tuple[str, ...]
    """Daemons of the specification that do not live."""
    nodes: tuple[NodeStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    running_jobs: int = 0
    pending_jobs: int = 0


def status_of(name: str) -> LabStatus:
    """Query the lab `name`. Raises BadSpec, UnsafeFolder."""
    layout = Layout.of(name)
    daemons = tuple(daemons_of(layout.directory))
    record = Record.read(layout.record)
    if record is None or not record.up:
        return LabStatus(name, None, daemons, ())
    lab = Lab(layout, record)
    alive = {daemon.name for daemon in daemons}
    missing = tuple(name for name in expected_daemons(record.spec) if name not in alive)
    if "slurmctld" in missing:
        return LabStatus(name, lab, daemons, missing)
    try:
        states = lab.run(["squeue", "--noheader", "--format=%T"]).stdout.split()
        return LabStatus(
            name,
            lab,
            daemons,
            missing,
            _nodes(lab),
            _partitions(lab),
            states.count("RUNNING"),
            states.count("PENDING"),
        )
    except LabCommandFailed:
        return LabStatus(name, lab, daemons, missing)


def expected_daemons(spec: LabSpec) -> tuple[str, ...]:
    """Names of all daemons that a lab of `spec` has."""
    database = ("mariadbd", "slurmdbd") if spec.profile is Profile.ACCOUNTING else ()
    flexod = ("flexod",) if spec.flexod else ()
    web = ("flexo-web",) if spec.web else ()
    slurmds = (f"slurmd {node}" for node in spec.node_names)
    munged = () if spec.auth_slurm else ("munged",)
    return (*munged, *database, "slurmctld", *slurmds, *flexod, *web)


def parse_gpus_used(gres_used: str) -> int:
    """GPUs in use by sinfo's GresUsed, as in "gpu:v100:2(IDX:0-1)" or "gpu:0(IDX:N/A)"."""
    return sum(
        int(item.partition("(")[0].rpartition(":")[2])
        for item in gres_used.split("),")
        if item.startswith("gpu:")
    )


def _nodes(lab: Lab) -> tuple[NodeStatus, ...]:
    columns = "NodeList:64,StateLong:64,CPUsState:64,GresUsed:256"
    text = lab.run(["sinfo", "--noheader", "--Node", f"--Format={columns}"]).stdout
    rows = {words[0]: words for line in text.splitlines() if len(words := line.split()) == 4}
    return tuple(
        _node(rows[node], gpus) for node, gpus, _ in gpus_of_nodes(lab.spec) if node in rows
    )  # sinfo prints a node once for each of its partitions


def _node(words: list[str], gpus: int) -> NodeStatus:
    name, state, cpus, gres_used = words
    allocated, _idle, _other, total = (int(number) for number in cpus.split("/"))
    return NodeStatus(name, state, gpus, parse_gpus_used(gres_used), total, allocated)


def _partitions(lab: Lab) -> tuple[PartitionStatus, ...]:
    text = lab.run(["scontrol", "--oneliner", "show", "partition"]).stdout
    rows = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
    found = [
        PartitionStatus(
            row["PartitionName"],
            int(row["PriorityTier"]),
            row["PreemptMode"],
            "" if row["Nodes"] == "(null)" else row["Nodes"],
        )
        for row in rows
        if "PartitionName" in row
    ]
    return tuple(sorted(found, key=lambda partition: -partition.priority_tier))
