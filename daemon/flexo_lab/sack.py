"""The sack of a lab without MUNGE: the key, and the folders of its sockets, which have fixed places."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from flexo.clusters.slurm.releases import Release
from flexo_lab.errors import LabUnavailable
from flexo_lab.layout import Layout
from flexo_lab.processes import Account
from flexo_lab.requirements import installed_release
from flexo_protos.sack import SOCKETS

SINCE: Final = Release(24, 5)
"""The first release whose sack flexo asks in its own words (flexo_protos/sack.py)."""
_KEY_BYTES: Final = 128
_OF_SLURMCTLD: Final = Path("/run/slurmctld")


def prepare(layout: Layout) -> None:
    """Make the key, and the folder of slurmctld's socket. Raises LabUnavailable if this machine's Slurm is
    too old, or if another cluster has the sockets already."""
    release = installed_release()
    if release < SINCE:
        raise LabUnavailable(f"a lab without MUNGE needs Slurm {SINCE} or later; this machine has {release}")
    for path in SOCKETS:
        if _is_served(path):
            raise LabUnavailable(f"a Slurm with auth/slurm runs on this machine: it listens at {path}")
    slurm = Account.named("slurm")
    layout.slurm_key.touch(mode=0o600)
    layout.slurm_key.write_bytes(os.urandom(_KEY_BYTES))
    _OF_SLURMCTLD.mkdir(mode=0o755, exist_ok=True)
    for owned in (layout.slurm_key, _OF_SLURMCTLD):
        os.chown(owned, slurm.uid, slurm.gid)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        return tried.connect_ex(path) == 0
