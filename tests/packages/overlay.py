"""This machine as it is, but on a layer of its own: what is installed or changed there is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MOUNT: Final = """
set -e
layer=$1
mount -t tmpfs tmpfs "$layer"
number=0
for folder in $2; do
  number=$((number + 1))
  mkdir -p "$layer/upper$number" "$layer/work$number" "$layer/root$folder"
  mount -t overlay overlay \\
    -o "lowerdir=$folder,upperdir=$layer/upper$number,workdir=$layer/work$number" "$layer/root$folder"
done
for folder in /dev /sys; do mount --rbind "$folder" "$layer/root$folder"; done
mount -t proc proc "$layer/root/proc"
mount -t tmpfs tmpfs "$layer/root/run"
ip link set lo up
ip address add 192.0.2.1/32 dev lo
shift 2
exec chroot "$layer/root" "$@"
"""
"""$1: an empty folder; $2: folders that are file systems of their own, / first; the rest is what to run.

The address (RFC 5737) is for getaddrinfo(3), which finds nothing on a host with no other than 127.0.0.1."""
_ENTER: Final = (
    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"),
)
_KERNELS: Final = ("/dev", "/proc", "/run", "/sys")


def why_impossible(folder: Path) -> str | None:
    """One sentence saying what is missing, or None. `folder` is an empty one, for trying."""
    if os.geteuid() != 0:
        return "a layer over this machine needs root"
    missing = [name for name in ("unshare", "chroot", "setpriv", "ip", "dpkg") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    tried = subprocess.run(_entered(folder, ["true"]), capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no layer can be mounted here: {tried.stderr.strip()[:300]}"


@contextmanager
def running(folder: Path, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`command`, as root, on a layer over this machine, with processes and ports of its own.

    The processes end with it, and it ends with us, however we end.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *_entered(folder, command)],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _entered(folder: Path, command: Sequence[str]) -> list[str]:
    return [*_ENTER, "/bin/sh", "-c", _MOUNT, "sh", str(folder), " ".join(_file_systems()), *command]


def _file_systems() -> list[str]:
    """Folders on which something is mounted, / first; but for the kernel's own, and for single files."""
    mounted = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    return sorted(
        place
        for place in mounted
        if not any(Path(place).is_relative_to(kernels) for kernels in _KERNELS)
        if place.isascii() and not set(place) & set(" \\:,")
        if Path(place).is_dir()
    )
