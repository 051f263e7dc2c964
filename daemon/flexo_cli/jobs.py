"""`flexo jobs`: lists running elastic jobs, with squeue's options."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from flexo_cli.as_json import job_as_json
from flexo_cli.connection import Daemon, Refusal, find_address
from flexo_cli.job_table import Column, UnknownColumn, columns_of, print_jobs
from flexo_cli.job_words import ShownState, shown_state
from flexo_cli.options import DaemonOption, JsonOption, job_number
from flexo_cli.output import print_json, print_line
from flexo_protos.v1 import admin_pb2


def jobs(
    job: Annotated[
        list[int] | None,
        typer.Argument(metavar="JOB", parser=job_number, help="Only these; else all that run."),
    ] = None,
    me: Annotated[bool, typer.Option("--me", help="Only your own.")] = False,
    user: Annotated[
        str, typer.Option("--user", "-u", metavar="USER", help="Only of these users: ada, or ada,bob.")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state",
            "-t",
            metavar="STATE",
            help=f"Only in these states: {', '.join(each.option for each in ShownState)}.",
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            "--format",
            "-o",
            metavar="COLUMNS",
            help="The columns, never cut: job,name,size, or wide for all. A wrong name lists all.",
        ),
    ] = "",
    noheader: Annotated[bool, typer.Option("--noheader", help="No line with the columns' names.")] = False,
    daemon: DaemonOption = None,
    as_json: JsonOption = False,
) -> None:
    """List running elastic jobs, their sizes and their nodes."""
    shown, states = _columns(columns), _states(state)
    users = {*_listed(user), *([_own_name()] if me else [])}
    found = _selected(Daemon(find_address(daemon)).jobs().jobs, job or (), users, states)
    if as_json:
        print_json({"jobs": [job_as_json(each) for each in found]})
    elif found:
        print_jobs(found, shown, header=not noheader)
    elif not noheader:
        print_line("no such elastic jobs" if users or states else "no elastic jobs")


def _selected(
    jobs: Sequence[admin_pb2.ElasticJob],
    numbers: Collection[int],
    users: Collection[str],
    states: Collection[ShownState],
) -> list[admin_pb2.ElasticJob]:
    """The jobs that meet every condition; an empty one is met. Raises Refusal for a job that does not run."""
    running = {job.job_id for job in jobs}
    for number in numbers:
        if number not in running:
            raise Refusal(f"no elastic job {number} runs; flexo why {number} says what is known of it")
    return [
        job
        for job in jobs
        if (not numbers or job.job_id in numbers)
        and (not users or job.user in users)
        and (not states or shown_state(job) in states)
    ]


def _columns(names: str) -> tuple[Column, ...] | None:
    try:
        return columns_of(names) if names else None
    except UnknownColumn as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _states(names: str) -> frozenset[ShownState]:
    options = {each.option: each for each in ShownState}
    wrong = [name for name in _listed(names.lower()) if name not in options]
    if wrong:
        raise typer.BadParameter(
            f"'{wrong[0]}' is no state; allowed: {', '.join(options)}", param_hint="--state"
        )
    return frozenset(options[name] for name in _listed(names.lower()))


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _own_name() -> str:
    """The caller's user name; its uid if it has none, as Slurm prints it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
