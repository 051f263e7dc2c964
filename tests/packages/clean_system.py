"""A clean folder system: Debian's smallest, with what our packages depend on and nothing of ours.

Made once by mmdebstrap (root; some 90 MB from Debian's mirror) and kept where set-up keeps its downloads.
Programs in it run in name spaces of their own, so nothing stays mounted or running.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INCLUDED = (
    *("python3", "slurm-client", "munge", "libstdc++6", "init-system-helpers"),
    *("systemd-standalone-sysusers", "systemd-standalone-tmpfiles"),
)
_ENTER = 'mount -t proc proc /proc && exec "$@"'
_CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


def why_impossible() -> str | None:
    """One sentence saying what is missing, or None."""
    if os.geteuid() != 0:
        return "a clean folder system needs root"
    if platform.freedesktop_os_release().get("ID") != "debian":
        return "the packages are built for the Debian that they are built on, and this is none"
    missing = [name for name in ("mmdebstrap", "dpkg-deb", "unshare") if shutil.which(name) is None]
    return f"{missing[0]} is not installed" if missing else None


def archive() -> Path:
    """The system as a tar file, made if it is not there yet."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    known = hashlib.sha256(" ".join(INCLUDED).encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flexo"
    path = Path(os.environ.get("FLEXO_CACHE") or cache) / "roots" / f"{suite}-{known}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(INCLUDED)}", suite]
        subprocess.run([*command, str(made)], check=True, timeout=800)
        made.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class CleanSystem:
    """One that is unpacked in `root`."""

    root: Path

    @classmethod
    def unpacked(cls, root: Path) -> CleanSystem:
        """A fresh one."""
        root.mkdir()
        subprocess.run(["tar", "-xf", str(archive()), "-C", str(root)], check=True)
        return cls(root)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in it, as root. Output and error output together."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(self.root)]
        return subprocess.run(
            [*enter, "/bin/sh", "-c", _ENTER, "sh", *command],
            env=_CLEAN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=check,
            timeout=240,
        )

    def dpkg(self, *arguments: str, packages: Sequence[Path] = ()) -> str:
        """Run dpkg, with package files of this machine; what it says."""
        folder = self.root / "packages"
        folder.mkdir(exist_ok=True)
        for package in packages:
            shutil.copy(package, folder)
        done = self.run(
            "dpkg",
            "--force-confdef",
            "--force-confold",
            "--force-unsafe-io",  # nobody needs this system after a power failure
            *arguments,
            *(f"/packages/{package.name}" for package in packages),
            check=False,
        )
        shutil.rmtree(folder)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def path(self, path: str) -> Path:
        """Where a file of it is for us."""
        return self.root / path.lstrip("/")
