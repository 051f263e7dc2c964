"""Brings a YARN lab up: files, ResourceManager, NodeManagers. All of it, or nothing."""

from __future__ import annotations

from contextlib import suppress

from flexo_lab import folders
from flexo_lab.bringup import build_or_nothing, make_munge_folder, root_lock, start_munged
from flexo_lab.errors import LabFailed, LabUnavailable
from flexo_lab.lab import all_labs
from flexo_lab.layout import Layout, labs_root
from flexo_lab.ports import free_ports
from flexo_lab.processes import wait_until
from flexo_lab.teardown import Progress, silent
from flexo_lab.yarn import jars, kerberos
from flexo_lab.yarn.files import flexo_toml, write_files
from flexo_lab.yarn.lab import YarnLab
from flexo_lab.yarn.labels import label_inference_nodes
from flexo_lab.yarn.record import YarnRecord
from flexo_lab.yarn.spec import YarnLabSpec
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.ipc.errors import IpcError

_UP_S = 120.0


def bring_up_yarn(spec: YarnLabSpec, progress: Progress = silent) -> YarnLab:
    """Bring a YARN lab up and return it with all nodes running. Remove the remains of a killed `up` first.

    Raises LabUnavailable, UnsafeFolder, LabExists, LabBusy, LabFailed. After any error, Ctrl-C included,
    nothing of the lab stays.
    """
    if (reason := jars.why_unavailable()) is not None:
        raise LabUnavailable(reason)
    layout = Layout.of(spec.name)
    if spec.kerberos and (reason := kerberos.why_unavailable()) is not None:
        raise LabUnavailable(reason)
    jars.ensure(progress)
    return build_or_nothing(layout, lambda: _build(layout, spec, progress), progress)


def _build(layout: Layout, spec: YarnLabSpec, progress: Progress) -> YarnLab:
    lab = YarnLab(layout, _claim_addresses(layout, spec))
    progress("writing YARN's files")
    write_files(lab.yarn_layout, spec)
    layout.logs.mkdir(exist_ok=True)
    if spec.kerberos:
        progress("starting a KDC, making keytabs")
        kerberos.start(lab.yarn_layout, spec.nodes)
    layout.scratch.mkdir()
    layout.scratch.chmod(0o1777)
    layout.write_bashrc(lab.environment()["PATH"])
    progress(f"starting {' and '.join(spec.rm_names)} and {len(spec.node_names)} NodeManagers")
    for daemon in spec.daemon_names:
        lab.start(daemon)
    if spec.flexod:
        progress("starting munged and flexod")
        make_munge_folder(layout)
        start_munged(layout, lab.environment())
        layout.flexod.mkdir()
        layout.flexo_toml.write_text(flexo_toml(layout, lab.yarn_layout, spec))
    wait_for_nodes(lab)
    if spec.infer_nodes:
        progress("giving inference nodes their label")
        label_inference_nodes(lab.yarn_layout, spec)
    if spec.flexod:
        lab.start_flexod()
    lab = YarnLab(layout, YarnRecord(spec, lab.record.number, up=True))
    lab.record.write(layout.yarn_record)
    return lab


def wait_for_nodes(lab: YarnLab) -> None:
    """Wait until the ResourceManager answers and all nodes run. Raises LabFailed with the end of its log."""
    client = lab.client()
    nodes = len(lab.spec.node_names)

    def all_run() -> bool:
        with suppress(IpcError):
            return len(client.nodes([pb.NS_RUNNING])) == nodes
        return False

    try:
        wait_until(all_run, f"{nodes} nodes to run", _UP_S, lab.yarn_layout.log("rm"))
    finally:
        client.close()
    if missing := [node for node in lab.spec.node_names if not lab.processes_of(node)]:
        raise LabFailed(f"of the NodeManagers, {', '.join(missing)} ended")


def _claim_addresses(layout: Layout, spec: YarnLabSpec) -> YarnRecord:
    """Choose the lab's number and record it, under a lock: two labs never choose at the same time."""
    root = labs_root()
    folders.check(root)
    with root_lock(root):
        records = [YarnRecord.read(Layout(root / name).yarn_record) for name in all_labs()]
        taken = frozenset(record.number for record in records if record is not None)
        (number,) = free_ports(1, taken)
        record = YarnRecord(spec, number, up=False)
        record.write(layout.yarn_record)
        return record
