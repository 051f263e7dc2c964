"""Where the files of a lab lie: everything under one directory, so that taking it away takes all away."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flexo_lab import folders
from flexo_lab.errors import BadSpec
from flexo_lab.spec import check_name

ROOT_VARIABLE = "FLEXO_LABS"
DEFAULT_ROOT = Path("/var/tmp/flexo-labs")
_LONGEST_ROOT = 56  # sockets' paths end at 107 bytes


def labs_root() -> Path:
    """The directory of all labs: $FLEXO_LABS or /var/tmp/flexo-labs."""
    root = Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)
    if not root.is_absolute() or len(os.fsencode(root)) > _LONGEST_ROOT or " " in str(root):
        raise BadSpec(
            f"{ROOT_VARIABLE}={root}: allowed is an absolute path without spaces, up to {_LONGEST_ROOT} B"
        )
    return root


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the lab in `directory`."""

    directory: Path

    @classmethod
    def of(cls, name: str) -> Layout:
        """The place of the lab `name`, whether it exists or not.

        Everything that is done with a lab begins here: what the folder holds is read and run after this.
        Raises BadSpec, and UnsafeFolder if another user can change what is there.
        """
        check_name(name)
        root = labs_root()
        folders.check(root, name)
        return cls(root / name)

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.directory.name

    @property
    def record(self) -> Path:
        """What the lab is and on which ports (record.py)."""
        return self.directory / "lab.json"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names; the other Slurm files lie beside it, where Slurm looks for them."""
        return self.directory / "slurm.conf"

    @property
    def gres_conf(self) -> Path:
        """Which device files are GPUs."""
        return self.directory / "gres.conf"

    @property
    def plugstack_conf(self) -> Path:
        """Which SPANK plugins are loaded."""
        return self.directory / "plugstack.conf"

    @property
    def cgroup_conf(self) -> Path:
        """That there are no cgroups, for releases that want to be told."""
        return self.directory / "cgroup.conf"

    @property
    def job_submit(self) -> Path:
        """The site's job_submit.lua."""
        return self.directory / "job_submit.lua"

    @property
    def slurmdbd_conf(self) -> Path:
        """Only in profile accounting."""
        return self.directory / "slurmdbd.conf"

    @property
    def plugin(self) -> Path:
        """Copies of slurm_plugin's parts: the checkout may lie where only root can read."""
        return self.directory / "plugin"

    @property
    def devices(self) -> Path:
        """The GPUs that are not there."""
        return self.directory / "dev"

    @property
    def logs(self) -> Path:
        """One log for each daemon, and jobs.txt, a line for each ended job."""
        return self.directory / "log"

    @property
    def state(self) -> Path:
        """slurmctld's memory."""
        return self.directory / "state"

    @property
    def spool(self) -> Path:
        """One directory for each slurmd."""
        return self.directory / "spool"

    @property
    def munge(self) -> Path:
        """Key and socket of the lab's munged."""
        return self.directory / "munge"

    @property
    def munge_socket(self) -> Path:
        """What AuthInfo=socket= and FLEXO_MUNGE_SOCKET name."""
        return self.munge / "munge.socket"

    @property
    def database(self) -> Path:
        """MariaDB's data directory."""
        return self.directory / "database"

    @property
    def database_socket(self) -> Path:
        """MariaDB's only door."""
        return self.database / "mariadb.socket"

    @property
    def scratch(self) -> Path:
        """Where commands run when nothing else is said: everybody may write here."""
        return self.directory / "scratch"

    @property
    def bashrc(self) -> Path:
        """What bash starts with in `flexo lab shell`."""
        return self.directory / "bashrc"

    @property
    def flexo_toml(self) -> Path:
        """What FLEXO_CONFIG names."""
        return self.directory / "flexo.toml"

    @property
    def flexod(self) -> Path:
        """flexod's own directory: its journal."""
        return self.directory / "flexod"
