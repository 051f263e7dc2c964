"""Progress bars of simulations on a terminal, each with the remaining time. A pipe gets none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from flexo_cli.output import printable
from flexo_simulation.comparison import Told


@contextmanager
def bars(labels: Sequence[str], quiet: bool) -> Iterator[Told]:
    """Progress bars for `run_trials`. They disappear when all trials are done."""
    console = Console(file=sys.stderr, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda trial, ended, jobs: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = [progress.add_task(printable(label), total=None) for label in labels]

        def told(trial: int, ended: int, jobs: int) -> None:
            progress.update(tasks[trial], completed=ended, total=jobs)

        yield told
