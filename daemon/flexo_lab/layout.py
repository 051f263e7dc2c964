"""Paths of a lab's files. All are in one directory, so that removing the directory removes everything."""

from __future__ import annotations

import os
import shlex
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
        """The layout of the lab `name`, whether the lab exists or not.

        Every operation on a lab begins with this check; later steps read and run files in the folder.
        Raises BadSpec, and UnsafeFolder if another user can change the folder.
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
        """The specification and the ports of the lab (record.py)."""
        return self.directory / "lab.json"

    @property
    def yarn_record(self) -> Path:
        """The specification of a YARN lab (yarn/record.py), which has no lab.json."""
        return self.directory / "yarn.json"

    @property
    def slurm_conf(self) -> Path:
        """The file that SLURM_CONF names; the other Slurm files lie beside it, where Slurm looks for them."""
        return self.directory / "slurm.conf"

    @property
    def gres_conf(self) -> Path:
        """The file that says which device files are GPUs."""
        return self.directory / "gres.conf"

    @property
    def plugstack_conf(self) -> Path:
        """The file that names the SPANK plugins that Slurm loads."""
        return self.directory / "plugstack.conf"

    @property
    def cgroup_conf(self) -> Path:
        """The file that disables cgroups, for releases of Slurm that know this setting."""
        return self.directory / "cgroup.conf"

    @property
    def job_submit(self) -> Path:
        """The site's job_submit.lua."""
        return self.directory / "job_submit.lua"

    @property
    def slurmdbd_conf(self) -> Path:
        """slurmdbd's configuration, only in profile accounting."""
        return self.directory / "slurmdbd.conf"

    @property
    def prolog(self) -> Path:
        """The program that slurmd runs before a job, only where GPUs can be shared."""
        return self.directory / "prolog"

    @property
    def plugin(self) -> Path:
        """Directory of copies of slurm_plugin's parts, because only root may be able to read the checkout."""
        return self.directory / "plugin"

    @property
    def devices(self) -> Path:
        """Directory of the device files of the fake GPUs."""
        return self.directory / "dev"

    @property
    def logs(self) -> Path:
        """Directory of one log for each daemon, and of jobs.txt, with a line for each ended job."""
        return self.directory / "log"

    @property
    def state(self) -> Path:
        """Directory of slurmctld's saved state."""
        return self.directory / "state"

    @property
    def spool(self) -> Path:
        """Directory with one spool directory for each slurmd."""
        return self.directory / "spool"

    @property
    def munge(self) -> Path:
        """Directory of the key and the socket of the lab's munged."""
        return self.directory / "munge"

    @property
    def munge_socket(self) -> Path:
        """The socket that AuthInfo=socket= and FLEXO_MUNGE_SOCKET name."""
        return self.munge / "munge.socket"

    @property
    def slurm_key(self) -> Path:
        """The key of auth/slurm, where Slurm looks for it: beside slurm.conf."""
        return self.directory / "slurm.key"

    @property
    def database(self) -> Path:
        """MariaDB's data directory."""
        return self.directory / "database"

    @property
    def database_scratch(self) -> Path:
        """MariaDB's temporary tables."""
        return self.directory / "database-scratch"

    @property
    def database_socket(self) -> Path:
        """The only socket on which MariaDB listens."""
        return self.database / "mariadb.socket"

    @property
    def scratch(self) -> Path:
        """The default working directory of commands. Every user may write in it."""
        return self.directory / "scratch"

    @property
    def sharing(self) -> Path:
        """The directory in which the coordinator of each node has its folder, by the node's name."""
        return self.scratch / "sharing"

    @property
    def bashrc(self) -> Path:
        """The file that bash starts with in `flexo lab shell`."""
        return self.directory / "bashrc"

    def write_bashrc(self, path: str) -> None:
        """Write the lab's bashrc: it runs the user's own ~/.bashrc, then sets PATH and the prompt."""
        self.bashrc.write_text(
            "[ -f ~/.bashrc ] && . ~/.bashrc\n"
            f"PATH={shlex.quote(path)}:$PATH\n"
            f"PS1='(lab {self.name}) \\w\\$ '\n"
        )

    @property
    def flexo_toml(self) -> Path:
        """The file that FLEXO_CONFIG names."""
        return self.directory / "flexo.toml"

    @property
    def flexod(self) -> Path:
        """The directory of flexod's event store."""
        return self.directory / "flexod"
