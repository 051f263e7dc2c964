"""`flexo logs`: prints a job's output file, as the user who calls it. Slurm says where the file is."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Protocol

import typer

from flexo_cli.connection import Refusal
from flexo_cli.options import JobArgument, JsonOption
from flexo_cli.output import print_json
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
    as_json: JsonOption = False,
) -> None:
    """Print the output of a job of yours. Satellites write into the same file.

    JSON has the file's path and its lines; with --follow, it is one line of output in each object. Slurm
    knows the file as long as it knows the job: for some minutes after its end (MinJobAge). The file is read
    with your permissions, on this host.
    """
    output = where(job)
    if follow:
        _wait_for(job, output)
    with _opened(job, output.path) as file:
        if as_json and not follow:
            found = [_text(line) for line in deque(file, maxlen=lines)]
            print_json(
                {"job_id": job, "path": str(output.path), "unfinished": output.unfinished, "lines": found}
            )
            return
        written = _AsObjects() if as_json else _AsItIs()
        _print_from(file, lines, written)
        if follow:
            _follow(job, file, written)
        written.end()


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


class _Written(Protocol):
    """Writes pieces of the job's output onto the command's."""

    def write(self, piece: bytes) -> None:
        """Write what comes next."""

    def end(self) -> None:
        """Write what is left of a line that has no end: none comes any more."""


class _AsItIs:
    """Writes bytes as they are."""

    def write(self, piece: bytes) -> None:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    def end(self) -> None:
        pass


class _AsObjects:
    """Writes an object for each line, once the line is complete."""

    def __init__(self) -> None:
        self._begun = b""

    def write(self, piece: bytes) -> None:
        *whole, self._begun = (self._begun + piece).split(b"\n")
        for line in whole:
            sys.stdout.write(json.dumps({"line": _text(line)}) + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        if self._begun:
            self.write(b"\n")


def _text(line: bytes) -> str:
    """A line as JSON can have it: other bytes than those of UTF-8 are replaced."""
    return line.removesuffix(b"\n").decode(errors="replace")


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


def _print_from(file: BinaryIO, lines: int | None, written: _Written) -> None:
    """Print the file, or its last `lines` lines."""
    if lines is None:
        _print_rest(file, written)
        return
    for line in deque(file, maxlen=lines):
        written.write(line)


def _follow(job: int, file: BinaryIO, written: _Written) -> None:
    """Print what is written from now on. A file that becomes shorter, as after a requeue, begins anew."""
    for unfinished in _asked_again_and_again(job):
        at = file.tell()
        if file.seek(0, os.SEEK_END) < at:
            written.end()
            at = 0
        file.seek(at)
        _print_rest(file, written)
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


def _print_rest(file: BinaryIO, written: _Written) -> None:
    while piece := file.read(_PIECE):
        written.write(piece)
