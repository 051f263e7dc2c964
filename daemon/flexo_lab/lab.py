"""A lab that is up: run commands on it, start and stop its daemons, take it down."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexo_lab import controller, flexod, folders, processes
from flexo_lab.environment import clean_environment
from flexo_lab.errors import LabCommandFailed, NoSuchLab
from flexo_lab.layout import Layout, labs_root
from flexo_lab.processes import Account
from flexo_lab.record import Ports, Record
from flexo_lab.spec import LabSpec
from flexo_lab.teardown import Progress, silent, take_down
from flexo_lab.web import url_of
from flexo_protos.web_login import URL_VARIABLE


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that is up, known by its directory. Any number of processes may load the same lab."""

    layout: Layout
    record: Record

    @classmethod
    def load(cls, name: str) -> Lab:
        """The lab of that name. Raises NoSuchLab, BadSpec, UnsafeFolder."""
        layout = Layout.of(name)
        record = Record.read(layout.record)
        if record is None or not record.up:
            others = ", ".join(all_labs()) or "none"
            raise NoSuchLab(f"no lab '{name}' is up; there are: {others}")
        return cls(layout, record)

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.layout.name

    @property
    def directory(self) -> Path:
        """The directory of all files of the lab."""
        return self.layout.directory

    @property
    def scratch(self) -> Path:
        """The directory in which every user may write."""
        return self.layout.scratch

    @property
    def spec(self) -> LabSpec:
        """The lab's specification."""
        return self.record.spec

    @property
    def ports(self) -> Ports:
        """The lab's TCP ports."""
        return self.record.ports

    @property
    def daemon_address(self) -> str:
        """flexod's address, the value of FLEXO_DAEMON."""
        return f"127.0.0.1:{self.ports.flexod}"

    def environment(self, user: str | None = None) -> dict[str, str]:
        """A clean environment in which every Slurm and flexo command uses this lab."""
        account = Account.named(user) if user else Account.own()
        url = url_of(self.ports)
        return {
            **clean_environment(account, self.name),
            "SLURM_CONF": str(self.layout.slurm_conf),
            "FLEXO_CONFIG": str(self.layout.flexo_toml),
            "FLEXO_DAEMON": self.daemon_address,
            **({} if self.spec.auth_slurm else {"FLEXO_MUNGE_SOCKET": str(self.layout.munge_socket)}),
            **({URL_VARIABLE: url} if url else {}),
        }

    def run(
        self,
        args: Sequence[str],
        *,
        user: str | None = None,
        check: bool = True,
        timeout: float = 60,
        cwd: Path | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this lab, as the caller or as `user`, in the lab's scratch directory.

        Raises LabCommandFailed (if `check`) and subprocess.TimeoutExpired.
        """
        account = Account.named(user) if user else None
        done = subprocess.run(
            list(args),
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(user),
            cwd=cwd or self.scratch,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
            umask=0o022,
        )
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise LabCommandFailed(f"{' '.join(args)} ended with status {done.returncode}: {said}")
        return done

    def start_flexod(self) -> None:
        """Start flexod, unless it lives, and wait until it listens. Raises LabFailed."""
        if not self.flexod_processes():
            flexod.start_flexod(self.layout, self.record, self.environment(self.spec.flexod_account))

    def stop_flexod(self, *, kill: bool = False) -> None:
        """End flexod: SIGTERM, and SIGKILL after 10 s. `kill`: SIGKILL at once."""
        if kill:
            processes.kill(self.flexod_processes())
        else:
            processes.end(self.flexod_processes(), patience_s=10)

    def restart_flexod(self, *, kill: bool = False) -> None:
        """Stop flexod and start it again."""
        self.stop_flexod(kill=kill)
        self.start_flexod()

    def flexod_processes(self) -> list[psutil.Process]:
        """The lab's living flexod processes, without the commands that flexod runs."""
        return flexod.flexod_processes(self.layout)

    def restart_slurmctld(self) -> None:
        """End slurmctld and start it again; jobs run on. Raises LabFailed."""
        pids = {daemon.pid for daemon in processes.daemons_of(self.directory) if daemon.name == "slurmctld"}
        found = [each for each in processes.belonging_to(self.directory) if each.pid in pids]
        processes.end(found, patience_s=20)
        controller.start_slurmctld(self.layout, self.environment())

    def down(self, progress: Progress = silent) -> None:
        """Take the lab down; nothing happens if it is down already. Raises LabFailed if something stays."""
        take_down(self.name, progress)


def all_labs() -> list[str]:
    """Names of all labs under the root, including labs half up or half down. Raises BadSpec, UnsafeFolder."""
    root = labs_root()
    folders.check(root)
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
