"""A ResourceManager for thousands of nodes: a lab without NodeManagers, with Java's own choices."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from flexo_lab import processes
from flexo_lab.bringup import build_or_nothing
from flexo_lab.layout import Layout
from flexo_lab.ports import free_ports
from flexo_lab.requirements import SYSTEM_PATH
from flexo_lab.teardown import silent
from flexo_lab.yarn import YarnLab, YarnLabSpec, jars
from flexo_lab.yarn.files import write_files
from flexo_lab.yarn.record import YarnRecord
from flexo_yarn.configuration import read_file
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.site_settings import as_xml

HEAP_MIB = 3072
_UP_S = 120.0
_ASYNCHRONOUS = "yarn.scheduler.capacity.schedule-asynchronously.enable"
_CLASS = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"


@contextmanager
def running(name: str, node_beat_s: float, *, asynchronous: bool) -> Iterator[YarnLab]:
    """The ResourceManager, without any node; nothing is left of it afterwards. Raises LabError.

    `asynchronous`: whether a thread of its own schedules all the time, as Hadoop 3.5 does by default; else
    it schedules with each heartbeat of a node, as earlier releases do.
    """
    jars.ensure()
    layout = Layout.of(name)
    lab = build_or_nothing(layout, lambda: _build(layout, node_beat_s, asynchronous), silent)
    try:
        yield lab
    finally:
        lab.down()


def _build(layout: Layout, node_beat_s: float, asynchronous: bool) -> YarnLab:
    spec = YarnLabSpec(name=layout.name, nodes=1, flexod=False)
    (number,) = free_ports(1, frozenset())
    lab = YarnLab(layout, YarnRecord(spec, number, up=True))
    lab.record.write(layout.yarn_record)
    write_files(lab.yarn_layout, spec)
    layout.logs.mkdir(exist_ok=True)
    _set(lab, "yarn-site.xml", _as_at_a_site(node_beat_s))
    _set(lab, "capacity-scheduler.xml", {_ASYNCHRONOUS: str(asynchronous).lower()})
    _start(lab)
    return lab


def _set(lab: YarnLab, name: str, settings: Mapping[str, str]) -> None:
    path = lab.yarn_layout.conf("rm") / name
    path.write_text(as_xml({**read_file(path), **settings}.items()))


def _as_at_a_site(node_beat_s: float) -> dict[str, str]:
    """What a lab sets because one machine is fast, as YARN has it by default; and the beat of nodes."""
    return {
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": str(int(node_beat_s * 1000)),
        "yarn.nm.liveness-monitor.expiry-interval-ms": "600000",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "0",
    }


def _start(lab: YarnLab) -> None:
    """Start the ResourceManager with Java's own choice of compilers and collector. Raises LabFailed."""
    layout = lab.yarn_layout
    command = [
        *(shutil.which("java") or "java", f"-Xmx{HEAP_MIB}m", "-Djava.net.preferIPv4Stack=true"),
        f"{processes.JAVA_NAME_OPTION}rm",
        f"-Dflexo.log={layout.log('rm')}",
        *("-cp", f"{layout.conf('rm')}:{jars.cached()}/*", _CLASS),
    ]
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HADOOP_CONF_DIR": str(layout.conf("rm"))}
    processes.start(command, layout.log("rm").with_suffix(".out"), environment)
    client = ResourceManager(lab.clients, user="root")

    def answers() -> bool:
        with suppress(IpcError):
            client.queues()
            return True
        return False

    try:
        processes.wait_until(answers, "the ResourceManager to answer", _UP_S, layout.log("rm"))
    finally:
        client.close()
