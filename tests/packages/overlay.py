"""This machine as it is, but on a layer of its own: what is installed or changed there is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MOUNT = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for folder in /dev /sys $2; do mount --rbind "$folder" "$1/root$folder"; done
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
root="$1/root"
shift 2
exec chroot "$root" "$@"
"""
"""$1: an empty folder; $2: folders that are file systems of their own; the rest is what to run."""


def why_impossible() -> str | None:
    """One sentence saying what is missing, or None."""
    if os.geteuid() != 0:
        return "a layer over this machine needs root"
    missing = [name for name in ("unshare", "chroot", "dpkg") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlay file system"
    return None


@contextmanager
def running(folder: Path, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`command`, as root, on a layer over this machine, with processes of its own, which end with it."""
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/root"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*enter, "/bin/sh", "-c", _MOUNT, "sh", str(folder), " ".join(_others()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _others() -> list[str]:
    """Folders whose files the layer over / would not show: mounts of disks and the like."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    plain = {"ext4", "xfs", "btrfs", "zfs", "virtiofs", "9p", "fuse", "nfs", "nfs4"}
    return sorted({place for _, place, kind, *_ in mounts if kind in plain and place != "/"})
