"""Submits and cancels a job and finds its output file, for a program of the job's user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.slurm.commands import ask
from horovod_elastic.platforms.slurm.environment import JOB_ID

_NO_JOB: Final = "Invalid job id"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENDED: Final = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""The states of a job that writes no more (`enum job_states` in slurm.h)."""


class NotSubmitted(Exception):
    """Slurm, or flexo's plugin, refused; the message is theirs."""


def is_slurms(job_id: int) -> bool:
    """Whether a number can be that of a job of Slurm's; larger ones stand for YARN's applications."""
    return job_id < 1 << 32


def submit(script: Path, arguments: Sequence[str], options: Mapping[str, str | int | bool]) -> int:
    """Submit a job script with options of sbatch; return the job's id.

    An option is called as on the command line, with _ for - (`gpus_per_task`). True stands for an option
    without a value; False leaves it out. Raises NotSubmitted, and ValueError for a name that is none.
    """
    command = ["sbatch", "--parsable", *_arguments(options), "--", str(script), *arguments]
    answer = _asked(command)
    match = re.fullmatch(r"(\d+)(;.*)?", answer.strip())
    if match is None:
        raise NotSubmitted(f"sbatch answered '{answer.strip()[:200]}' where a job id was expected")
    return int(match[1])


def cancel(job_id: int) -> None:
    """Cancel a job; no error if it has ended. Raises NotSubmitted if Slurm refuses."""
    _asked(["scancel", "--quiet", str(job_id)])


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Where a job writes, and whether it may still write."""

    path: Path
    unfinished: bool


def output_of(job_id: int) -> JobOutput | None:
    """The job's output file; None: it has none, as only batch jobs have one.

    Slurm knows it as long as it knows the job: for some minutes after its end (MinJobAge). Raises
    NotSubmitted if it does not know the job.
    """
    return output_in(_asked(["scontrol", "show", "job", str(job_id)]))


def has_no_job(job_id: int) -> bool:
    """Whether Slurm says that it has no such job. False: it has one, or does not answer."""
    try:
        _asked(["scontrol", "show", "job", str(job_id)])
    except NotSubmitted as error:
        return _NO_JOB in str(error)
    return False


def output_in(said: str) -> JobOutput | None:
    """The output file in what `scontrol show job` has printed; None: there is none."""
    files = re.findall(r"^ *StdOut=(.+)$", said, re.MULTILINE)
    state = re.search(r"^ *JobState=(\w+)", said, re.MULTILINE)
    if not files:
        return None
    # a name that its user chose stands before all of this, and may hold a line that looks like it
    return JobOutput(Path(files[-1].strip()), state is not None and state[1] not in _ENDED)


def _arguments(options: Mapping[str, str | int | bool]) -> list[str]:
    for name in options:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"'{name}' is no option of sbatch; allowed are names such as gpus_per_task")
    words = {name.replace("_", "-"): value for name, value in options.items() if value is not False}
    return [f"--{word}" if value is True else f"--{word}={value}" for word, value in words.items()]


def _asked(command: list[str]) -> str:
    """Slurm's answer. A program inside a job, such as a notebook, does not pass its job's variables on."""
    try:
        return ask(command, os.environ if JOB_ID in os.environ else None)
    except NotInAJob as error:
        raise NotSubmitted(str(error)) from error
