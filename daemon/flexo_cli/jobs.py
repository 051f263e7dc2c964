"""`flexo jobs`: lists elastic jobs that run or are pending, with squeue's options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import typer

from flexo_cli.as_json import job_as_json, waiting_as_json
from flexo_cli.caller import own_name
from flexo_cli.connection import Daemon, Refusal, find_address
from flexo_cli.job_table import Column, UnknownColumn, columns_of, print_jobs
from flexo_cli.job_words import ShownState, shown_state
from flexo_cli.options import DaemonOption, JsonOption, job_number
from flexo_cli.output import print_json, print_line
from flexo_protos.v1 import admin_pb2


def jobs(
    job: Annotated[
        list[int] | None,
        typer.Argument(metavar="JOB", parser=job_number, help="Only these; else all."),
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
            help=f"Only in these states: {', '.join(each.option for each in ShownState)}; "
            "or R, PD, S and all, as for squeue.",
        ),
    ] = "",
    account: Annotated[
        str, typer.Option("--account", "-A", metavar="ACCOUNT", help="Only of these accounts.")
    ] = "",
    partition: Annotated[
        str, typer.Option("--partition", "-p", metavar="PARTITION", help="Only in these partitions.")
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
    """List elastic jobs, their sizes and their nodes: those that run, then those that are pending.

    Use it for your jobs, at once and in scripts. To watch jobs and nodes, use flexo top; for the reasons of
    one job, flexo why; for flexod itself, flexo status.
    """
    shown, states = _columns(columns), _states(state)
    users = frozenset({*_listed(user), *([own_name()] if me else [])})
    reply = Daemon(find_address(daemon)).jobs()
    accounts, partitions = frozenset(_listed(account)), frozenset(_listed(partition))
    conditions = _Conditions(frozenset(job or ()), users, states, accounts, partitions)
    conditions.check_numbers({job.job_id for job in reply.jobs} | {job.job_id for job in reply.waiting})
    found = [each for each in reply.jobs if conditions.meets(each, shown_state(each))]
    waiting = [each for each in reply.waiting if conditions.meets(each, ShownState.PENDING)]
    if as_json:
        print_json({"jobs": list(map(job_as_json, found)), "waiting": list(map(waiting_as_json, waiting))})
    elif found or waiting:
        print_jobs(found, waiting, shown, header=not noheader)
    elif not noheader:
        print_line("no such elastic jobs" if conditions.are_any else "no elastic jobs")


@dataclass(frozen=True, slots=True)
class _Conditions:
    """What the command line asks of a job. An empty condition is met by all."""

    numbers: frozenset[int]
    users: frozenset[str]
    states: frozenset[ShownState]
    accounts: frozenset[str]
    partitions: frozenset[str]

    @property
    def are_any(self) -> bool:
        """Whether something else than numbers of jobs is asked."""
        return bool(self.users or self.states or self.accounts or self.partitions)

    def meets(self, job: admin_pb2.ElasticJob | admin_pb2.WaitingJob, state: ShownState) -> bool:
        """Whether a job in this state meets every condition."""
        return (
            (not self.numbers or job.job_id in self.numbers)
            and (not self.users or job.user in self.users)
            and (not self.states or state in self.states)
            and (not self.accounts or job.account in self.accounts)
            and (not self.partitions or not self.partitions.isdisjoint(job.partition.split(",")))
        )

    def check_numbers(self, known: Collection[int]) -> None:
        """Raise Refusal if one of the numbers is no job that runs or is pending."""
        for number in sorted(self.numbers):
            if number not in known:
                why = f"flexo why {number} says what is known of it"
                raise Refusal(f"no elastic job {number} runs or is pending; {why}")


def _columns(names: str) -> tuple[Column, ...] | None:
    try:
        return columns_of(names) if names else None
    except UnknownColumn as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _states(names: str) -> frozenset[ShownState]:
    options = ShownState.by_option()
    wrong = [name for name in _listed(names.lower()) if name not in options]
    if wrong:
        raise typer.BadParameter(
            f"'{wrong[0]}' is no state; allowed: {', '.join(options)}", param_hint="--state"
        )
    return frozenset().union(*(options[name] for name in _listed(names.lower())))


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
