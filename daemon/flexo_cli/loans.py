"""`flexo loans`: prints the servers on loan, since when, when they go back, and why."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flexo.words import duration
from flexo_cli.connection import Daemon, find_address
from flexo_cli.output import Json, clock, print_json, print_line, print_pairs, print_table
from flexo_protos.v1 import admin_pb2

_ALL = 10_000


def loans(
    show_all: Annotated[bool, typer.Option("--all", help="Also every loan that is over.")] = False,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, max=_ALL, help="Also the last N that are over.")
    ] = 0,
    daemon: Annotated[
        str | None,
        typer.Option(
            "--daemon",
            metavar="HOST:PORT",
            help="flexod's address; else $FLEXO_DAEMON, else the configuration.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Servers of the inference cluster that are lent to training, and when they go back."""
    reply = Daemon(find_address(daemon)).loans(_ALL if show_all else last)
    if as_json:
        print_json(loans_as_json(reply))
        return
    if not reply.lending:
        print_line("flexod lends no servers: that needs enabled = true in [loaning] of its configuration")
    else:
        print_pairs(_summary(reply))
        _print_loans(reply)
    if reply.past:
        print_line("")
        _print_past(reply)


def lending_line(view: admin_pb2.LendingView) -> str:
    """One line: ``3 of 8 inference servers on loan, 1 coming back; 4.2 needed, up to 5.0 expected``."""
    text = f"{view.lent} of {view.servers} inference servers on loan, {view.coming_back} coming back"
    return f"{text}; {_needed(view)}"


def _needed(view: admin_pb2.LendingView) -> str:
    if not view.at:
        return "nothing decided yet"
    if not view.HasField("demand"):
        return "demand not known"
    peak = f", up to {view.peak:.1f} expected" if view.HasField("peak") else ""
    return f"{view.demand:.1f} needed{peak}"


def _summary(reply: admin_pb2.ListLoansReply) -> list[tuple[str, str]]:
    view = reply.view
    pairs = [
        ("lent by", f"partition {reply.inference_partition}, to partition {reply.partition}"),
        ("now", lending_line(view)),
    ]
    if view.source:
        pairs.append(("demand from", view.source))
    if reply.left_alone:
        alone = (f"{each.node} until {clock(each.until_at)}" for each in reply.left_alone)
        pairs.append(("not lent", f"{', '.join(alone)}: taken out of the partition by hand"))
    return [*pairs, ("trouble", view.trouble or "none")]


def _print_loans(reply: admin_pb2.ListLoansReply) -> None:
    if not reply.loans:
        return
    print_line("")
    now = time.time()
    columns = ("NODE", "SINCE", "STATE", "EMPTY BY", "WORKERS", "BASES", "WHY")
    print_table(
        columns,
        [
            (
                loan.node,
                clock(loan.since_at),
                loan.state,
                due(loan.deadline_at, now),
                str(loan.satellite_workers or ""),
                ", ".join(map(str, loan.bases)),
                f"{loan.why_back or loan.why}{_cost(loan)}",
            )
            for loan in reply.loans
        ],
        right=("WORKERS",),
    )


def _cost(loan: admin_pb2.LoanView) -> str:
    """The cost of a reclaim: ``; cost so far: 1 base preempted, 2 servers emptied beside``; "" for none."""
    parts = []
    if loan.bases_preempted:
        parts.append(f"{loan.bases_preempted} {'base' if loan.bases_preempted == 1 else 'bases'} preempted")
    if loan.servers_emptied_beside:
        servers = "server" if loan.servers_emptied_beside == 1 else "servers"
        parts.append(f"{loan.servers_emptied_beside} {servers} emptied beside")
    return f"; cost so far: {', '.join(parts)}" if parts else ""


def due(deadline_at: float, now: float) -> str:
    """The time to the deadline: ``in 3 min`` or ``12 s late``; "" without a deadline."""
    if not deadline_at:
        return ""
    left = deadline_at - now
    return f"in {duration(left)}" if left >= 0 else f"{duration(-left)} late"


def _print_past(reply: admin_pb2.ListLoansReply) -> None:
    columns = (
        *("NODE", "SINCE", "BACK", "TOOK", "DEADLINE", "SCALED IN", "PREEMPTED", "EMPTIED BESIDE"),
        "WHY BACK",
    )
    print_table(
        columns,
        [
            (
                loan.node,
                clock(loan.since_at),
                clock(loan.empty_at),
                duration(max(0.0, loan.empty_at - loan.called_back_at)) if loan.called_back_at else "",
                _kept(loan),
                str(loan.workers_scaled_in),
                str(loan.bases_preempted),
                str(loan.servers_emptied_beside),
                loan.why_back,
            )
            for loan in reply.past
        ],
        right=("SCALED IN", "PREEMPTED", "EMPTIED BESIDE"),
    )


def _kept(loan: admin_pb2.PastLoanView) -> str:
    if not loan.deadline_at:
        return ""
    late = loan.empty_at - loan.deadline_at
    return f"{duration(late)} late" if late > 0 else "kept"


def lending_as_json(view: admin_pb2.LendingView) -> dict[str, Json]:
    """The facts behind the last decision, with stable keys."""
    return {
        "at": view.at or None,
        "servers": view.servers,
        "lent": view.lent,
        "coming_back": view.coming_back,
        "demand": view.demand if view.HasField("demand") else None,
        "peak": view.peak if view.HasField("peak") else None,
        "source": view.source,
        "why": view.why,
        "trouble": view.trouble,
    }


def loans_as_json(reply: admin_pb2.ListLoansReply) -> Json:
    """The whole of `flexo loans` as JSON."""
    return {
        "lending": reply.lending,
        "inference_partition": reply.inference_partition,
        "partition": reply.partition,
        **lending_as_json(reply.view),
        "loans": [
            {
                "node": loan.node,
                "since_at": loan.since_at,
                "why": loan.why,
                "state": loan.state,
                "called_back_at": loan.called_back_at or None,
                "deadline_at": loan.deadline_at or None,
                "why_back": loan.why_back,
                "satellite_workers": loan.satellite_workers,
                "bases": list(loan.bases),
                "workers_scaled_in": loan.workers_scaled_in,
                "bases_preempted": loan.bases_preempted,
                "servers_emptied_beside": loan.servers_emptied_beside,
            }
            for loan in reply.loans
        ],
        "left_alone": [{"node": each.node, "until_at": each.until_at} for each in reply.left_alone],
        "past": [
            {
                "node": loan.node,
                "since_at": loan.since_at,
                "why": loan.why,
                "called_back_at": loan.called_back_at or None,
                "deadline_at": loan.deadline_at or None,
                "why_back": loan.why_back,
                "empty_at": loan.empty_at,
                "ended_at": loan.ended_at,
                "workers_scaled_in": loan.workers_scaled_in,
                "bases_preempted": loan.bases_preempted,
                "servers_emptied_beside": loan.servers_emptied_beside,
            }
            for loan in reply.past
        ],
    }
