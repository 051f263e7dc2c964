"""Carries faults out on a lab, and makes good again what was done, as an administrator or systemd would."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos import victims
from chaos.checker import read
from chaos.plan import Victim
from chaos.system.evidence import Strike
from chaos.system.link import Link
from chaos.system.plan import LINKS, Deed, Fault, Target
from flexo_lab import Lab, LabFailed
from flexo_lab import controller as slurmctld
from flexo_lab.processes import belonging_to, daemons_of, start_daemonizing
from flexo_lab.requirements import program

_STARTS_AGAIN_S = 60.0
_VICTIMS = {Target.LEADER: Victim.LEADER, Target.AGENT: Victim.AGENT, Target.WORKER: Victim.WORKER}


@dataclass
class Hands:
    """All that can be done to a cluster. `over` is set when the run ends: then everything is made good."""

    lab: Lab
    links: Mapping[Target, Link]
    jobs: list[tuple[int, Path]] = field(default_factory=list)
    """Elastic jobs and their folders."""
    over: threading.Event = field(default_factory=threading.Event)
    wanted: set[str] = field(default_factory=set)
    """Daemons that ought to run: those of the lab, without those that are down on purpose."""

    def strike(self, fault: Fault) -> Strike | None:
        """Do it, and make it good `for_s` later; None if there was no such victim. Takes as long as that."""
        if fault.target in LINKS:
            return self._disconnect(fault)
        if fault.target in _VICTIMS:
            return self._hit_job(fault)
        return self._hit_daemon(fault)

    def missing(self) -> set[str]:
        """Daemons that ought to run and do not."""
        wanted = set(self.wanted)
        found = {daemon.name for daemon in daemons_of(self.lab.directory)}
        return (wanted - found) & self.wanted

    def release(self, held: Iterable[int]) -> None:
        """Let jobs run that Slurm holds because they could not be launched, on nodes that it drained for it.

        slurmctld that is killed forgets the job that it has just started, gives its number to the next one,
        and finds the first one's processes on that one's node ("Duplicate jobid").
        """
        listed = self.lab.run(["sinfo", "--noheader", "--list-reasons", "--format=%N|%E"], check=False).stdout
        for nodes, _, reason in (line.partition("|") for line in listed.splitlines()):
            if reason.startswith("Duplicate jobid"):
                self.lab.run(["scontrol", "update", f"NodeName={nodes}", "State=RESUME"], check=False)
        for job_id in held:
            self.lab.run(["scontrol", "release", str(job_id)], check=False)

    def cancel(self, jobs: Iterable[int]) -> None:
        """End jobs whose end slurmctld has forgotten (see `slurm_checks.end_is_forgotten`)."""
        for job_id in jobs:
            self.lab.run(["scancel", str(job_id)], check=False)

    # --- connections

    def _disconnect(self, fault: Fault) -> Strike:
        link, at = self.links[fault.target], time.time()
        (link.cut if fault.deed is Deed.CUT else link.stall)()
        self.over.wait(fault.for_s)
        link.open()
        return Strike(at, time.time(), fault.target, fault.deed, fault.target)

    # --- daemons

    def _hit_daemon(self, fault: Fault) -> Strike | None:
        name = self._daemon(fault)
        found = processes_of(self.lab, name)
        if not found:
            return None
        at = time.time()
        if fault.deed is Deed.HOLD:
            with _held(found):
                self.over.wait(fault.for_s)
        else:
            self.wanted.discard(name)
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.over.wait(fault.for_s)
            self._start(name)
            self.wanted.add(name)
        return Strike(at, time.time(), fault.target, fault.deed, name)

    def _daemon(self, fault: Fault) -> str:
        if fault.target is not Target.SLURMD:
            return str(fault.target)
        nodes = self.lab.spec.node_names
        return f"slurmd {nodes[min(int(fault.choice * len(nodes)), len(nodes) - 1)]}"

    def _start(self, name: str) -> None:
        """As systemd does: again and again, while Slurm or the machine is not ready for it."""
        deadline = time.monotonic() + _STARTS_AGAIN_S
        while True:
            try:
                self._start_once(name)
            except LabFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
            else:
                return

    def _start_once(self, name: str) -> None:
        layout, environment = self.lab.layout, self.lab.environment()
        if name == Target.FLEXOD:
            self.lab.start_flexod()
        elif name == Target.SLURMCTLD:
            slurmctld.start_slurmctld(layout, environment)
        else:
            node = name.split()[1]
            command = [program("slurmd"), "-f", str(layout.slurm_conf), "-N", node]
            start_daemonizing(command, layout.logs / f"slurmd-{node}.out", environment)

    # --- processes of jobs

    def _hit_job(self, fault: Fault) -> Strike | None:
        """One of that job's, or of another if that one has none at the moment."""
        for place in range(len(self.jobs)):
            job_id, folder = self.jobs[(fault.job + place) % len(self.jobs)]
            alive = victims.of_job(folder)
            leader = victims.leader_name(folder / "trace.jsonl")
            victim = victims.choose(_VICTIMS[fault.target], fault.choice, alive, leader)
            if victim is not None:
                return self._hit_process(fault, job_id, folder, victim, alive)
        return None

    def _hit_process(
        self, fault: Fault, job_id: int, folder: Path, victim: victims.Process, alive: list[victims.Process]
    ) -> Strike | None:
        worlds = read(folder / "logs").worlds
        living = {process.pid for process in alive if process.kind is Victim.WORKER}
        holders = (worlds[-1].workers if worlds else set()) & living
        orphaned = victims.all_of(victim, alive, holders)
        what = f"{victim.kind} {victim.pid} of job {job_id} on {victim.node}"
        at = until = time.time()
        try:
            if fault.deed is Deed.HOLD:
                with _held([psutil.Process(victim.pid)]):
                    self.over.wait(fault.for_s)
                until = time.time()
            else:
                os.kill(victim.pid, signal.SIGKILL)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return None
        return Strike(at, until, fault.target, fault.deed, what, job_id, orphaned)


def processes_of(lab: Lab, name: str) -> list[psutil.Process]:
    """The processes of a daemon of the lab, by its name in `flexo lab status`."""
    pids = {daemon.pid for daemon in daemons_of(lab.directory) if daemon.name == name}
    return [process for process in belonging_to(lab.directory) if process.pid in pids]


@contextlib.contextmanager
def _held(processes: list[psutil.Process]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT whatever happens; one that is gone by then is nobody's concern."""
    _each(processes, psutil.Process.suspend)
    try:
        yield
    finally:
        _each(processes, psutil.Process.resume)


def _each(processes: list[psutil.Process], what: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            what(process)
