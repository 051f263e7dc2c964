"""A Slurm cluster of thousands of nodes on this machine: a real slurmd for each, with a file of its own.

Debian's slurm-wlm-emulator (22.05) is not built with front-end support and so emulates no nodes. A slurmd
that knows of no node but its own takes about 1 MiB, so each node simply has one. slurmctld speaks with each
slurmd directly, because no slurmd could forward messages.
"""

from __future__ import annotations

import contextlib
import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from flexo_lab.bringup import make_folders, start_munged
from flexo_lab.controller import node_states, start_slurmctld
from flexo_lab.flexod import write_flexo_toml
from flexo_lab.lab import Lab
from flexo_lab.layout import Layout
from flexo_lab.ports import free_ports
from flexo_lab.processes import belonging_to, kill, start_daemonizing
from flexo_lab.record import Ports, Record
from flexo_lab.requirements import program
from flexo_lab.slurm_files import (
    LUA_MODULE,
    MEMORY_PER_CPU_MIB,
    ON_ONE_MACHINE,
    SPANK_PLUGIN,
    job_submit_lua,
    plugin_sources,
    plugstack_conf,
)
from flexo_lab.spec import LabSpec, Profile
from flexo_lab.teardown import take_down

GPUS, CPUS = 8, 64
"""GPUs and CPUs of each node."""
START_S = 1200.0
"""Limit for all nodes together to come up."""
_AT_ONCE = 4
Tell = Callable[[str], None]


@contextlib.contextmanager
def running(name: str, nodes: int, max_satellites: int, tell: Tell) -> Iterator[Lab]:
    """The cluster with all its nodes up, without flexod; nothing of it is left afterwards.

    `max_satellites`: value in flexo.toml; 0: not set there.
    """
    layout = Layout.of(name)
    take_down(name, patience_s=0)
    layout.directory.mkdir(mode=0o755, parents=True)
    try:
        yield _start(layout, nodes, max_satellites, tell)
    finally:
        kill(each for each in belonging_to(layout.directory) if _is(each, "slurmctld"))
        take_down(name, patience_s=0)


def _is(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.name() == name)
    return False


def _start(layout: Layout, nodes: int, max_satellites: int, tell: Tell) -> Lab:
    # Only those fields of the specification are used that flexod's settings come from.
    spec = LabSpec(name=layout.name, nodes=1, infer_nodes=0, profile=Profile.PRODUCTION)
    first_port = row_of_free_ports(nodes)
    row = frozenset(range(first_port, first_port + nodes))
    slurmctld, flexod, metrics = free_ports(3, row)
    lab = Lab(layout, Record(spec, Ports(slurmctld, flexod, ()), up=True))
    _write_files(lab, nodes, first_port)
    _write_flexo_toml(lab, metrics, max_satellites)
    environment = lab.environment()
    start_munged(layout, environment)
    start_slurmctld(layout, environment)
    tell(f"starting {nodes} slurmd")
    began = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda number: _start_slurmd(lab, number), range(1, nodes + 1)))
    while (up := sum(state == "idle" for state in node_states(environment))) < nodes:
        if time.monotonic() - began > START_S:
            raise RuntimeError(f"only {up} of {nodes} nodes came up within {START_S:.0f} s")
        time.sleep(2)
    tell(f"all {nodes} nodes are idle, after {time.monotonic() - began:.0f} s")
    return lab


def metrics_port(lab: Lab) -> int:
    """TCP port of flexod's metrics."""
    return int((lab.directory / "metrics-port").read_text())


def row_of_free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below the kernel's ephemeral range. Raises RuntimeError."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for first in range(low - count - 1, 1024, -count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} TCP ports in a row are free below {low}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


def _write_files(lab: Lab, nodes: int, first_port: int) -> None:
    layout = lab.layout
    make_folders(layout)
    layout.plugin.mkdir()
    for part in (SPANK_PLUGIN, LUA_MODULE):
        (layout.plugin / part).write_bytes((plugin_sources() / part).read_bytes())
    layout.plugstack_conf.write_text(plugstack_conf(layout, spank=True))
    layout.job_submit.write_text(job_submit_lua(layout, lab.spec))
    ports = f"[{first_port}-{first_port + nodes - 1}]"
    layout.slurm_conf.write_text(_common(lab) + _of_slurmctld(layout) + _node(f"n[1-{nodes}]", ports))
    layout.devices.mkdir()
    for gpu in range(GPUS):  # all nodes share the files, which nothing opens
        (layout.devices / f"nvidia{gpu}").touch()
    gpus = f"Name=gpu File={layout.devices}/nvidia[0-{GPUS - 1}]\n"
    layout.gres_conf.write_text(f"NodeName=n[1-{nodes}] {gpus}")
    for number in range(1, nodes + 1):
        own = _own_folder(lab, number)
        own.mkdir(parents=True)
        (own / "slurm.conf").write_text(_common(lab) + _node(f"n{number}", str(first_port + number - 1)))
        (own / "gres.conf").write_text(gpus)


def _write_flexo_toml(lab: Lab, metrics: int, max_satellites: int) -> None:
    write_flexo_toml(lab.layout, lab.record)
    with lab.layout.flexo_toml.open("a") as file:
        file.write(f'\n[metrics]\nlisten = "127.0.0.1:{metrics}"\n')
        if max_satellites:
            file.write(f"\n[controller]\nmax_satellites = {max_satellites}\n")
    (lab.directory / "metrics-port").write_text(str(metrics))


def _own_folder(lab: Lab, number: int) -> Path:
    return lab.directory / "nodes" / f"n{number}"


def _start_slurmd(lab: Lab, number: int) -> None:
    own = _own_folder(lab, number)
    command = [program("slurmd"), "-f", str(own / "slurm.conf"), "-N", f"n{number}"]
    start_daemonizing(command, own / "slurmd.out", lab.environment())


def _node(names: str, ports: str) -> str:
    host = own_host()
    return (
        f"NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} "
        f"CPUs={CPUS} RealMemory={CPUS * MEMORY_PER_CPU_MIB} Gres=gpu:{GPUS}\n"
    )


def _common(lab: Lab) -> str:
    """The settings that slurmctld and every slurmd must share; the rest of their files may differ.

    A thousand satellites that end at once take minutes on one machine. UnkillableStepTimeout prevents that
    nodes are drained for it.
    """
    return shared_settings(lab, "flexo_scale") + "UnkillableStepTimeout=1800\n"


def shared_settings(lab: Lab, name: str) -> str:
    """The settings that slurmctld and every slurmd share, where all nodes are on this machine. `name`: the
    cluster's."""
    layout = lab.layout
    return textwrap.dedent(f"""\
        ClusterName={name}
        SlurmctldHost={own_host()}(127.0.0.1)
        SlurmctldPort={lab.ports.slurmctld}
        SlurmUser=slurm
        SlurmdUser=root
        AuthType=auth/munge
        AuthInfo=socket={layout.munge_socket}
        CredType=cred/munge
        DebugFlags=NO_CONF_HASH
        TreeWidth=65533
        SlurmdSpoolDir={layout.spool}/%n
        SlurmdPidFile={layout.spool}/%n.pid
        SlurmdLogFile={layout.logs}/slurmd.log
        SlurmdDebug=error
    """) + textwrap.dedent(ON_ONE_MACHINE)


def own_host() -> str:
    """This machine's name, as slurm.conf has it."""
    return socket.gethostname().split(".")[0]


def _of_slurmctld(layout: Layout) -> str:
    return textwrap.dedent(f"""\
        StateSaveLocation={layout.state}
        SlurmctldPidFile={layout.state}/slurmctld.pid
        SlurmctldLogFile={layout.logs}/slurmctld.log
        SlurmctldDebug=info
        PlugStackConfig={layout.plugstack_conf}
        JobSubmitPlugins=lua
        SchedulerParameters=bf_max_job_part=50,bf_max_job_test=1000,bf_continue,bf_yield_interval=1000000
        PreemptType=preempt/partition_prio
        PreemptMode=REQUEUE
        JobRequeue=1
        ReturnToService=2
        MaxJobCount=100000
        MinJobAge=300
        MessageTimeout=60
        BatchStartTimeout=300
        PartitionName=train Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF
        PartitionName=flex Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=20
    """)
