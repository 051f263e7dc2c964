"""`flexo wait`: waits until a job has ended, or has so many workers. Its exit code is then the job's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from flexo_cli.as_json import end_as_json
from flexo_cli.connection import Daemon, NoSuchJob, Refusal, Unreachable, find_address
from flexo_cli.durations import read_duration
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import complain, print_json, print_line
from flexo_protos.v1 import admin_pb2

LOOK_EVERY_S = 2.0
KNOWN_WITHIN_S = 60.0
"""How long flexod may take to see a new job, and to learn how a job ended that has left the queue."""
_COMPLETED: Final = "COMPLETED"
_REQUEUED: Final = frozenset({"REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""Ends of one run of a job that runs again."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is waited for: the job's end, or, with `workers`, that this number of workers trains."""

    workers: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the job."""

    sentence: str
    workers: int = 0
    here: bool = False
    """Whether the job waits or runs."""
    end: admin_pb2.JobEnd | None = None
    """How it ended, once that is known."""


def wait(
    job: JobArgument,
    goal: Annotated[
        str,
        typer.Option("--for", metavar="GOAL", help="end, or start, or workers=N: at least N workers train."),
    ] = "end",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Give up after this time, as 30min or 2h.")
    ] = "",
    daemon: DaemonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait for a job. The exit code is the job's own, as for sbatch --wait, once it has ended.

    It is 128 + n for a job that signal n has killed, and at least 1 for one that has not completed. If the
    job reaches --for=workers=N, it is 0. If the job ends before, it is the job's, and at least 1. flexo wait
    goes on while flexod is away.
    """
    wanted, limit_s = _goal(goal), _timeout(timeout)
    seen = _reached(daemon, job, wanted, None if limit_s is None else time.monotonic() + limit_s)
    if as_json:
        end = end_as_json(seen.end) if seen.end else None
        print_json({"job_id": job, "workers": seen.workers, "end": end})
    else:
        print_line(seen.sentence)
    code = exit_code(seen.end) if seen.end else 0
    raise typer.Exit(max(code, 1) if seen.end and wanted.workers else code)


def exit_code(end: admin_pb2.JobEnd) -> int:
    """The job's exit code, as a shell would have it: 128 + n for a signal n, never 0 unless it completed."""
    status, _, signal = end.exit_code.partition(":")
    if signal.isdecimal() and int(signal):
        return 128 + int(signal) % 128
    code = int(status) % 256 if status.isdecimal() else 0
    return code if code or end.state == _COMPLETED else 1


def _reached(daemon: str | None, job: int, goal: Goal, until: float | None) -> Seen:
    """Look again and again until `goal` is reached or the job has ended. Raises Exit if the time is over."""
    unknown_since: float | None = None
    for seen in _looks(daemon, job):
        if seen is not None and (seen.end or (goal.workers and seen.workers >= goal.workers)):
            return seen
        now = time.monotonic()
        if seen is not None and not seen.here:
            if unknown_since is None:
                unknown_since = now
                complain(f"{seen.sentence}; waiting for news of it")
            elif now - unknown_since > KNOWN_WITHIN_S:
                raise Refusal(f"flexod has had no news of job {job} for {KNOWN_WITHIN_S:.0f} s")
        elif seen is not None:
            unknown_since = None
        if until is not None and now >= until:
            complain(f"job {job} is not there yet, and the time of --timeout is over")
            raise typer.Exit(ExitCode.TIME_OVER)
    raise AssertionError("looks have no end")


def _looks(daemon: str | None, job: int) -> Iterator[Seen | None]:
    """Look every two seconds. None: flexod is away. Raises Unreachable if it is away at the first look."""
    flexod, away = Daemon(find_address(daemon)), ""
    yield _look(flexod, job)
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            seen = _look(flexod, job)
        except Unreachable as error:
            if not away:
                complain(f"{error}; waiting for it")
            away, flexod = str(error), Daemon(find_address(daemon))
            yield None
            continue
        away = ""
        yield seen


def _look(flexod: Daemon, job: int) -> Seen:
    """Ask flexod once."""
    running = flexod.running_job(job)
    if running is not None:
        sentence = f"job {job} trains with {running.workers} of {running.min}-{running.max} workers"
        return Seen(sentence, running.workers, here=True)
    try:
        reply = flexod.explain(job)
    except NoSuchJob as error:
        return Seen(str(error))
    ended = reply.HasField("end") and reply.end.state not in _REQUEUED
    sentence = reply.sentences[0] if reply.sentences else f"job {job} has ended"
    return Seen(sentence, here=bool(reply.headline), end=reply.end if ended else None)


def _goal(text: str) -> Goal:
    if text in ("end", "start"):
        return Goal(0 if text == "end" else 1)
    match = re.fullmatch(r"workers=([0-9]{1,7})", text)
    if match is None or int(match[1]) < 1:
        raise typer.BadParameter(f"'{text}' is no goal; allowed: end, start, workers=N", param_hint="--for")
    return Goal(int(match[1]))


def _timeout(text: str) -> float | None:
    seconds = read_duration(text) if text else None
    if text and seconds is None:
        raise typer.BadParameter(f"'{text}' is no time; allowed: 30s, 15min, 2h, 3d", param_hint="--timeout")
    return seconds
