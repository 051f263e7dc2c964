"""Checks that this machine can have a lab, and says in one sentence why not."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

from flexo.clusters.slurm.releases import Release
from flexo_lab.errors import LabUnavailable
from flexo_lab.spec import Profile

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PACKAGE_OF = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
_PACKAGE_OF_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
}
_ACCOUNTS = ("slurm", "munge")


def program(name: str) -> str:
    """Full path of one of the system's programs. Raises LabUnavailable."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise LabUnavailable(f"a lab needs the program {name}, which is not installed")
    return path


def installed_release() -> Release:
    """The release of this machine's slurmctld. Raises LabUnavailable."""
    said = subprocess.run([program("slurmctld"), "-V"], capture_output=True, text=True, timeout=30).stdout
    release = Release.found_in(said)
    if release is None:
        raise LabUnavailable(f"`slurmctld -V` says '{said.strip()}', which names no release of Slurm")
    return release


def why_unavailable(profile: Profile = Profile.QUICK) -> str | None:
    """One sentence saying what is missing for a lab of that profile, or None."""
    if os.geteuid() != 0:
        return "a lab needs root: slurmd, munged and slurmctld each change to an account of their own"
    wanted = _PACKAGE_OF | (_PACKAGE_OF_ACCOUNTING if profile is Profile.ACCOUNTING else {})
    missing = [name for name in wanted if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        packages = " ".join(dict.fromkeys(wanted[name] for name in missing))
        return f"a lab needs {', '.join(missing)}, not installed here (on Debian: apt-get install {packages})"
    for account in _ACCOUNTS:
        try:
            pwd.getpwnam(account)
        except KeyError:
            return f"a lab needs the account '{account}', which the package of that name makes on Debian"
    return None


def require(profile: Profile) -> None:
    """Raise LabUnavailable if this machine cannot have a lab of that profile."""
    reason = why_unavailable(profile)
    if reason is not None:
        raise LabUnavailable(reason)
