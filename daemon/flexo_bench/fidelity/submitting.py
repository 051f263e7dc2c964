"""Submits the benchmark's jobs to a lab as a user would, and reads the files that the jobs write."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from flexo_bench.fidelity.workload import EPOCH, SLOWER, STEP_S, Job
from flexo_bench.workers_logs import WorkersLogs
from flexo_lab import Lab
from flexo_lab.slurm_files import BORROWED_PARTITION

SCRIPT, DDP_SCRIPT = (Path(__file__).resolve().parent / name for name in ("train.py", "train_ddp.py"))
TRACE = "trace"
"""Name of the file with the trace of a job's leader, in the job's folder."""
_POLL_S = 0.25


class LabRunFailed(Exception):
    """A job failed, or an event did not happen in time. The message says which, and where the output is."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was submitted; its files are in `folder`."""

    job: Job
    job_id: int
    at: float
    """Time of the submission, in seconds since the epoch."""
    folder: Path

    def began_at(self) -> float | None:
        """Time at which the job's batch script first began; None if it has not."""
        starts = self.starts()
        return starts[0] if starts else None

    def starts(self) -> tuple[float, ...]:
        """Times at which the job's batch script began: more than one if the job was requeued."""
        return tuple(map(float, _text(self.folder / "began").split()))

    def ended_at(self) -> float | None:
        """Time at which the batch script ended; None if it has not. Raises LabRunFailed if the job failed."""
        words = _text(self.folder / "ended").split()
        if len(words) < 2:
            return None
        if words[0] != "0":
            raise LabRunFailed(
                f"job {self.job.number} ended with status {words[0]}: see {self.folder}/output"
            )
        return float(words[1])

    def log(self) -> WorkerLog:
        """The records of the job's workers so far."""
        return read_log(self.folder)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """One line of a worker's log. `event`: "enter" (the training function) or "batch" (a step is done)."""

    event: str
    at: float
    size: int


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """The records of every worker that was rank 0, in order of time."""

    lines: tuple[WorkerEvent, ...]

    @property
    def sizes(self) -> tuple[tuple[float, int], ...]:
        """Pairs (time, number of workers from then on); equal neighbours are merged."""
        found: list[tuple[float, int]] = []
        for line in self.lines:
            if not found or found[-1][1] != line.size:
                found.append((line.at, line.size))
        return tuple(found)

    def batches(self, size: int, since: float = 0.0) -> list[float]:
        """Times after `since` at which steps with `size` workers were done."""
        return [
            line.at for line in self.lines if (line.event, line.size) == ("batch", size) and line.at > since
        ]


def read_log(folder: Path) -> WorkerLog:
    """Read the workers' files in a job's folder; a torn last line is left out."""
    events = [event for event in WorkersLogs(folder).events() if event["rank"] == 0]
    return WorkerLog(tuple(WorkerEvent(each["event"], each["time"], each["size"]) for each in events))


def submit(lab: Lab, job: Job, folder: Path) -> Submitted:
    """Make the job's folder, and submit the job with `sbatch`."""
    folder.mkdir(parents=True)
    ask = ["-n", str(job.least), f"--gpus-per-task={job.gpus_each}", f"--time={job.limit_minutes}"]
    if job.elastic or job.fungible:
        ask.append(f"--elastic={job.least}-{job.most}")
    if job.fungible:
        ask.append("--elastic-fungible")
    where = ["--parsable", f"--output={folder}/output", f"--job-name=j{job.number}"]
    at = time.time()
    answer = lab.run(["sbatch", *where, *ask], stdin=_script(job, folder))
    return Submitted(job, int(answer.stdout.split(";")[0]), at, folder)


def _script(job: Job, folder: Path) -> str:
    """The batch script. A fungible job is slower on a lent server, and may be stopped and requeued there."""
    here = Path(sys.executable).parent
    # DDP's program does all of its work in one pass over its samples, which is one epoch. Each worker keeps
    # its batch, as Horovod's do: a step of k workers does k mini-batches.
    script, options = SCRIPT, f"--epochs={job.epochs}"
    if job.ddp:
        script, options = DDP_SCRIPT, "--epochs=1 --batch-rule=grow"
    train = (
        f"{shlex.join([sys.executable, str(script)])} --log-dir {folder}"
        f" --epochs {job.epochs} --batches {EPOCH} --step-seconds $step --slower {SLOWER}"
    )
    command = (
        f"{shlex.quote(str(here))}/flexo run --core=torch {options} {train}"
        if job.elastic
        else "sleep $seconds"
    )
    end = "stopped" if job.fungible else "ended"
    return (
        f"#!/bin/bash\ndate +%s.%N >> {folder}/began\nexport FLEXO_TRACE={folder}/{TRACE}\n"
        f"seconds={job.seconds} step={STEP_S}\n"
        f"if [[ $SLURM_JOB_PARTITION = {BORROWED_PARTITION} ]]; then"
        f" seconds={job.seconds * job.slower_on_loan} step={STEP_S * job.slower_on_loan}; fi\n"
        f"{command}\nstatus=$?\nend={end}\n[ $status = 0 ] && end=ended\n"
        f"echo $status $(date +%s.%N) > {folder}/$end\n"
    )


def wait_for(what: str, limit_s: float, happened: Callable[[], bool]) -> None:
    """Wait until `happened`, at most `limit_s`. Raises LabRunFailed."""
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            raise LabRunFailed(f"not within {limit_s:.0f} s: {what}")
        time.sleep(_POLL_S)


def wait_for_ends(jobs: Iterable[Submitted], limit_s: float) -> None:
    """Wait until all jobs have ended, at most `limit_s`. Raises LabRunFailed."""
    waiting = list(jobs)

    def ended() -> bool:
        waiting[:] = [job for job in waiting if job.ended_at() is None]
        return not waiting

    wait_for("all jobs have ended", limit_s, ended)


def endless(number: int, least: int, most: int, *, ddp: bool = False) -> Job:
    """A job that trains until it is cancelled. DDP's program has a list of its samples, not too long."""
    return Job(number, 0.0, least, most, 5_000 if ddp else 100_000, math.nan, ddp=ddp)


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
