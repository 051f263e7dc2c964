"""`flexo wait`: waits until a job has ended, or has so many workers. Its exit code is then the job's."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from flexo_cli.as_json import end_as_json
from flexo_cli.durations import read_duration
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import complain, print_json, print_line
from flexo_cli.waiting import Goal, exit_code, reached


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
    wanted, timeout_s = _goal(goal), _timeout(timeout)
    try:
        seen = reached(daemon, job, wanted, timeout_s, complain)
    except TimeoutError:
        complain(f"job {job} is not there yet, and the time of --timeout is over")
        raise typer.Exit(ExitCode.TIME_OVER) from None
    if as_json:
        end = end_as_json(seen.end) if seen.end else None
        print_json({"job_id": job, "workers": seen.workers, "end": end})
    else:
        print_line(seen.sentence)
    code = exit_code(seen.end) if seen.end else 0
    raise typer.Exit(max(code, 1) if seen.end and wanted.workers else code)


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
