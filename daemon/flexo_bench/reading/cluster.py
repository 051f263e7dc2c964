"""A slurmctld with thousands of nodes that nobody runs: a real slurmd registers each node, and then ends.

A slurmd of Slurm 26.05 takes 4 MiB and eight threads, so a machine with 24 GiB does not hold 5,000 of them.
slurmctld asks no node whether it is still there (SlurmdTimeout=0), and keeps each node as it registered. So
allocations start and last, but no step runs. Whoever reads the cluster sees no difference.

slurmdbd and MariaDB are real, because pyslurm shows the GPUs in use only as tracked resources.
"""

from __future__ import annotations

import contextlib
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexo_bench.scale.cluster import own_host, row_of_free_ports, shared_settings
from flexo_lab import accounting
from flexo_lab.bringup import make_folders, start_munged
from flexo_lab.controller import node_states, start_slurmctld
from flexo_lab.lab import Lab
from flexo_lab.layout import Layout
from flexo_lab.ports import free_ports
from flexo_lab.processes import belonging_to, kill, start_daemonizing
from flexo_lab.record import Ports, Record
from flexo_lab.requirements import installed_release, program, require
from flexo_lab.slurm_files import cluster_name
from flexo_lab.spec import LabSpec, Profile
from flexo_lab.teardown import take_down

PARTITIONS = 2
"""Partitions, each with all nodes."""
_AT_ONCE = 3
_REGISTERED_TOGETHER = 100
"""slurmds that live at the same time."""
_REGISTER_S = 120.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of nodes."""

    part: float
    """The part of all nodes that are of this model."""
    gpus: tuple[tuple[str, int], ...]
    """Types and numbers of its GPUs, in the order of the device files."""
    hardware: str
    """Words of slurm.conf."""


MODELS = (
    Model(0.5, (("a100", 8),), "Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=256000 Feature=a100"),
    Model(
        *(0.4, (("h100", 4),)),
        "CPUs=64 RealMemory=512000 CoreSpecCount=2 MemSpecLimit=4000 Feature=h100,nvlink",
    ),
    Model(0.06, (("a100", 2), ("h100", 2)), "CPUs=64 RealMemory=256000 Feature=a100,h100"),
    Model(0.04, (), "CPUs=64 RealMemory=256000"),
)
"""Nodes with GPUs of one type and of another, with both, and without GPUs."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Nodes in a row of one model."""

    model: Model
    first: int
    last: int

    @property
    def names(self) -> str:
        """Slurm's list of them."""
        return f"n[{self.first}-{self.last}]"


def batches(nodes: int) -> tuple[Batch, ...]:
    """The nodes n1, n2, ... by model. `nodes`: 300 or more."""
    found, first = [], 1
    for model in MODELS:
        last = nodes if model is MODELS[-1] else first + round(nodes * model.part) - 1
        found.append(Batch(model, first, last))
        first = last + 1
    return tuple(found)


@contextlib.contextmanager
def running(name: str, nodes: int, tell: Tell) -> Iterator[Lab]:
    """The cluster with all nodes idle; nothing of it is left afterwards. Raises LabUnavailable, LabFailed."""
    require(Profile.ACCOUNTING)
    layout = Layout.of(name)
    take_down(name, patience_s=0)
    layout.directory.mkdir(mode=0o755, parents=True)
    try:
        yield _start(layout, nodes, tell)
    finally:
        # slurmctld first: no slurmd is left to end the jobs
        kill(each for each in belonging_to(layout.directory) if _is(each, "slurmctld"))
        take_down(name, patience_s=0)


def _is(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.name() == name)
    return False


def slurmctld_of(lab: Lab) -> int:
    """The process id of slurmctld."""
    return int((lab.layout.state / "slurmctld.pid").read_text())


def _start(layout: Layout, nodes: int, tell: Tell) -> Lab:
    spec = LabSpec(name=layout.name, nodes=1, infer_nodes=0, profile=Profile.ACCOUNTING)
    first_port = row_of_free_ports(nodes)
    slurmctld, flexod, dbd = free_ports(3, frozenset(range(first_port, first_port + nodes)))
    lab = Lab(layout, Record(spec, Ports(slurmctld, flexod, (), dbd), up=True))
    _write_files(lab, nodes, first_port)
    environment = lab.environment()
    start_munged(layout, environment)
    tell("starting MariaDB, slurmdbd and slurmctld")
    accounting.start_database(layout, environment)
    accounting.start_slurmdbd(layout, lab.record, environment)
    accounting.add_users(lab.record, environment)
    start_slurmctld(layout, environment)
    began = time.monotonic()
    tell(f"registering {nodes} nodes, each with a slurmd")
    for batch in batches(nodes):
        for first in range(batch.first, batch.last + 1, _REGISTERED_TOGETHER):
            some = range(first, min(first + _REGISTERED_TOGETHER, batch.last + 1))
            _register(lab, some, batch.model, first_port)
    tell(f"all {nodes} nodes are idle, after {time.monotonic() - began:.0f} s")
    return lab


def _register(lab: Lab, numbers: range, model: Model, first_port: int) -> None:
    """Let a slurmd register each of these nodes, and end the slurmds. Raises RuntimeError."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda number: _start_slurmd(lab, number, model, first_port + number - 1), numbers))
    deadline = time.monotonic() + _REGISTER_S
    while (up := node_states(lab.environment()).count("idle")) < (numbers.stop - 1) * PARTITIONS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {up // PARTITIONS} of {numbers.stop - 1} nodes have registered")
        time.sleep(0.3)
    pids = [int(path.read_text()) for path in lab.layout.spool.glob("*.pid")]
    kill(psutil.Process(pid) for pid in pids if psutil.pid_exists(pid))
    shutil.rmtree(lab.layout.spool)
    lab.layout.spool.mkdir()
    shutil.rmtree(_own_folders(lab))


def _own_folders(lab: Lab) -> Path:
    return lab.directory / "nodes"


def _start_slurmd(lab: Lab, number: int, model: Model, port: int) -> None:
    own, name = _own_folders(lab) / f"n{number}", f"n{number}"
    own.mkdir(parents=True)
    (own / "slurm.conf").write_text(_common(lab) + _node(name, model, str(port)))
    (own / "gres.conf").write_text(_gres(lab.layout, name, model))
    if lab.layout.cgroup_conf.exists():
        shutil.copy(lab.layout.cgroup_conf, own)
    command = [program("slurmd"), "-f", str(own / "slurm.conf"), "-N", name]
    start_daemonizing(command, own / "slurmd.out", lab.environment())


def _write_files(lab: Lab, nodes: int, first_port: int) -> None:
    layout = lab.layout
    make_folders(layout)
    layout.devices.mkdir()
    for gpu in range(8):  # all nodes share the files, which nothing opens
        (layout.devices / f"nvidia{gpu}").touch()
    if installed_release().cgroups_can_be_disabled:
        layout.cgroup_conf.write_text("CgroupPlugin=disabled\n")
    lines, gres = [], []
    for batch in batches(nodes):
        ports = f"[{first_port + batch.first - 1}-{first_port + batch.last - 1}]"
        lines.append(_node(batch.names, batch.model, ports))
        gres.append(_gres(layout, batch.names, batch.model))
    layout.slurm_conf.write_text(_common(lab) + _of_slurmctld(lab) + "".join(lines) + _PARTITIONS)
    layout.gres_conf.write_text("".join(gres))


def _node(names: str, model: Model, ports: str) -> str:
    gpus = ",".join(f"gpu:{kind}:{count}" for kind, count in model.gpus)
    return (
        f"NodeName={names} NodeHostname={own_host()} NodeAddr=127.0.0.1 Port={ports} {model.hardware}"
        f"{f' Gres={gpus}' if gpus else ''}\n"
    )


def _gres(layout: Layout, names: str, model: Model) -> str:
    lines, first = [], 0
    for kind, count in model.gpus:
        files = f"{layout.devices}/nvidia[{first}-{first + count - 1}]"
        lines.append(f"NodeName={names} Name=gpu Type={kind} File={files}\n")
        first += count
    return "".join(lines)


def _common(lab: Lab) -> str:
    return shared_settings(lab, cluster_name(lab.spec))


def _of_slurmctld(lab: Lab) -> str:
    layout = lab.layout
    tracked = sorted({f"gres/gpu:{kind}" for model in MODELS for kind, _ in model.gpus})
    return textwrap.dedent(f"""\
        SlurmdTimeout=0
        StateSaveLocation={layout.state}
        SlurmctldPidFile={layout.state}/slurmctld.pid
        SlurmctldLogFile={layout.logs}/slurmctld.log
        SlurmctldDebug=info
        SchedulerParameters=bf_max_job_part=50,bf_max_job_test=1000,bf_continue,bf_yield_interval=1000000
        PreemptType=preempt/partition_prio
        PreemptMode=REQUEUE
        MaxJobCount=100000
        MessageTimeout=60
        AccountingStorageType=accounting_storage/slurmdbd
        AccountingStorageHost=127.0.0.1
        AccountingStoragePort={lab.ports.dbd}
        AccountingStoragePass={layout.munge_socket}
        AccountingStorageTRES=gres/gpu,{",".join(tracked)}
    """)


_PARTITIONS = """\
PartitionName=train Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=flex Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=20
"""
