"""The progress of simulations, with the remaining time: bars on a terminal, else a line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from flexo.words import counted, duration
from flexo_cli.output import complain, printable
from flexo_simulation.comparison import Told

EVERY_S: Final = 15.0
"""Seconds between two lines of progress."""


class ProgressLines:
    """Lines such as ``3 of 11 simulations done, about 2 min left``, for a log or a pipe. Mutable."""

    def __init__(
        self,
        trials: int,
        say: Callable[[str], None] = complain,
        clock: Callable[[], float] = time.monotonic,
        until: float = math.inf,
    ) -> None:
        """`until`: the time, by the clock, at which simulations that are not done are left out."""
        self._parts = [0.0] * trials
        """Per trial: the part of its jobs whose story has ended."""
        self._say = say
        self._clock = clock
        self._until = until
        self._begun_at = self._said_at = clock()

    def told(self, trial: int, ended: int, jobs: int) -> None:
        """Take the progress of one trial, and say that of all if it is time."""
        self._parts[trial] = ended / jobs if jobs else 1.0
        now = self._clock()
        if now - self._said_at < EVERY_S:
            return
        self._said_at = now
        done, trials = sum(part >= 1 for part in self._parts), len(self._parts)
        part = sum(self._parts) / trials
        self._say(f"{done} of {counted(trials, 'simulation')} done{self._left(now, part)}")

    def _left(self, now: float, part: float) -> str:
        if not part:
            return ""
        left_s = (now - self._begun_at) * (1 - part) / part
        if now < self._until < now + left_s:
            return f", {duration(self._until - now)} left, which may not suffice for all"
        return f", about {duration(left_s)} left"


@contextmanager
def progress(labels: Sequence[str], quiet: bool, until: float = math.inf) -> Iterator[Told]:
    """The progress of `run_trials`, on the error output. Bars disappear when all trials are done.

    `until`: the time, by the monotonic clock, at which simulations that are not done are left out.
    """
    console = Console(file=sys.stderr, highlight=False)
    if quiet:
        yield lambda trial, ended, jobs: None
        return
    if not console.is_terminal:
        yield ProgressLines(len(labels), until=until).told
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
    with Progress(*columns, console=console, transient=True) as shown:
        tasks = [shown.add_task(printable(label), total=None) for label in labels]

        def told(trial: int, ended: int, jobs: int) -> None:
            shown.update(tasks[trial], completed=ended, total=jobs)

        yield told
