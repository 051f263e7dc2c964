"""Hadoop's configuration files of a YARN lab: flexo's settings for any site, and those of one machine."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from flexo_lab.flexod import FAST_LOANS
from flexo_lab.layout import Layout
from flexo_lab.yarn import kerberos
from flexo_lab.yarn.layout import NODE_PORT, ZOOKEEPER_PORT, YarnLayout
from flexo_lab.yarn.spec import YarnLabSpec
from flexo_yarn import loan_settings
from flexo_yarn.labels import nodes_of
from flexo_yarn.records import GPU
from flexo_yarn.site_settings import (
    CAPACITY_SCHEDULER,
    FLEX_QUEUE,
    RESOURCE_TYPES,
    YARN_SITE,
    Setting,
    as_xml,
)

ORDINARY_QUEUE = "default"
FLEX_PERCENT = 5
_LABEL_STORE = "yarn.node-labels.fs-store.root-dir"
ADMINISTRATORS = ("root", kerberos.FLEXOD)
"""flexod is root where there is no Kerberos. It views all applications: YARN has no lesser right to that."""
_RECOVERY = "org.apache.hadoop.yarn.server.resourcemanager.recovery"
_LOG4J = """\
log4j.rootLogger=INFO,file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File=${flexo.log}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


def write_files(layout: YarnLayout, spec: YarnLabSpec) -> None:
    """Write the configuration of clients, of each ResourceManager, and of each NodeManager."""
    common = {**_values(YARN_SITE), **_yarn_site(layout)}
    common |= _one_resource_manager(layout) if spec.resource_managers == 1 else _two(layout, spec)
    queues = {**_values(CAPACITY_SCHEDULER), **_queues()}
    if spec.kerberos:
        common |= kerberos.yarn_site(layout)
    if spec.infer_nodes:
        common |= {**_values(loan_settings.LABELS), _LABEL_STORE: f"file://{layout.directory}/labels"}
        queues |= _inference_queue()
    _write(layout.client_conf, layout, spec, common)
    for name, host in zip(spec.rm_names, layout.resource_managers, strict=False):
        own = {"yarn.resourcemanager.bind-host": host, "yarn.resourcemanager.ha.id": name}
        _write(layout.conf(name), layout, spec, {**common, **own})
        (layout.conf(name) / "capacity-scheduler.xml").write_text(as_xml(queues.items()))
    if spec.resource_managers > 1:
        _write_zookeeper(layout)
    gpus = {f"yarn.nodemanager.resource-type.{GPU}": str(spec.gpus_per_node)}
    for number, node in enumerate(spec.node_names, 1):
        _write(layout.conf(node), layout, spec, {**common, **_node(layout, spec, node, number)})
        (layout.conf(node) / "node-resources.xml").write_text(as_xml(gpus.items()))


def flexo_toml(layout: Layout, yarn: YarnLayout, spec: YarnLabSpec) -> str:
    """Text of flexo.toml, which resizes and lends within seconds."""
    identity = ""
    if spec.kerberos:
        identity = f"""
        keytab = "{yarn.keytab(kerberos.FLEXOD)}"
        principal = "{yarn.principal(kerberos.FLEXOD)}\""""
    text = f"""\
        [service]
        address = "{yarn.flexod}"
        munge_socket = "{layout.munge_socket}"

        [cluster]
        kind = "yarn"

        [yarn]
        conf = "{yarn.client_conf}"
        flex_queue = "{FLEX_QUEUE}"{identity}

        [event_store]
        path = "{layout.flexod}/journal.sqlite"

        [controller]
        max_interval_s = {2.0 if spec.loans else 5.0}
        min_resize_interval_s = 5.0
    """
    if spec.loans:
        text += f"""
        [loaning]
        enabled = true
        inference_partition = "{loan_settings.INFERENCE_QUEUE}"
        partition = "{nodes_of(FLEX_QUEUE, loan_settings.LABEL)}"
        static = true
    """
        text = text.rstrip() + FAST_LOANS
    return textwrap.dedent(text)


def _write(folder: Path, layout: YarnLayout, spec: YarnLabSpec, yarn_site: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    core = {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(layout.directory / "tmp"),
        "hadoop.security.authentication": "simple",
        "hadoop.rpc.protection": spec.protection.value,
        **(kerberos.core_site(layout) if spec.kerberos else {}),
    }
    (folder / "core-site.xml").write_text(as_xml(core.items()))
    (folder / "yarn-site.xml").write_text(as_xml(yarn_site.items()))
    (folder / "resource-types.xml").write_text(as_xml(_values(RESOURCE_TYPES).items()))
    (folder / "log4j.properties").write_text(_LOG4J)


def _values(settings: tuple[Setting, ...]) -> dict[str, str]:
    return {each.name: each.value for each in settings}


def _yarn_site(layout: YarnLayout) -> dict[str, str]:
    """What all parts of the lab have in common."""
    return {
        "yarn.admin.acl": ",".join(ADMINISTRATORS),
        # One machine is fast, and its tests wait for it.
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "250",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "2000",
        "yarn.resourcemanager.connect.retry-interval.ms": "1000",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.scheduler.maximum-allocation-mb": str(1 << 20),
        "yarn.scheduler.maximum-allocation-vcores": "1024",
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": f"{layout.directory}/logs",
    }


def _one_resource_manager(layout: YarnLayout) -> dict[str, str]:
    """The ResourceManager, and where it keeps what it knows."""
    return {
        "yarn.resourcemanager.hostname": layout.resource_managers[0],
        "yarn.resourcemanager.store.class": f"{_RECOVERY}.FileSystemRMStateStore",
        "yarn.resourcemanager.fs.state-store.uri": f"file://{layout.directory}/state",
    }


def _two(layout: YarnLayout, spec: YarnLabSpec) -> dict[str, str]:
    """Two ResourceManagers, of which ZooKeeper makes one active."""
    prefix = "yarn.resourcemanager"
    hosts = zip(spec.rm_names, layout.resource_managers, strict=True)
    return {
        f"{prefix}.ha.enabled": "true",
        f"{prefix}.ha.rm-ids": ",".join(spec.rm_names),
        f"{prefix}.cluster-id": spec.name,
        **{f"{prefix}.hostname.{name}": host for name, host in hosts},
        f"{prefix}.store.class": f"{_RECOVERY}.ZKRMStateStore",
        f"{prefix}.zk-address": f"{layout.zookeeper}:{ZOOKEEPER_PORT}",
        f"{prefix}.zk-timeout-ms": "4000",  # how soon the other one takes over
    }


def _write_zookeeper(layout: YarnLayout) -> None:
    folder = layout.conf("zk")
    folder.mkdir(parents=True)
    (folder / "log4j.properties").write_text(_LOG4J)
    layout.zookeeper_cfg.write_text(
        textwrap.dedent(f"""\
            dataDir={folder.parent}/data
            clientPortAddress={layout.zookeeper}
            clientPort={ZOOKEEPER_PORT}
            tickTime=1000
            maxClientCnxns=0
            admin.enableServer=false
        """)
    )


def _queues() -> dict[str, str]:
    """An ordinary queue with nearly everything, and the flex queue."""
    prefix = "yarn.scheduler.capacity"
    return {
        f"{prefix}.root.queues": f"{ORDINARY_QUEUE},{FLEX_QUEUE}",
        f"{prefix}.root.{ORDINARY_QUEUE}.capacity": str(100 - FLEX_PERCENT),
        f"{prefix}.root.{FLEX_QUEUE}.capacity": str(FLEX_PERCENT),
        f"{prefix}.root.{ORDINARY_QUEUE}.user-limit-factor": "-1",
        f"{prefix}.root.{ORDINARY_QUEUE}.maximum-am-resource-percent": "1.0",
    }


def _inference_queue() -> dict[str, str]:
    """A queue more, with the nodes that have the label."""
    prefix = "yarn.scheduler.capacity.root"
    return {
        **_values(loan_settings.of_inference(loan_settings.LABEL, loan_settings.INFERENCE_QUEUE)),
        **_values(loan_settings.of_flex_queue(loan_settings.LABEL)),
        **_values(loan_settings.of_others(ORDINARY_QUEUE)),
        f"{prefix}.queues": f"{ORDINARY_QUEUE},{FLEX_QUEUE},{loan_settings.INFERENCE_QUEUE}",
        f"{prefix}.{loan_settings.INFERENCE_QUEUE}.user-limit-factor": "-1",
        f"{prefix}.{loan_settings.INFERENCE_QUEUE}.maximum-am-resource-percent": "1.0",
    }


def _node(layout: YarnLayout, spec: YarnLabSpec, node: str, number: int) -> dict[str, str]:
    """What one NodeManager has for itself: its address, its resources and its folders."""
    host, folder = layout.node(number), layout.directory / node
    return {
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.bind-host": host,
        "yarn.nodemanager.address": f"{host}:{NODE_PORT}",
        "yarn.nodemanager.localizer.address": f"{host}:8040",
        "yarn.nodemanager.webapp.address": f"{host}:8042",
        "yarn.nodemanager.resource.memory-mb": str(spec.memory_mib_per_node),
        "yarn.nodemanager.resource.cpu-vcores": str(spec.cores_per_node),
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "containers"),
        "yarn.nodemanager.recovery.dir": str(folder / "recovery"),
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    }
