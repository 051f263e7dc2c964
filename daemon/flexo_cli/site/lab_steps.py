"""What the commands of `flexo lab` share: progress, errors in one line, and an end that leaves nothing."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console
from rich.status import Status

from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import complain, printable
from flexo_lab import LabError


@contextmanager
def explained() -> Iterator[None]:
    """Print an error of the lab in one line, and end the command with a status that says "refused"."""
    try:
        yield
    except LabError as error:
        first, *log_lines = str(error).splitlines()
        complain(first)
        for line in log_lines:
            typer.echo(printable(line), err=True)
        raise typer.Exit(ExitCode.REFUSED) from None


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Make SIGTERM and a closed terminal end `up` as Ctrl-C does: with nothing left."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


class Steps:
    """Progress: on a terminal a spinner and the duration of each step, else one plain line for each step."""

    def __init__(self, console: Console, spinner: Status) -> None:
        self._console, self._spinner = console, spinner
        self._current, self._since = "", 0.0

    def __call__(self, step: str) -> None:
        """Begin a step."""
        if not self._console.is_terminal:
            self._console.print(step, markup=False, soft_wrap=True)
            return
        self.finish()
        self._current, self._since = step, time.monotonic()
        self._spinner.update(step)

    def finish(self) -> None:
        """End the current step and print its duration."""
        if self._current:
            took = time.monotonic() - self._since
            self._console.print(f"{self._current} [dim]{took:.1f} s[/dim]")
            self._current = ""


@contextmanager
def steps() -> Iterator[Steps]:
    """Show the steps of a lab on the error output while they are carried out."""
    console = Console(file=sys.stderr, highlight=False)
    spinner = console.status("")
    progress = Steps(console, spinner)
    if not console.is_terminal:
        yield progress
        return
    with spinner:
        yield progress
        progress.finish()
