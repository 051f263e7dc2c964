"""Start, find and end the processes of a lab. Environment, command line and directory identify a process.

Nothing is remembered between commands. The processes of a lab are read from /proc each time. So a lab whose
record is lost, or whose owner was killed, can still be taken down.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexo_lab.errors import LabFailed

JAVA_NAME_OPTION = "-Dflexo.daemon="
"""The option of java that names a daemon of a YARN lab."""
_LOG_TAIL_LINES = 12
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine. Raises LabFailed for a name that it does not have."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def named(cls, name: str) -> Account:
        """Look up the account `name`."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise LabFailed(f"this machine has no account '{name}'") from None
        return cls(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)

    @classmethod
    def own(cls) -> Account:
        """The account of this process."""
        return cls.named(pwd.getpwuid(os.geteuid()).pw_name)

    @property
    def groups(self) -> list[int]:
        """Identifiers of all groups of the account."""
        return os.getgrouplist(self.name, self.gid)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon of a lab: its name and its process id."""

    name: str
    """One of munged, slurmctld, slurmd t1 (with the node), slurmdbd, mariadbd, flexod, flexo-web; of YARN,
    rm, n1 and krb5kdc."""
    pid: int


def start(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    account: Account | None = None,
) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, so that Ctrl-C in the terminal does not reach it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
            umask=0o022,
        )


def start_daemonizing(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    account: Account | None = None,
) -> None:
    """Start a daemon that goes into the background by itself. Raises LabFailed on an exit status but 0."""
    status = start(command, log, environment, account).wait(timeout=30)
    if status != 0:
        raise LabFailed(f"{Path(command[0]).name} did not start (status {status}){tail(log)}")


def wait_until(
    ready: Callable[[], bool],
    what: str,
    timeout_s: float,
    log: Path,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Poll `ready` until true. Raises LabFailed with the end of `log` on timeout or if `process` ends."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process is not None and process.poll() is not None:
            raise LabFailed(f"{what}: it ended with status {process.returncode}{tail(log)}")
        if time.monotonic() > deadline:
            raise LabFailed(f"{what}: not within {timeout_s:.0f} s{tail(log)}")
        time.sleep(_POLL_S)


def tail(log: Path) -> str:
    """The last lines of a log, as the end of a message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    except OSError:
        return f"; {log} cannot be read"
    return "\n".join([f"; {log} ends with:", *(f"    {line}" for line in lines)])


def belonging_to(directory: Path) -> list[psutil.Process]:
    """Every living process of the lab in `directory`, and all their descendants.

    A process belongs to the lab in three cases. Its environment names the lab's slurm.conf or flexo.toml. A
    word of its command line names the directory or a path in it. Its working directory is there and it has no
    terminal (a job that dropped its environment). This process and its ancestors never belong to the lab: a
    shell of the lab survives `flexo lab down`.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    living = [process for process in psutil.process_iter() if process.pid not in spared]
    members = {process.pid: process for process in living if _names(process, str(directory))}
    # Read all parents once: a lab may have thousands of processes, and psutil would scan /proc for each.
    children = _by_parent(living)
    unseen = list(members)
    while unseen:
        new = {child.pid: child for child in children.get(unseen.pop(), ()) if child.pid not in members}
        members |= new
        unseen += new
    return list(members.values())


def daemons_of(directory: Path) -> list[Daemon]:
    """The lab's daemons among its processes, by name."""
    found = [
        Daemon(name, process.pid)
        for process in belonging_to(directory)
        if (name := _daemon_name(process, directory)) is not None
    ]
    return sorted(found, key=lambda daemon: daemon.name)


def end(processes: Iterable[psutil.Process], patience_s: float) -> None:
    """Send SIGTERM, and SIGKILL after `patience_s`. Returns when all are gone, or 5 s after SIGKILL."""
    asked = list(processes)
    for process in asked:
        _quietly(process.terminate)
    kill(_still_alive(asked, patience_s))


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL. Returns when all processes are gone, or after 5 s."""
    killed = list(processes)
    for process in killed:
        _quietly(process.kill)
    _still_alive(killed, timeout_s=5)


def is_alive(process: psutil.Process) -> bool:
    """True if the process runs. A zombie does not: its parent may never collect it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _still_alive(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all processes end. Returns those still alive. Collects children of this process."""
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 2)
    for process in processes:
        # OSError: kernels report differently that a process has just ended, and psutil passes the error on.
        with suppress(psutil.Error, OSError):
            process.wait(timeout=0)
    return alive


def _names(process: psutil.Process, directory: str) -> bool:
    try:
        if not is_alive(process):
            return False
        environment = process.environ()
        if any(_lies_in(environment.get(key, ""), directory) for key in ("SLURM_CONF", "FLEXO_CONFIG")):
            return True
        if any(_mentions(word, directory) for word in process.cmdline()):
            return True
        return process.terminal() is None and _lies_in(process.cwd(), directory)
    except psutil.Error:
        return False  # the process has ended, or is a kernel thread


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _mentions(word: str, directory: str) -> bool:
    """True if `word` is a path in `directory`, or an option with one. A word with spaces never is."""
    at = word.find(directory)
    if at < 0 or any(character.isspace() for character in word):
        return False
    return word[at + len(directory) : at + len(directory) + 1] in ("", "/")


def _by_parent(processes: Iterable[psutil.Process]) -> dict[int, list[psutil.Process]]:
    found: dict[int, list[psutil.Process]] = {}
    for process in processes:
        with suppress(psutil.Error):
            found.setdefault(process.ppid(), []).append(process)
    return found


def _daemon_name(process: psutil.Process, directory: Path) -> str | None:
    try:
        command = process.cmdline()
    except psutil.Error:
        return None
    # flexod is the second word, or the third if a package has installed it: python3 -I .../flexod
    names = [Path(word).name for word in command[:3]] or [""]
    if names[0] == "slurmdbd":
        return "slurmdbd"  # it takes no argument that would name the lab
    if "flexo-web" in names:
        return "flexo-web"  # likewise
    if not any(_mentions(word, str(directory)) for word in command):
        return None  # a job's own process, or a helper such as slurmscriptd
    if names[0] == "slurmd" and "-N" in command:
        return f"slurmd {command[command.index('-N') + 1]}"
    if names[0] in ("munged", "slurmctld", "mariadbd", "krb5kdc"):
        return names[0]
    if names[0] == "java":
        options = (word for word in command if word.startswith(JAVA_NAME_OPTION))
        return next((option.removeprefix(JAVA_NAME_OPTION) for option in options), None)
    return "flexod" if "flexod" in names else None


def _quietly(signal_it: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        signal_it()
