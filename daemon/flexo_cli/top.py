"""`flexo top`: shows nodes, jobs, loans and the next decision, live on the terminal or once."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flexo_cli.connection import Daemon, find_address
from flexo_cli.options import DaemonOption, JsonOption
from flexo_cli.output import console_for_output, print_json


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print all of it once; also where the output is no terminal.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="S", min=0.5, max=3600, help="Seconds between two looks."),
    ] = 2.0,
    daemon: DaemonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch nodes, jobs, their sizes and loans, and what flexod decides next. q quits.

    Use it to watch the whole cluster. For jobs alone, once or in a script, use flexo jobs; for flexod
    alone, flexo status; for pages in a browser, flexo web.
    """
    from flexo_cli.live import layout, picture, watching  # imported here: other commands need less of rich

    console = console_for_output()
    if console.is_terminal and not console.is_dumb_terminal and not (once or as_json):
        watching.watch(console, daemon, interval)
        return
    taken = picture.take(Daemon(find_address(daemon)), time.time())
    if as_json:
        print_json(picture.as_json(taken))
        return
    for line in layout.page(taken, console.width if console.is_terminal else None, time.time()):
        console.print(line, no_wrap=True, crop=False)
