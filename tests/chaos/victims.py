"""A job's processes on this machine: who they are, and what they listen on."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.plan import Victim


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job: a worker, an agent (also if it leads) or a supervisor."""

    kind: Victim
    pid: int
    node: str
    slurm_job: int

    @property
    def agent_name(self) -> str:
        """Of its agent, as the leader's trace calls it."""
        return f"{self.node}-{self.slurm_job}"


def of_job(folder: Path) -> list[Process]:
    """Workers (they have a log in `folder`/logs), agents and supervisors, in order of their start.

    All processes of a job have its folder in their command lines.
    """
    workers = {int(path.stem) for path in (folder / "logs").glob("*.jsonl")}
    found = []
    for process in psutil.process_iter():
        # Of a process that is just ending nothing is said, not even its environment.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, KeyError):
            kind = _kind(process, workers) if _belongs(process, folder) else None
            if kind is not None:
                found.append((process.create_time(), _process(process, kind)))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def _kind(process: psutil.Process, workers: set[int]) -> Victim | None:
    words = process.cmdline()
    if process.pid in workers:
        return Victim.WORKER
    if not words or words[0].endswith("srun"):  # none: it is just ending
        return None
    if any(
        word.endswith("/satellite.py") for word in words
    ):  # a batch script, which names the supervisor too
        return None
    if "agent" in words:
        return Victim.AGENT
    return Victim.SUPERVISOR if any(word.endswith("/supervisor.py") for word in words) else None


def _process(process: psutil.Process, kind: Victim) -> Process:
    environment = process.environ()
    return Process(kind, process.pid, environment["SLURMD_NODENAME"], int(environment["SLURM_JOB_ID"]))


def leader_name(trace: Path) -> str:
    """Who leads now, as the trace has it; "" if nobody has said so yet."""
    leader = ""
    if trace.exists():
        for line in trace.read_text().splitlines(keepends=True):
            if line.endswith("\n") and (fields := json.loads(line))["event"] == "leader":
                leader = fields["agent"]
    return leader


def choose(victim: Victim, choice: float, alive: list[Process], leader: str) -> Process | None:
    """The process to hit; None while there is no such process. `choice` from 0 to 1."""
    leading = [each for each in alive if each.kind is Victim.AGENT and each.agent_name == leader]
    alike = [each for each in alive if each.kind is victim]
    candidates = {
        Victim.AGENT: [each for each in alike if each not in leading] or alike,
        Victim.LEADER: leading,
    }.get(victim, alike)
    return candidates[min(int(choice * len(candidates)), len(candidates) - 1)] if candidates else None


def all_of(victim: Process, alive: list[Process], workers: set[int]) -> bool:
    """Whether `workers` (pids) end with the victim, all of them."""
    gone = {victim.pid}
    if victim.kind is Victim.SUPERVISOR:
        gone |= {process.pid for process in alive if process.agent_name == victim.agent_name}
    return workers <= gone


def everything(folder: Path) -> set[int]:
    """Pids of all processes with the job's folder in their command lines."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _belongs(process, folder):
                found.add(process.pid)
    return found


def _belongs(process: psutil.Process, folder: Path) -> bool:
    if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
        return False
    return any(str(folder) in word for word in process.cmdline())


def listening(pids: set[int]) -> set[int]:
    """TCP ports that these processes listen on."""
    return {port for port, pid in listened_to().items() if pid in pids}


def listened_to() -> dict[int, int | None]:
    """TCP ports that anybody on this machine listens on, and who."""
    return {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }
