"""A job's requests to Slurm, as its user: start agents, and submit, poll and cancel satellites.

Every option is explicit and the environment is clean, because a job's own variables would change what sbatch
and srun do (docs/explanation/architecture.md, "Facts"). A satellite has one node, is never requeued, and is
in a preemptible partition. After any restart, flexod reads from its comment which job it belongs to.
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
    GrantedWorkers,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.platforms.slurm.commands import clean_environment
from horovod_elastic.platforms.slurm.satellite_script import END

KIND_NAME = "slurm"
"""The value of FLEXO_PLATFORM."""
SUPERVISOR = Path(__file__).resolve().parents[2] / "agent" / "supervisor.py"
SATELLITE = SUPERVISOR.with_name("satellite.py")
"""Both files are run by their paths, without site packages. satellite.py runs satellite_script.py. Older
releases have the batch script itself there, and one may be installed again while a job runs."""
_LOOK_S = 0.5
_END = END.name.removeprefix("SIG")
_BASE_STEP = "flexo-agent"
"""The name of the job steps of the base's agents."""
_BASE_STATES = {
    **dict.fromkeys(("R", "CF", "SI", "RS"), BaseState.RUNS),
    **dict.fromkeys(("S", "ST"), BaseState.SUSPENDED),
}
"""What squeue's states of a base mean; in all others it has ended. SI: its processes get a signal.
RS: it gets smaller. ST: its processes are stopped, and it keeps its nodes."""
_TAG = re.compile(r"flexo-satellite base=(\d+) restart=(\d+) grant=(\S+) workers=(\d+)")
"""The comment of a satellite; flexod reads it too."""
# Reasons for which Slurm will not start a satellite soon: limits, not the cluster's load.
_LIMIT_REASONS = (
    *("Assoc", "QOS", "Account", "Max", "Partition", "JobHoldMaxRequeue"),
    *("InvalidAccount", "InvalidQOS"),
)
"""Beginnings of such reasons. A QOS's limits for each account are called MaxGRESPerAccount and the like."""


@dataclass(frozen=True, slots=True)
class _QueueEntry:
    """One job in squeue's answer."""

    state: str
    """The state in compact form: PD, R, CG, ..."""
    reason: str

    def status(self) -> SatelliteStatus:
        waits = self.state == "PD"
        return SatelliteStatus(
            placed=not waits,
            reason=self.reason,
            blocked=waits and self.reason.startswith(_LIMIT_REASONS),
            held=waits and self.reason.startswith("JobHeld"),
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
        """The command line of a node's supervisor, which starts an agent with `workers` slots."""
        return [
            *(sys.executable, "-I", "-S", str(SUPERVISOR), "--slots", str(workers)),
            *("--job", self._plan.to_text(), *options, "--", *self._command),
        ]

    def step(self, workers: int) -> list[str]:
        """The srun command, with all options explicit, for the agent of a node with `workers` workers.

        The step gets all CPUs that the job has on the node. `--cpus-per-task` would give a step on one node
        of a base with uneven nodes fewer CPUs than asked for. Slurm refuses `--gres` there (tried on Slurm
        22.05).
        """
        gpus = self._gpus(workers)
        return [
            *("srun", "--nodes=1", "--ntasks=1", "--export=ALL", "--mem=0", *self._binding),
            *("--kill-on-bad-exit=0", "--whole"),
            *([f"--gpus={gpus}"] if gpus else []),
        ]

    def submit(self, grant: GrantedWorkers) -> str:
        """Submit the satellite of a grant; return its Slurm job id. Raises Refused."""
        shape, gres = self._plan.base.shape, self._gres(grant)
        holds = [
            *(f"--cpus-per-task={shape.cpus * grant.workers}", *([f"--gres={gres}"] if gres else [])),
            *([f"--mem={shape.memory_mib * grant.workers}M"] if shape.memory_mib else []),
        ]
        return self._submit(grant, holds, self.step(0 if grant.shared_gpus else grant.workers))

    def submit_aggregator(self, grant: GrantedWorkers) -> str:
        """See AggregatorSatellites. If the base asks for memory, this CPU gets as much as one of the base."""
        shape = self._plan.base.shape
        memory_mib = math.ceil(shape.memory_mib / shape.cpus)
        holds = ["--cpus-per-task=1", *([f"--mem={memory_mib}M"] if memory_mib else [])]
        return self._submit(grant, holds, self.step(0))

    def _submit(self, grant: GrantedWorkers, holds: Sequence[str], step: Sequence[str]) -> str:
        """Submit a satellite that `holds` these resources, and runs its agent in `step`. Raises Refused."""
        base, output = self._plan.base, self._plan.output or "/dev/null"
        tag = (
            f"flexo-satellite base={base.job_id} restart={base.restart_count} "
            f"grant={grant.grant_id} workers={grant.workers}"
        )
        options = [
            *("sbatch", "--parsable", "--no-requeue", "--export=ALL", "--input=none"),
            *("--nodes=1", "--ntasks=1", f"--nodelist={grant.node}", f"--partition={grant.partition}"),
            *holds,
            *([f"--account={base.account}"] if base.account else []),
            *base.satellite_options,
            *([f"--qos={grant.qos}"] if grant.qos else []),  # after the base's own QOS: sbatch takes the last
            f"--time={math.ceil(grant.time_limit_s / 60)}",
            f"--job-name={self._name}",
            f"--comment={tag}",
            *(f"--output={output}", f"--error={output}", "--open-mode=append"),
        ]
        command = [
            *step,
            *self.agent_command(grant.workers, "--grant", grant.grant_id, *_sharing(grant)),
        ]
        batch = shlex.join([sys.executable, "-I", "-S", str(SATELLITE), *command])
        # The shell ignores the signal until the batch script handles it: the signal would end the shell.
        script = f"#!/bin/sh\ntrap '' {_END}\nexec {batch}\n"
        answer = self._run(options, script=script, node=grant.node)
        match = re.fullmatch(r"(\d+)(;.*)?", answer.strip())
        if match is None:
            raise Refused(f"sbatch answered '{answer.strip()[:200]}' where a job id was expected")
        return match[1]

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> subprocess.Popen[bytes]:
        """Start the agent of one of the base's own nodes. `again`: an earlier one ended before the job."""
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
        """Send SIGTERM to the base's agents and all processes of their steps, as Slurm does. Raises Refused.

        The signal does not go through srun, which takes SIGTERM as the order to kill (tried on Slurm 22.05).
        """
        job = self._plan.base.job_id
        listed = self._run(["squeue", "--all", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"])
        rows = [line.split("|", 1) for line in listed.splitlines() if "|" in line]
        if steps := [step for step, name in rows if name == _BASE_STEP]:
            self._run(["scancel", "--quiet", "--signal=TERM", *steps])

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """End satellites, whether they wait or run. Those that have ended are ignored. Raises Refused.

        A running satellite is asked first and ends by itself. Otherwise slurmstepd would call it CANCELLED
        in the job's output.
        """
        deadline = time.monotonic() + within_s
        left = self._queued(satellite_ids)
        with suppress(Refused):  # a satellite may have ended meanwhile; the rest are cancelled below
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
        """The command with which the user ends these satellites."""
        return f"scancel {' '.join(satellite_ids)}"

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """The status of each of these satellites that squeue still knows. Raises Refused."""
        return {job_id: entry.status() for job_id, entry in self._queued(satellite_ids).items()}

    def _queued(self, job_ids: Iterable[str]) -> dict[str, _QueueEntry]:
        """squeue's entries of these satellites, as far as it still knows them. Raises Refused.

        A slurmctld that is killed forgets the jobs that it accepted in the last seconds, and gives their ids
        to other jobs. So only a job with the name of this job's satellites counts.

        For one job id, slurmctld reads no other job. For one user, it sends no other user's jobs. Without a
        user, it sends its whole queue for two job ids, and squeue picks the jobs out.
        """
        ids = ",".join(job_ids)
        return self._entries(self._mine, f"--name={self._name}", f"--jobs={ids}") if ids else {}

    def _entries(self, *which: str) -> dict[str, _QueueEntry]:
        entries = {}
        for line in self._run(["squeue", "--all", "--noheader", "--format=%i|%t|%r", *which]).splitlines():
            job_id, state, reason = line.split("|", 2)
            entries[job_id] = _QueueEntry(state, reason)
        return entries

    def base_state(self) -> BaseState:
        """Slurm's state of the base. Raises Refused."""
        base = self._plan.base.job_id
        entry = self._entries(f"--jobs={base}").get(base)
        return BaseState.ENDED if entry is None else _BASE_STATES.get(entry.state, BaseState.ENDED)

    def find(self) -> list[Found]:
        """The satellites of this job that are in the queue, also those that earlier leaders submitted. Raises
        Refused."""
        base = self._plan.base
        found = []
        which = [self._mine, f"--name={self._name}"]
        for line in self._run(["squeue", "--all", "--noheader", "--format=%i|%t|%n|%k", *which]).splitlines():
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
        """The name of this job's satellites in Slurm."""
        return f"flexo-{self._plan.base.job_id}"

    def _gpus(self, workers: int) -> str:
        """GPUs of `workers` workers as "[TYPE:]NUMBER", "" for none; no type for a heterogeneous job."""
        base, shape = self._plan.base, self._plan.base.shape
        kind = f"{shape.gpu_type}:" if shape.gpu_type and not base.heterogeneous else ""
        return f"{kind}{shape.gpus * workers}" if shape.gpus * workers else ""

    def _gres(self, grant: GrantedWorkers) -> str:
        """GPUs and other devices of a satellite, for --gres; "" if it has none."""
        gpus = "" if grant.shared_gpus else self._gpus(grant.workers)
        others = (*(self._plan.base.shape * grant.workers).devices, *grant.shared_gpus)
        words = (":".join(filter(None, (each.name, each.type, str(each.amount)))) for each in others)
        return ",".join([*([f"gpu:{gpus}"] if gpus else []), *words])

    def _run(self, command: list[str], script: str = "", node: str = "") -> str:
        """Run a Slurm command; return its output. Raises Refused. `node`: node on which `script` will run."""
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


def _sharing(grant: GrantedWorkers) -> list[str]:
    """The option by which the agent knows the GPUs that its workers share, by their numbers on the node."""
    numbers = [each.type.removeprefix("s") for each in grant.shared_gpus]
    return ["--shared-gpus", ",".join(numbers)] if numbers else []


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """A context in which processes that this thread starts do not die of SIGTERM.

    Slurm sends SIGTERM to every process of a step that is to end, but the step still needs answers from
    Slurm. A blocked signal stays blocked in the processes that are started. In this process, other threads
    take the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
