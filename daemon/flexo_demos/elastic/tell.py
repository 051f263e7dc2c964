"""The demo's output: a line for each event, and on a terminal also the present step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from flexo_demos.elastic.report import CheckedSentence


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Go silent. Rich would end the process here, before the demo has cleaned up."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Teller:
    """Prints to standard output, and goes silent when the reader of a pipe has gone."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        terminal = sys.stdout.isatty()
        self._console = _Console(highlight=False, width=None if terminal else 200, soft_wrap=True)
        self._status: Status | None = self._console.status("", refresh_per_second=4) if terminal else None

    def __enter__(self) -> Teller:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_status()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the Teller was made."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Print an event with its time."""
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        self._print(Text.assemble((f"{minutes:2d}:{seconds:02d}  ", "dim"), (text, style)))

    def show(self, text: str) -> None:
        """Print a line that belongs to the event before."""
        self._print(Text("       " + text, "cyan"))

    def now(self, text: str) -> None:
        """Show the present step; on a terminal only, until the next call."""
        if self._status is not None:
            with suppress(OSError):
                self._status.update(Text(text, "dim"))

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and figures at the end."""
        self._stop_status()
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, figure in rows:
            table.add_row(name, Text(figure))
        self._print(Text())
        self._print(table)
        self._print(Text())

    def judge(self, claims: Sequence[CheckedSentence]) -> None:
        """Print each sentence with a tick or a cross."""
        for claim in claims:
            mark = ("✓ ", "bold green") if claim.holds else ("✗ ", "bold red")
            self._print(Text.assemble(mark, (claim.text, "" if claim.holds else "red")))

    def _stop_status(self) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def _print(self, what: Text | Table) -> None:
        with suppress(OSError):
            self._console.print(what)
