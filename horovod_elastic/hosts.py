"""The command `flexo hosts`: elastic hosts for launch lines with `horovodrun --host-discovery-script`.

horovodrun calls the command once a second. The first call starts a background process: a leader without
workers, which holds the satellites that flexod grants and writes the present hosts to a file. Every later
call prints that file. The process ends when no call has come for a while, because horovodrun or the job is
gone then.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flexo_protos.credentials import new_authenticator
from flexo_protos.lease_place import Kind, LeasePlace
from horovod_elastic import network, open_files
from horovod_elastic.agent.lease_handle import AgentLeaseHandle
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.election.election import Election, Role
from horovod_elastic.election.lease_client import JobRun
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.election.lease_places import open_lease
from horovod_elastic.job_plan import BaseJob, JobPlan
from horovod_elastic.leader.leader import Leader
from horovod_elastic.leader.leader_service import LeaderPort
from horovod_elastic.leader.membership.commands import Command, Dismiss
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.roster import Running
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import NotInAJob, Platform, with_satellite_options
from horovod_elastic.trace import say

DRAIN_S = 8.0
"""Time from a host's removal from the list to its satellite's end: horovodrun polls, and workers commit."""
FORGOTTEN_S = 30.0
"""After this time without a call, the background process gives its satellites back and ends."""
WRITE_INTERVAL_S = 0.5
USAGE = """usage: horovodrun --min-np MIN --max-np MAX --host-discovery-script "flexo hosts" ... COMMAND

Prints the hosts of this elastic job as HOST:SLOTS lines, for stock elastic horovodrun inside a Slurm job that
was submitted with --elastic=MIN-MAX. horovodrun starts its workers on other nodes through ssh, and stops
everybody when hosts change; `flexo run COMMAND` does neither."""


class HeldHosts(Membership):
    """The membership of a job whose workers horovodrun starts. Agents hold nodes and start no workers."""

    def __init__(self, base: BaseJob) -> None:
        super().__init__(base.workers)
        self._base = base
        self._held: dict[str, int] = {}
        self._draining: dict[str, float] = {}

    @property
    def scalable(self) -> bool:
        """Whether the job can be resized: it always can, because horovodrun resizes it."""
        return True

    @property
    def size(self) -> int:
        """Number of slots on the list."""
        return self._base.workers + sum(self._held.values())

    def hosts(self) -> list[tuple[str, int]]:
        """The cluster's node names and slots: first the base's, then the satellites' in order of arrival."""
        held = [(name.rpartition("-")[0], slots) for name, slots in self._held.items()]
        return [*((node.name, node.workers) for node in self._base.nodes), *held]

    def agent_trains(self, name: str) -> bool:
        """Whether the agent's node is on the list."""
        return name in self._held

    def agent_joined(
        self, name: str, slots: int, base: bool, now: float, running: Sequence[Running] = ()
    ) -> list[Command]:
        """Put the node of a new satellite on the list."""
        self._held[name] = slots
        return []

    def agent_lost(self, name: str, why: str, now: float) -> list[Command]:
        """Remove the node of a satellite that is gone from the list."""
        self._held.pop(name, None)
        self._draining.pop(name, None)
        return []

    def release(self, name: str, why: str, now: float) -> list[Command]:
        """Remove a satellite's node from the list; `tick` ends the satellite DRAIN_S later."""
        if self._held.pop(name, None) is not None:
            self._draining[name] = now + DRAIN_S
        return []

    def tick(self, now: float) -> list[Command]:
        """Dismiss the satellites that have drained for DRAIN_S."""
        drained = [name for name, at in self._draining.items() if now >= at]
        for name in drained:
            del self._draining[name]
        return [Dismiss(name, "its hosts have left the list") for name in drained]


def main(arguments: list[str]) -> int:
    """Entry point. Without arguments: print the hosts. `--keep` is the background process itself."""
    if arguments and arguments != ["--keep"]:
        asked_for_help = arguments in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    try:
        platform = registry.find(os.environ)
        base = platform.base_job()
        if base.opportunistic:
            raise NotInAJob("horovodrun needs workers in the base, and an opportunistic job has none there")
        folder = _private_folder(base)
        if arguments:
            return _keep(platform, base, folder)
        return _print(platform, base, folder)
    except (NotInAJob, network.NoAddress, OSError) as error:
        print(f"flexo hosts: {error}", file=sys.stderr)
        return 2


def _print(platform: Platform, base: BaseJob, folder: Path) -> int:
    (folder / "asked").touch()
    if base.elastic and not _kept(folder):
        with (folder / "log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "horovod_elastic", "hosts", "--keep"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    try:
        lines = (folder / "hosts").read_text()
    except FileNotFoundError:
        lines = _lines([(node.name, node.workers) for node in base.nodes], {}, platform)
    sys.stdout.write(lines)
    return 0


def _keep(platform: Platform, base: BaseJob, folder: Path) -> int:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    open_files.raise_limit()
    here = platform.allocation().node or base.nodes[0].name
    site = platform.site()
    address = network.own_address(platform.node_address(here), site.controller)
    daemon = daemon_address() or ""
    port = LeaderPort(address, new_authenticator())
    with LeaseServer(address, new_authenticator()) as lease_server:
        place = LeasePlace(Kind.RUN, (lease_server.endpoint,))
        plan = JobPlan(with_satellite_options(base, platform), site, "", daemon, str(place))
        lease = open_lease(place, JobRun(base.job_id, base.restart_count), new_authenticator())
        election = Election(lease, "flexo-hosts", lambda: port.endpoint, Role.FOUNDER)
        election.follow()  # returns at once, because nobody else knows of this lease yet
        hosts = HeldHosts(base)
        cluster = platform.control(plan, ["true"])
        leader = Leader(
            plan, "flexo-hosts", address, cluster, AgentLeaseHandle(election, lease), members=hosts
        )
        port.start_serving(leader)
        election.keep(leader.lost_lease)
        if daemon:
            leader.attach_to(daemon)
        else:
            say("no flexod is configured (FLEXO_DAEMON, flexo.toml): the hosts stay the base's")
        known: dict[str, str] = {}

        def write_hosts() -> None:
            _write(folder / "hosts", _lines(hosts.hosts(), known, platform))
            if time.time() - (folder / "asked").stat().st_mtime > FORGOTTEN_S:
                leader.stop(0, "nobody asks for hosts any more")

        leader.every(WRITE_INTERVAL_S, write_hosts)
        outcome = leader.run()
        election.close()
        port.close()
        lease.close()
    (folder / "hosts").unlink(missing_ok=True)
    return outcome.exit_code or 0


def _lines(hosts: list[tuple[str, int]], known: dict[str, str], platform: Platform) -> str:
    """HOST:SLOTS lines; nodes on one host are added up, because horovodrun tells hosts apart by name."""
    slots: Counter[str] = Counter()
    for node, count in hosts:
        if node not in known:
            known[node] = platform.host_name(node)
        slots[known[node]] += count
    return "".join(f"{host}:{count}\n" for host, count in slots.items())


def _private_folder(base: BaseJob) -> Path:
    """The folder that all calls of one job share; nobody else can write there."""
    mine = Path(tempfile.gettempdir(), f"flexo-{os.getuid()}")
    mine.mkdir(mode=0o700, exist_ok=True)
    status = mine.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{mine} is not a folder that belongs to you alone")
    folder = mine / f"{base.job_id}.{base.restart_count}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _kept(folder: Path) -> bool:
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)
