"""Brings a lab up: files, munged, slurmctld, slurmds and the profile's additions. All of it, or nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from flexo_lab import accounting, folders, sack
from flexo_lab.controller import node_states, start_slurmctld
from flexo_lab.errors import LabBusy, LabExists, LabFailed, LabUnavailable
from flexo_lab.flexod import write_flexo_toml
from flexo_lab.lab import Lab, all_labs
from flexo_lab.layout import Layout
from flexo_lab.ports import free_ports
from flexo_lab.processes import Account, daemons_of, start_daemonizing, wait_until
from flexo_lab.record import Ports, Record, says_up
from flexo_lab.requirements import program, require
from flexo_lab.slurm_files import gpus_of_nodes, plugin_sources, write_slurm_files
from flexo_lab.spec import LabSpec, Profile
from flexo_lab.teardown import Progress, dismantle, locked, silent, take_down
from flexo_lab.web import start_web

_LOCAL_MAJORS = range(240, 255)  # Linux, admin-guide/devices.txt: for local and experimental use
_NODES_S = 60.0
T = TypeVar("T")


def bring_up(spec: LabSpec, progress: Progress = silent) -> Lab:
    """Bring a lab up and return it with all nodes idle. Remove the remains of a killed `up` first.

    Raises LabUnavailable, UnsafeFolder, LabExists, LabBusy, LabFailed. After any error, Ctrl-C included,
    nothing of the lab stays.
    """
    require(spec.profile)
    layout = Layout.of(spec.name)
    return build_or_nothing(layout, lambda: _build(layout, spec, progress), progress)


def build_or_nothing(layout: Layout, build: Callable[[], T], progress: Progress) -> T:
    """Return what `build` makes in the lab's new directory. After any error, nothing of the lab stays.

    Removes the remains of a killed bring-up first. Raises UnsafeFolder, LabExists, LabBusy, LabFailed.
    """
    _refuse_if_up(layout)
    if layout.directory.exists():
        progress(f"clearing away what an earlier lab '{layout.name}' left")
        take_down(layout.name, progress, patience_s=0)
    _make_directory(layout)
    with locked(layout, timeout_s=0):
        try:
            return build()
        except BaseException:
            with _undisturbed():
                dismantle(layout, progress)
            raise


def _refuse_if_up(layout: Layout) -> None:
    """Raise LabExists if a record, of any kind of lab, says "up" and a daemon of the lab lives.

    After a reboot there is only the record.
    """
    says = says_up(layout.record) or says_up(layout.yarn_record)
    if says and daemons_of(layout.directory):
        name = layout.name
        raise LabExists(f"the lab '{name}' is up already: use it, or `flexo lab down {name}` first")


def _make_directory(layout: Layout) -> None:
    for _ in range(3):  # `down` of the last lab removes the root too, and may just have done so
        with suppress(FileNotFoundError):
            layout.directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folders.check(layout.directory.parent)  # another user may have made it first
            try:
                layout.directory.mkdir(mode=0o755)
            except FileExistsError:
                raise LabBusy(f"another process is just bringing up the lab '{layout.name}'") from None
            return
    raise LabFailed(f"{layout.directory} cannot be made")


def _build(layout: Layout, spec: LabSpec, progress: Progress) -> Lab:
    record = _claim_ports(layout, spec)
    lab = Lab(layout, record)
    environment = lab.environment()
    progress("writing Slurm's files")
    missing = _write_files(layout, record)
    layout.write_bashrc(environment["PATH"])
    if missing:
        progress(f"(without {', '.join(missing)}: not built in {plugin_sources()})")
    if spec.auth_slurm:
        progress("making the key of auth/slurm")
        sack.prepare(layout)
    else:
        progress("starting munged")
        start_munged(layout, environment)
    if spec.profile is Profile.ACCOUNTING:
        progress("starting MariaDB")
        accounting.start_database(layout, environment)
        progress("starting slurmdbd, adding users")
        accounting.start_slurmdbd(layout, record, environment)
        accounting.add_users(record, environment)
    progress("starting slurmctld")
    start_slurmctld(layout, environment)
    progress(f"starting {len(spec.node_names)} slurmd")
    _start_slurmds(layout, spec, environment)
    if spec.flexod:
        progress("starting flexod")
        lab.start_flexod()
    if spec.web:
        progress("starting flexo-web")
        start_web(layout, record, lab.environment(spec.web_account))
    lab = Lab(layout, Record(spec, record.ports, up=True))
    lab.record.write(layout.record)
    return lab


def _claim_ports(layout: Layout, spec: LabSpec) -> Record:
    """Choose ports and record them, under a lock: two labs never choose at the same time."""
    with root_lock(layout.directory.parent):
        others = [Record.read(layout.directory.parent / name / layout.record.name) for name in all_labs()]
        promised = frozenset(port for other in others if other for port in other.ports.all())
        slurmctld, flexod, dbd, web, *slurmds = free_ports(4 + len(spec.node_names), promised)
        dbd = dbd if spec.profile is Profile.ACCOUNTING else 0
        web = web if spec.web else 0
        record = Record(spec, Ports(slurmctld, flexod, tuple(slurmds), dbd, web), up=False)
        record.write(layout.record)
        return record


@contextmanager
def root_lock(root: Path) -> Iterator[None]:
    """Hold the lock under which labs choose ports and addresses."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for milliseconds
        yield
    finally:
        os.close(descriptor)


def make_folders(layout: Layout) -> None:
    """Make the folders that Slurm's daemons and jobs write to."""
    slurm = Account.named("slurm")
    for directory in (layout.logs, layout.state):
        directory.mkdir(mode=0o755)
        os.chown(directory, slurm.uid, slurm.gid)
    make_munge_folder(layout)
    layout.spool.mkdir(mode=0o755)
    layout.scratch.mkdir()
    layout.scratch.chmod(0o1777)


def make_munge_folder(layout: Layout) -> None:
    """Make the folder of munged's key and socket."""
    munge = Account.named("munge")
    layout.munge.mkdir(mode=0o755)
    os.chown(layout.munge, munge.uid, munge.gid)


def _write_files(layout: Layout, record: Record) -> tuple[str, ...]:
    make_folders(layout)
    _make_devices(layout, record.spec)
    write_flexo_toml(layout, record)
    return write_slurm_files(layout, record)


def _make_devices(layout: Layout, spec: LabSpec) -> None:
    """Make a character device for each GPU, with a number of its own. No driver answers if one is opened."""
    major = _unused_major()
    minor = 0
    for node, gpus, _ in gpus_of_nodes(spec):
        (layout.devices / node).mkdir(parents=True)
        for gpu in range(gpus):
            device = layout.devices / node / f"nvidia{gpu}"
            try:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            except PermissionError:
                raise LabUnavailable(
                    "a lab needs device files for its GPUs, and root may not make any here (CAP_MKNOD)"
                ) from None
            minor += 1


def _unused_major() -> int:
    """A major number for local use that no driver of this kernel has."""
    text = Path("/proc/devices").read_text().partition("Block devices:")[0]
    used = {int(words[0]) for line in text.splitlines() if (words := line.split()) and words[0].isdigit()}
    free = [major for major in _LOCAL_MAJORS if major not in used]
    if not free:
        raise LabFailed("all character device majors for local use (240 to 254) are in use here")
    return free[-1]


def start_munged(layout: Layout, environment: Mapping[str, str]) -> None:
    """Start munged with a key of its own, at the lab's own socket. Raises LabFailed."""
    munge = Account.named("munge")
    key = layout.munge / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    os.chown(key, munge.uid, munge.gid)
    command = [
        program("munged"),
        "--force",  # the directories above the lab's are the site's
        f"--key-file={key}",
        f"--socket={layout.munge_socket}",
        f"--pid-file={layout.munge}/munged.pid",
        f"--log-file={layout.munge}/munged.log",
        f"--seed-file={layout.munge}/munged.seed",
    ]
    start_daemonizing(command, layout.logs / "munged.out", environment, munge)


def _start_slurmds(layout: Layout, spec: LabSpec, environment: Mapping[str, str]) -> None:
    for node in spec.node_names:
        command = [program("slurmd"), "-f", str(layout.slurm_conf), "-N", node]
        start_daemonizing(command, layout.logs / f"slurmd-{node}.out", environment)
    patience_s = _NODES_S + len(spec.node_names)
    try:
        wait_until(
            lambda: set(node_states(environment)) == {"idle"},
            f"{len(spec.node_names)} nodes to be idle",
            patience_s,
            layout.logs / "slurmctld.log",
        )
    except LabFailed as failure:
        raise LabFailed(f"nodes are {', '.join(node_states(environment))}; {failure}") from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals: a second Ctrl-C does not stop the clean-up. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
