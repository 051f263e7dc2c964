"""A job's dealings with Slurm, as its user: start its agents, submit satellites, ask for them, cancel them.

Every option is explicit and the environment is clean, because a job's own variables would change what sbatch
and srun do (docs/architecture.md, "Facts"). A satellite is one node, never requeued, in a preemptible
partition; its comment tells flexod, after any restart, whose it is.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic import open_files
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.platforms.base import (
    ANSWERS_WITHIN_S,
    ENDS_WITHIN_S,
    JOB_VARIABLE,
    NODE_VARIABLE,
    VARIABLE,
    BaseState,
    Found,
    Grant,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.platforms.slurm.commands import clean_environment
from horovod_elastic.platforms.slurm.satellite_script import END

KIND_NAME = "slurm"
"""What FLEXO_PLATFORM calls it."""
KEEPER = Path(__file__).resolve().parents[2] / "agent" / "keeper.py"
SATELLITE = KEEPER.with_name("satellite.py")
"""Both run by their paths, by a Python without site packages. The second hands over to satellite_script.py:
older releases have the batch script itself there, and one may be put back while a job runs."""
_LOOK_S = 0.5
_END = END.name.removeprefix("SIG")
_BASE_STEP = "flexo-agent"
"""What the job steps of the base's agents are called."""
_TAG = re.compile(r"flexo-satellite base=(\d+) restart=(\d+) grant=(\S+) workers=(\d+)")
"""The comment of a satellite; flexod reads it too."""
# Reasons for which Slurm will not start it soon, however long we wait: limits, not the cluster's load.
_LIMIT_REASONS = (
    *("Assoc", "QOS", "Account", "Max", "Partition", "JobHeld", "JobHoldMaxRequeue"),
    *("InvalidAccount", "InvalidQOS"),
)
"""How they begin. A QOS's limits for each account are called MaxGRESPerAccount and the like."""


@dataclass(frozen=True, slots=True)
class _QueueEntry:
    """What squeue says of a job."""

    state: str
    """Compact: PD, R, CG, ..."""
    reason: str

    def status(self) -> SatelliteStatus:
        waits = self.state == "PD"
        return SatelliteStatus(
            placed=not waits, reason=self.reason, blocked=waits and self.reason.startswith(_LIMIT_REASONS)
        )


class SlurmJobControl:
    """JobControl over Slurm's commands; `environment` is that of this process."""

    name = "Slurm"

    def __init__(self, plan: JobPlan, environment: Mapping[str, str], command: Sequence[str]) -> None:
        self._plan = plan
        self._environment = {
            **clean_environment(environment),
            VARIABLE: KIND_NAME,
            JOB_VARIABLE: plan.base.job_id,
        }
        self._command = list(command)
        self._binding = ["--cpu-bind=none"] if plan.site.binds_cpus else []

    def agent_command(self, workers: int, *options: str) -> list[str]:
        """The command line of a node's keeper, which starts its agent, with `workers` slots."""
        return [
            *(sys.executable, "-I", "-S", str(KEEPER), "--slots", str(workers)),
            *("--job", self._plan.to_text(), *options, "--", *self._command),
        ]

    def step(self, workers: int) -> list[str]:
        """srun with everything explicit, for the agent of a node that holds `workers` workers.

        It gets all CPUs that the job has there; `--cpus-per-task` would give a step on one node of a base
        with uneven nodes fewer than asked for, and `--gres` is refused there (tried on Slurm 22.05).
        """
        gpus = self._gpus(workers)
        return [
            *("srun", "--nodes=1", "--ntasks=1", "--export=ALL", "--mem=0", *self._binding),
            *("--kill-on-bad-exit=0", "--whole"),
            *([f"--gpus={gpus}"] if gpus else []),
        ]

    def submit(self, grant: Grant) -> str:
        """Submit the satellite of a grant; its Slurm job id. Raises Refused."""
        base, output = self._plan.base, self._plan.output or "/dev/null"
        shape, gres = base.shape, self._gres(grant.workers)
        tag = (
            f"flexo-satellite base={base.job_id} restart={base.restart_count} "
            f"grant={grant.grant_id} workers={grant.workers}"
        )
        options = [
            *("sbatch", "--parsable", "--no-requeue", "--export=ALL", "--input=none"),
            *("--nodes=1", "--ntasks=1", f"--nodelist={grant.node}", f"--partition={grant.partition}"),
            *(f"--cpus-per-task={shape.cpus * grant.workers}", *([f"--gres={gres}"] if gres else [])),
            *([f"--mem={shape.memory_mib * grant.workers}M"] if shape.memory_mib else []),
            *([f"--account={base.account}"] if base.account else []),
            *([f"--qos={grant.qos}"] if grant.qos else []),
            f"--time={math.ceil(grant.lease_s / 60)}",
            f"--job-name={self._name}",
            f"--comment={tag}",
            *(f"--output={output}", f"--error={output}", "--open-mode=append"),
        ]
        step = [*self.step(grant.workers), *self.agent_command(grant.workers, "--grant", grant.grant_id)]
        batch = shlex.join([sys.executable, "-I", "-S", str(SATELLITE), *step])
        # Ignored until the batch script listens: it would end the shell.
        script = f"#!/bin/sh\ntrap '' {_END}\nexec {batch}\n"
        answer = self._run(options, script=script, node=grant.node)
        match = re.fullmatch(r"(\d+)(;.*)?", answer.strip())
        if match is None:
            raise Refused(f"sbatch answered '{answer.strip()[:200]}' where a job id was expected")
        return match[1]

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> subprocess.Popen[bytes]:
        """Start the agent of one of the base's own nodes; `again` if it has ended and should not have."""
        options = [f"--jobid={self._plan.base.job_id}", f"--nodelist={node}", f"--job-name={_BASE_STEP}"]
        told = [
            "--base",
            *(["--again"] if again else []),
            *([] if self._plan.site.signals_reach_all else ["--pass-signals"]),
        ]
        step = self.step(workers)
        command = [*step[:1], *options, *step[1:], *self.agent_command(workers, *told)]
        return subprocess.Popen(
            open_files.with_first_limit(command),
            env={**self._environment, NODE_VARIABLE: node},
            stdin=subprocess.DEVNULL,
        )

    def terminate_base(self) -> None:
        """SIGTERM for the agents of the base and all that runs there, as Slurm sends it. Raises Refused.

        Not through srun: that takes a SIGTERM of its own as the order to kill (tried on Slurm 22.05).
        """
        job = self._plan.base.job_id
        listed = self._run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"])
        rows = [line.split("|", 1) for line in listed.splitlines() if "|" in line]
        if steps := [step for step, name in rows if name == _BASE_STEP]:
            self._run(["scancel", "--quiet", "--signal=TERM", *steps])

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """End satellites, however far they are. Silent about those that have ended. Raises Refused.

        One that runs is asked first, and ends by itself: slurmstepd calls it CANCELLED in the job's output
        otherwise.
        """
        deadline = time.monotonic() + within_s
        left = self._queued(satellite_ids)
        with suppress(Refused):  # one may have ended meanwhile; what is left is cancelled below
            if waiting := [job_id for job_id, entry in left.items() if entry.state == "PD"]:
                self._run(["scancel", "--quiet", "--state=PENDING", *waiting])
                left = self._queued(left)
            if running := [job_id for job_id, entry in left.items() if entry.state == "R"]:
                self._run(["scancel", "--quiet", "--batch", f"--signal={_END}", *running])
        while left and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            left = self._queued(left)
        if left := {job_id: entry for job_id, entry in left.items() if entry.state != "CG"}:
            self._run(["scancel", "--quiet", *left])

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        """The command by which the user ends them."""
        return f"scancel {' '.join(satellite_ids)}"

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """Of those satellites that squeue still knows. Raises Refused."""
        return {job_id: entry.status() for job_id, entry in self._queued(satellite_ids).items()}

    def _queued(self, job_ids: Iterable[str]) -> dict[str, _QueueEntry]:
        """What squeue says of those satellites that it still knows. Raises Refused.

        A slurmctld that is killed forgets what it accepted in the last seconds, and gives those numbers to
        other jobs: only a job with the name of this job's satellites is one of them.

        Asked for one job slurmctld looks at no other, and asked for one user's it sends no others; without
        a user it sends its whole queue for two jobs, and squeue picks them out.
        """
        ids = ",".join(job_ids)
        return self._entries(self._mine, f"--name={self._name}", f"--jobs={ids}") if ids else {}

    def _entries(self, *which: str) -> dict[str, _QueueEntry]:
        entries = {}
        for line in self._run(["squeue", "--noheader", "--format=%i|%t|%r", *which]).splitlines():
            job_id, state, reason = line.split("|", 2)
            entries[job_id] = _QueueEntry(state, reason)
        return entries

    def base_state(self) -> BaseState:
        """What Slurm says of the base. Raises Refused."""
        base = self._plan.base.job_id
        entry = self._entries(f"--jobs={base}").get(base)
        if entry is None or entry.state not in ("R", "S", "CF"):
            return BaseState.ENDED
        return BaseState.SUSPENDED if entry.state == "S" else BaseState.RUNS

    def find(self) -> list[Found]:
        """The satellites of this job that are in the queue, whoever has submitted them. Raises Refused."""
        base = self._plan.base
        found = []
        which = [self._mine, f"--name={self._name}"]
        for line in self._run(["squeue", "--noheader", "--format=%i|%t|%n|%k", *which]).splitlines():
            job_id, state, node, comment = (*line.split("|", 3), "", "", "")[:4]
            tag = _TAG.fullmatch(comment.strip())
            if tag and job_id.isdecimal() and tag.group(1, 2) == (base.job_id, str(base.restart_count)):
                found.append(Found(job_id, tag[3], node, int(tag[4]), runs=state == "R"))
        return found

    @property
    def _mine(self) -> str:
        return f"--user={os.getuid()}"

    @property
    def _name(self) -> str:
        """What this job's satellites are called in Slurm."""
        return f"flexo-{self._plan.base.job_id}"

    def _gpus(self, workers: int) -> str:
        """ "[TYPE:]NUMBER" for so many workers, "" if they have none; no type for a heterogeneous job."""
        base, shape = self._plan.base, self._plan.base.shape
        kind = f"{shape.gpu_type}:" if shape.gpu_type and not base.heterogeneous else ""
        return f"{kind}{shape.gpus * workers}" if shape.gpus else ""

    def _gres(self, workers: int) -> str:
        """GPUs and other devices of so many workers on a node; "" if they have none."""
        gpus = self._gpus(workers)
        others = (self._plan.base.shape * workers).devices
        words = (":".join(filter(None, (each.name, each.type, str(each.amount)))) for each in others)
        return ",".join([*([f"gpu:{gpus}"] if gpus else []), *words])

    def _run(self, command: list[str], script: str = "", node: str = "") -> str:
        """`node`: where the script will run."""
        try:
            with _deaf_to_sigterm():
                done = subprocess.run(
                    open_files.with_first_limit(command),
                    env={**self._environment, NODE_VARIABLE: node} if node else self._environment,
                    input=script,
                    capture_output=True,
                    text=True,
                    timeout=ANSWERS_WITHIN_S,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"{command[0]}: {error}") from error
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise Refused(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """What this thread starts meanwhile does not die of SIGTERM.

    Slurm sends it to every process of a step that is to end, and what the step still asks of Slurm has to be
    answered. A blocked signal stays blocked in what is started; the other threads take it in this process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
