"""Satellites as Slurm sees them: submit one for a grant, ask what became of it, cancel it. As the user.

Every option is explicit and the environment is clean, because a job's own variables would change what sbatch
and srun do (docs/architecture.md, "Facts"). A satellite is one node, never requeued, in a preemptible
partition; its comment tells flexod, after any restart, whose it is.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from horovod_elastic.slurm_job import BaseJob, Site, clean_environment

COMMAND_TIMEOUT_S = 60
# Reasons for which Slurm will not start it soon, however long we wait: limits, not the cluster's load.
_LIMIT_REASONS = ("Assoc", "QOS", "Partition", "JobHeld", "MaxSubmit", "InvalidAccount", "InvalidQOS")


class Refused(Exception):
    """Slurm would not take a satellite; the message is its own."""


@dataclass(frozen=True, slots=True)
class Grant:
    """flexod's word: `workers` workers on `node` (jobs.proto, message Grant)."""

    grant_id: str
    node: str
    workers: int
    partition: str
    lease_s: int
    start_within_s: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """What squeue says of a satellite."""

    state: str
    """Compact: PD, R, CG, ..."""
    reason: str

    @property
    def held_by_a_limit(self) -> bool:
        """Pending for an association's, QOS's or partition's limit: no grant, not an error."""
        return self.state == "PD" and self.reason.startswith(_LIMIT_REASONS)


class SlurmUser:
    """Slurm's commands with the rights of the job's own user."""

    def __init__(
        self,
        base: BaseJob,
        environment: Mapping[str, str],
        command: Sequence[str],
        output: str | None,
        *,
        site: Site = Site(),  # noqa: B008 (frozen)
    ) -> None:
        self._base = base
        self._environment = clean_environment(environment)
        self._command = list(command)
        self._output = output or "/dev/null"
        self._site = site
        self._binding = ["--cpu-bind=none"] if site.binds_cpus else []

    def agent_command(self, leader: str, workers: int, *, base: bool) -> list[str]:
        """The agent's own command line."""
        return [
            *(sys.executable, "-m", "horovod_elastic", "agent", "--leader", leader),
            *("--slots", str(workers), "--gpus", str(self._base.shape.gpus)),
            *(["--base"] if base else []),
            *(["--pass-signals"] if base and not self._site.signals_reach_all else []),
            "--",
            *self._command,
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

    def submit(self, grant: Grant, leader: str) -> int:
        """Submit the satellite of a grant; its Slurm job id. Raises Refused."""
        base, shape, gpus = self._base, self._base.shape, self._gpus(grant.workers)
        tag = (
            f"flexo-satellite base={base.job_id} restart={base.restart_count} "
            f"grant={grant.grant_id} workers={grant.workers}"
        )
        options = [
            *("sbatch", "--parsable", "--no-requeue", "--export=ALL", "--input=none"),
            *("--nodes=1", "--ntasks=1", f"--nodelist={grant.node}", f"--partition={grant.partition}"),
            *(f"--cpus-per-task={shape.cpus * grant.workers}", *([f"--gres=gpu:{gpus}"] if gpus else [])),
            *([f"--mem={shape.memory_mib * grant.workers}M"] if shape.memory_mib else []),
            *([f"--account={base.account}"] if base.account else []),
            f"--time={math.ceil(grant.lease_s / 60)}",
            f"--job-name=flexo-{base.job_id}",
            f"--comment={tag}",
            *(f"--output={self._output}", f"--error={self._output}", "--open-mode=append"),
        ]
        step = [*self.step(grant.workers), *self.agent_command(leader, grant.workers, base=False)]
        answer = self._run(options, script=f"#!/bin/sh\nexec {shlex.join(step)}\n")
        match = re.fullmatch(r"(\d+)(;.*)?", answer.strip())
        if match is None:
            raise Refused(f"sbatch answered '{answer.strip()[:200]}' where a job id was expected")
        return int(match[1])

    def launch_base(self, node: str, workers: int, leader: str) -> subprocess.Popen[bytes]:
        """Start the agent of one of the base's own nodes."""
        options = [f"--jobid={self._base.job_id}", f"--nodelist={node}"]
        step = self.step(workers)
        return subprocess.Popen(
            [*step[:1], *options, *step[1:], *self.agent_command(leader, workers, base=True)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
        )

    def cancel(self, job_ids: Iterable[int]) -> None:
        """End satellites, however far they are. Silent about those that have ended."""
        if ids := [str(job_id) for job_id in job_ids]:
            self._run(["scancel", "--quiet", *ids])

    def queue(self, job_ids: Iterable[int]) -> dict[int, QueueEntry]:
        """What squeue says of those of `job_ids` that it still knows."""
        ids = ",".join(map(str, job_ids))
        entries = {}
        for line in self._run(["squeue", "--noheader", "--format=%i|%t|%r", f"--jobs={ids}"]).splitlines():
            job_id, state, reason = line.split("|", 2)
            entries[int(job_id)] = QueueEntry(state, reason)
        return entries

    def _gpus(self, workers: int) -> str:
        """ "[TYPE:]NUMBER" for so many workers, "" if they have none."""
        shape = self._base.shape
        kind = f"{shape.gpu_type}:" if shape.gpu_type else ""
        return f"{kind}{shape.gpus * workers}" if shape.gpus else ""

    def _run(self, command: list[str], script: str = "") -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                input=script,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"{command[0]}: {error}") from error
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise Refused(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout
