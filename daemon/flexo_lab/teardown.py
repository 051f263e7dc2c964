"""Takes a lab down: no process, no mount and no file of the lab stays.

This works without the lab's record, and for a lab that never came up: processes are found by the path of the
lab's directory (processes.py).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from flexo_lab.errors import LabBusy, LabFailed, LabUnavailable
from flexo_lab.layout import Layout
from flexo_lab.processes import belonging_to, end, is_alive
from flexo_lab.requirements import SYSTEM_PATH, program

Progress = Callable[[str], None]
"""A function that is called with one short line when a step begins."""

_JOBS_END_S = 4.0
_PATIENCE_S = 3.0
_ROUNDS = 10


def silent(_step: str) -> None:
    """A Progress that reports nothing."""


def take_down(name: str, progress: Progress = silent, patience_s: float = 30.0) -> bool:
    """Take the lab `name` down, in whatever state the lab is. Returns False if there was nothing of it.

    Raises LabUnavailable without root, UnsafeFolder if another user can change the lab's files, LabBusy if
    another process locks the lab for `patience_s`, and LabFailed if a process cannot be ended.
    """
    if os.geteuid() != 0:
        raise LabUnavailable("taking a lab down needs root, as bringing it up did")
    layout = Layout.of(name)
    if not layout.directory.exists() and not belonging_to(layout.directory):
        return False
    if not layout.directory.exists():
        _end_processes(layout, progress)
        return True
    with locked(layout, patience_s):
        dismantle(layout, progress)
    return True


def dismantle(layout: Layout, progress: Progress) -> None:
    """Take a lab down. The caller holds the lab's lock."""
    seen = belonging_to(layout.directory)
    if layout.slurm_conf.exists() and _controller_lives(seen):
        progress("cancelling jobs")
        _cancel_jobs(layout)
    _end_processes(layout, progress, seen)
    progress("removing files")
    _unmount_below(layout.directory)
    shutil.rmtree(layout.directory)
    with suppress(OSError):  # the root holds other labs
        layout.directory.parent.rmdir()


@contextmanager
def locked(layout: Layout, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a lab's directory. The kernel releases the lock when the process ends for any reason.

    Raises LabBusy when another process holds the lock for `timeout_s`.
    """
    descriptor = os.open(layout.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + timeout_s
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise LabBusy(
                    f"the lab '{layout.name}' is just being brought up or taken down by another process: "
                    "end that one (Ctrl-C) or wait for it"
                )
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _controller_lives(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with suppress(psutil.Error):
            if process.name() == "slurmctld":
                return True
    return False


def _cancel_jobs(layout: Layout) -> None:
    """Cancel all jobs, for at most `_JOBS_END_S`. Jobs that do not end are ended as processes later."""
    environment = {"PATH": SYSTEM_PATH, "SLURM_CONF": str(layout.slurm_conf)}

    def slurm(*command: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [program(command[0]), *command[1:]],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_JOBS_END_S,
            )
            return done.stdout if done.returncode == 0 else ""
        return ""

    deadline = time.monotonic() + _JOBS_END_S
    while (jobs := slurm("squeue", "--noheader", "--format=%A").split()) and time.monotonic() < deadline:
        slurm("scancel", "--quiet", *jobs)
        time.sleep(0.3)


def _end_processes(layout: Layout, progress: Progress, seen: list[psutil.Process] | None = None) -> None:
    """End the lab's processes, repeatedly until none is found: a process may start others meanwhile."""
    progress("ending processes")
    known = {process.pid: process for process in seen or []}
    for _ in range(_ROUNDS):
        known |= {process.pid: process for process in belonging_to(layout.directory)}
        members = [process for process in known.values() if is_alive(process)]
        if not members:
            return
        end(members, _PATIENCE_S)
    left = ", ".join(str(process.pid) for process in known.values() if is_alive(process))
    if left:
        raise LabFailed(f"of the lab '{layout.name}' these processes cannot be ended: {left}")


def _unmount_below(directory: Path) -> None:
    """Unmount what jobs have mounted below `directory`: removing files must not reach into a mount."""
    for mount in sorted((each.mountpoint for each in psutil.disk_partitions(all=True)), reverse=True):
        if mount.startswith(f"{directory}/"):
            subprocess.run([program("umount"), "--lazy", mount], check=True, capture_output=True)
