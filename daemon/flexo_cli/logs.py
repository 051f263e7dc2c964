"""`flexo logs`: prints a job's output file, as the user who calls it. Slurm says where the file is."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from flexo_cli.connection import Refusal
from flexo_cli.options import JobArgument
from flexo_yarn.records import application_text, numbered_application
from horovod_elastic.platforms.slurm.submission import JobOutput, NotSubmitted, is_slurms, output_of

LOOK_EVERY_S = 0.5
ASK_SLURM_EVERY_S = 5.0
_PIECE: Final = 1 << 20


def logs(
    job: JobArgument,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Then what comes, as it comes, until the job ends."),
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines; else all.")
    ] = None,
) -> None:
    """Print the output of a job of yours. Satellites write into the same file.

    Slurm knows the file as long as it knows the job: for some minutes after its end (MinJobAge). The file is
    read with your permissions, on this host.
    """
    output = where(job)
    if follow:
        _wait_for(job, output)
    with _opened(job, output.path) as file:
        _print_from(file, lines)
        if follow:
            _follow(job, file)


def where(job: int) -> JobOutput:
    """Ask Slurm for the job's output file. Raises Refusal if it does not know."""
    if not is_slurms(job):
        application = application_text(numbered_application(job))
        raise Refusal(f"YARN keeps the output of its jobs: yarn logs -applicationId {application}")
    try:
        output = output_of(job)
    except NotSubmitted as error:
        raise Refusal(f"Slurm does not say (any more) where job {job} writes: {error}") from error
    if output is None:
        raise Refusal(f"job {job} has no output file: only batch jobs have one")
    return output


def _opened(job: int, path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise Refusal(f"job {job} writes to {path}, which cannot be read here: {error.strerror}") from error


def _wait_for(job: int, output: JobOutput) -> None:
    """Wait until the file is there, or the job has ended."""
    while output.unfinished and not output.path.exists():
        time.sleep(ASK_SLURM_EVERY_S)
        output = where(job)


def _print_from(file: BinaryIO, lines: int | None) -> None:
    """Print the file, or its last `lines` lines."""
    if lines is None:
        _print_rest(file)
        return
    for line in deque(file, maxlen=lines):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _follow(job: int, file: BinaryIO) -> None:
    """Print what is written from now on. A file that becomes shorter, as after a requeue, begins anew."""
    for unfinished in _asked_again_and_again(job):
        at = file.tell()
        file.seek(at if file.seek(0, os.SEEK_END) >= at else 0)
        _print_rest(file)
        if not unfinished:
            return


def _asked_again_and_again(job: int) -> Iterator[bool]:
    """Whether the job may still write, at each look. Slurm is asked less often than the file is looked at."""
    asked_at, unfinished = time.monotonic(), True
    while True:
        if time.monotonic() - asked_at >= ASK_SLURM_EVERY_S:
            asked_at, unfinished = time.monotonic(), _may_write(job)
        yield unfinished
        time.sleep(LOOK_EVERY_S)


def _may_write(job: int) -> bool:
    try:
        return where(job).unfinished
    except Refusal:
        return False


def _print_rest(file: BinaryIO) -> None:
    while piece := file.read(_PIECE):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
