"""`flexo events`: prints the events of flexod's event store, once or with --follow as they happen."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated, Final

import typer

from flexo_cli.as_json import event_as_json
from flexo_cli.connection import Daemon, Refusal, Unreachable, find_address
from flexo_cli.durations import read_duration
from flexo_cli.options import DaemonOption, JsonOption, job_number
from flexo_cli.output import clock, complain, print_json, print_line, print_table
from flexo_protos.v1 import admin_pb2

LOOK_EVERY_S: Final = 2.0
_PAGE: Final = 1000
_MOST: Final = 1_000_000
_BEFORE_FOLLOWING: Final = 10
"""Number of old events that --follow prints before new ones."""


def events(
    job: Annotated[
        int | None,
        typer.Argument(metavar="JOB", parser=job_number, help="An elastic job, as for flexo why; else all."),
    ] = None,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Only those that name this node.")] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind, as grow or lend; may be said again."),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="As 30min, 2h, 3d, or 2027-01-31T12:00.")
    ] = "",
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=1, max=_MOST, help="At most N; else 200, or 10 to follow."),
    ] = None,
    before: Annotated[
        int, typer.Option("--before", metavar="NUMBER", min=0, help="Only those before this one (--json).")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then what happens, as it happens, until Ctrl-C.")
    ] = False,
    daemon: DaemonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what flexod saw, decided and did, newest first. With --follow newest last, and JSON one a line."""
    if follow and before:
        raise typer.BadParameter("what is followed has no end", param_hint="--before")
    asked = admin_pb2.ListEventsRequest(
        job_id=job or 0, node=node, kinds=kind or (), since_at=_time(since, time.time()), before=before
    )
    if follow:
        _follow(daemon, asked, last or _BEFORE_FOLLOWING, as_json)
        return
    found = list(islice(pages(Daemon(find_address(daemon)), asked, last or 200), last or 200))
    if as_json:
        print_json({"job_id": job, "events": [event_as_json(event) for event in found]})
    elif found:
        print_table_of(found, with_job=job is None)
    else:
        print_line("no such events")


def print_table_of(found: Iterable[admin_pb2.Event], *, with_job: bool) -> None:
    """Print a table with one event in each row."""
    columns = ("TIME", "EVENT", *(("JOB",) if with_job else ()), "WHAT")
    rows = [
        (clock(event.at), event.kind, *((_job(event),) if with_job else ()), event.text) for event in found
    ]
    print_table(columns, rows, right=("JOB",))


def pages(flexod: Daemon, asked: admin_pb2.ListEventsRequest, most: int) -> Iterator[admin_pb2.Event]:
    """Yield all events that match `asked`, newest first; one request covers a part of a long event store.

    `most`: number of events that the caller reads at most.
    """
    request = admin_pb2.ListEventsRequest()
    request.CopyFrom(asked)
    request.limit = min(most, _PAGE)
    while True:
        reply = flexod.events(request)
        yield from reply.events
        if not reply.before:
            return
        request.before = reply.before


def _follow(daemon: str | None, asked: admin_pb2.ListEventsRequest, last: int, as_json: bool) -> None:
    """Print the last events, then new ones. Once flexod has answered, wait for it when it does not answer."""
    flexod = Daemon(find_address(daemon))
    newest = flexod.events(admin_pb2.ListEventsRequest(limit=1)).newest
    asked.before = newest + 1
    _tell(reversed(list(islice(pages(flexod, asked, last), last))), as_json)
    away = ""
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            newest, found = _new(flexod, asked, newest)
        except (Unreachable, Refusal) as error:
            if not away:
                complain(f"{error}; waiting for it")
            away, flexod = str(error), Daemon(find_address(daemon))
            continue
        if away:
            complain("flexod answers again")
            away = ""
        _tell(reversed(found), as_json)


def _new(
    flexod: Daemon, asked: admin_pb2.ListEventsRequest, newest: int
) -> tuple[int, list[admin_pb2.Event]]:
    """The number of the event store's last entry, and the matching events after `newest`, newest first."""
    last = flexod.events(admin_pb2.ListEventsRequest(limit=1)).newest
    asked.after = newest if last >= newest else 0  # 0: the event store is a new one
    asked.before = last + 1
    return last, list(pages(flexod, asked, _PAGE)) if last != newest else []


def _tell(found: Iterable[admin_pb2.Event], as_json: bool) -> None:
    for event in found:
        if as_json:
            sys.stdout.write(json.dumps(event_as_json(event)) + "\n")
        else:
            print_line(f"{clock(event.at)}  {event.kind:<10} {_job(event):>8}  {event.text}")
    sys.stdout.flush()


def _job(event: admin_pb2.Event) -> str:
    if not event.job_id:
        return ""
    return f"{event.job_id}.r{event.restart_count}" if event.restart_count else str(event.job_id)


def _time(text: str, now: float) -> float:
    """Parse ``2h`` (before `now`) or a time as Slurm writes it; 0 for "". Raises BadParameter."""
    if not text:
        return 0.0
    if (seconds := read_duration(text)) is not None:
        return max(0.0, now - seconds)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        allowed = "30s, 15min, 2h, 3d, 2027-01-31 or 2027-01-31T12:00"
        raise typer.BadParameter(f"'{text}' is no time as {allowed}", param_hint="--since") from None
