"""A YARN lab that is up: its addresses and its environment; end and start its daemons; take it down."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexo_lab import processes
from flexo_lab.environment import clean_environment
from flexo_lab.errors import LabCommandFailed, NoSuchLab
from flexo_lab.flexod import run_flexod
from flexo_lab.layout import Layout
from flexo_lab.processes import Account
from flexo_lab.requirements import SYSTEM_PATH
from flexo_lab.teardown import Progress, silent, take_down
from flexo_lab.yarn import jars, kerberos
from flexo_lab.yarn.layout import CLIENT_PORT, SCHEDULER_PORT, YarnLayout
from flexo_lab.yarn.record import YarnRecord
from flexo_lab.yarn.spec import YarnLabSpec
from flexo_yarn.failover import Servers
from flexo_yarn.ipc.connection import TIMEOUT_S
from flexo_yarn.resource_manager import ResourceManager

_SERVER = "org.apache.hadoop.yarn.server"
_CLASSES = {
    "zk": "org.apache.zookeeper.server.ZooKeeperServerMain",
    "rm": f"{_SERVER}.resourcemanager.ResourceManager",
    "node": f"{_SERVER}.nodemanager.NodeManager",
}
_HEAP_MIB = {"zk": 64, "rm": 256, "node": 128}
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""Many small servers share this machine: little memory, and no compiler that takes cores from jobs."""


@dataclass(frozen=True, slots=True)
class YarnLab:
    """A YARN lab that is up, known by its directory. Any number of processes may load the same lab."""

    layout: Layout
    record: YarnRecord

    @classmethod
    def load(cls, name: str) -> YarnLab:
        """The lab of that name. Raises NoSuchLab, BadSpec, UnsafeFolder."""
        layout = Layout.of(name)
        record = YarnRecord.read(layout.yarn_record)
        if record is None or not record.up:
            raise NoSuchLab(f"no YARN lab '{name}' is up")
        return cls(layout, record)

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.layout.name

    @property
    def spec(self) -> YarnLabSpec:
        """The lab's specification."""
        return self.record.spec

    @property
    def yarn_layout(self) -> YarnLayout:
        """The lab's folders and addresses."""
        return YarnLayout(self.layout.directory, self.record.number)

    @property
    def scratch(self) -> Path:
        """The directory in which every user may write."""
        return self.layout.scratch

    @property
    def clients(self) -> Servers:
        """Where the ResourceManagers listen to clients."""
        return self._servers(CLIENT_PORT)

    @property
    def scheduler(self) -> Servers:
        """Where the ResourceManagers listen to ApplicationMasters."""
        return self._servers(SCHEDULER_PORT)

    def _servers(self, port: int) -> Servers:
        hosts = self.yarn_layout.resource_managers[: self.spec.resource_managers]
        return tuple((host, port) for host in hosts)

    def environment(self) -> dict[str, str]:
        """A clean environment in which YARN's and flexo's commands use this lab."""
        account = Account.own()
        return {
            **clean_environment(account, self.name),
            "HADOOP_CONF_DIR": str(self.yarn_layout.client_conf),
            "HADOOP_USER_NAME": account.name,
            **(kerberos.environment(self.yarn_layout) if self.spec.kerberos else {}),
            **(self._of_flexod() if self.spec.flexod else {}),
        }

    def _of_flexod(self) -> dict[str, str]:
        return {
            "FLEXO_CONFIG": str(self.layout.flexo_toml),
            "FLEXO_DAEMON": self.yarn_layout.flexod,
            "FLEXO_MUNGE_SOCKET": str(self.layout.munge_socket),
        }

    def start_flexod(self) -> None:
        """Start flexod, unless it lives, and wait until it listens. Raises LabFailed."""
        if not self.processes_of("flexod"):
            log = self.layout.logs / "flexod.log"
            run_flexod(self.layout, Account.own(), self.yarn_layout.flexod, log, self.environment())

    def stop_flexod(self, *, kill: bool = False) -> None:
        """End flexod: SIGTERM, and SIGKILL after 10 s. `kill`: SIGKILL at once."""
        found = self.processes_of("flexod")
        processes.kill(found) if kill else processes.end(found, patience_s=10)

    def run(
        self, args: Sequence[str], *, check: bool = True, timeout: float = 60, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this lab. Raises LabCommandFailed (if `check`) and subprocess.TimeoutExpired."""
        done = subprocess.run(
            list(args),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(),
            cwd=cwd or self.scratch,
            check=False,
        )
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise LabCommandFailed(f"{' '.join(args)} ended with status {done.returncode}: {said}")
        return done

    def client(self, user: str = "root", timeout_s: float = TIMEOUT_S) -> ResourceManager:
        """The ResourceManager, called as `user`: with Kerberos, by the keytab of that user."""
        proof = kerberos.proof_of(self.yarn_layout, user) if self.spec.kerberos else None
        return ResourceManager(self.clients, user=user, kerberos=proof, timeout_s=timeout_s)

    def start(self, daemon: str) -> None:
        """Start a daemon of YARN, which goes on with what it had stored. It need not answer yet."""
        kind = daemon if daemon == "zk" else "rm" if daemon in self.spec.rm_names else "node"
        java = shutil.which("java") or "java"
        command = [
            *(java, f"-Xmx{_HEAP_MIB[kind]}m", *_JVM),
            f"{processes.JAVA_NAME_OPTION}{daemon}",
            f"-Dflexo.log={self.yarn_layout.log(daemon)}",
            *([f"-Djava.security.krb5.conf={self.yarn_layout.krb5_conf}"] if self.spec.kerberos else []),
            *("-cp", f"{self.yarn_layout.conf(daemon)}:{jars.cached()}/*", _CLASSES[kind]),
            *([str(self.yarn_layout.zookeeper_cfg)] if kind == "zk" else []),
        ]
        environment = {
            "PATH": SYSTEM_PATH,
            "LANG": "C.UTF-8",
            "HADOOP_CONF_DIR": str(self.yarn_layout.conf(daemon)),
        }
        processes.start(command, self.yarn_layout.log(daemon).with_suffix(".out"), environment)

    def processes_of(self, daemon: str) -> list[psutil.Process]:
        """The living processes of a daemon of YARN or of "flexod", without containers."""
        pids = {each.pid for each in processes.daemons_of(self.layout.directory) if each.name == daemon}
        return [each for each in processes.belonging_to(self.layout.directory) if each.pid in pids]

    def kill(self, daemon: str) -> None:
        """Send SIGKILL to a daemon of YARN. Containers go on."""
        processes.kill(self.processes_of(daemon))

    def down(self, progress: Progress = silent) -> None:
        """Take the lab down; nothing happens if it is down already. Raises LabFailed if something stays."""
        take_down(self.name, progress)
