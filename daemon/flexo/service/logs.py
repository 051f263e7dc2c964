"""Sets up flexod's log: lines for people, JSON for machines, or systemd's journal with fields."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

from flexo.config import LogSettings
from flexo.service.budgets import TokenBucket
from flexo.service.journald import JournalLogger, reads_stderr
from flexo.words import one_line


class LimitedLog:
    """Logs warnings about callers, one a second in the long run: callers could cause any number."""

    def __init__(self, burst: float = 20.0) -> None:
        self._bucket = TokenBucket(1.0, burst)
        self._not_logged = 0
        self._log = structlog.get_logger("flexo.service")

    def warning(self, what: str, **facts: object) -> None:
        """Log a warning, unless there were too many. The next line that is logged says how many were not."""
        if self._bucket.take():
            self._log.warning(what, not_logged=self._not_logged, **facts)
            self._not_logged = 0
        else:
            self._not_logged += 1


def set_up(settings: LogSettings) -> None:
    """Send all that is logged from now on to where `settings` say."""
    form = settings.format
    if form == "auto":
        form = "journal" if reads_stderr() else "text"
    if form == "journal":
        _configure(settings.level, (_as_it_is,), JournalLogger())
    elif form == "json":
        _configure(settings.level, (_TIME, structlog.processors.JSONRenderer()), _Lines(sys.stderr))
    else:
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        last: tuple[structlog.typing.Processor, ...] = (_TIME, _without_nodes, _on_one_line, console)
        _configure(settings.level, last, _Lines(sys.stderr))


class _Lines(structlog.PrintLogger):
    """A logger of lines. It drops a line that cannot be written: a full disk must not stop the extension of
    time limits."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


_LONGEST = 2000
"""The most characters of a value in a line for people."""
_TIME = structlog.processors.TimeStamper(fmt="iso")


def _configure(level: str, last: Iterable[structlog.typing.Processor], logger: object) -> None:
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, *last],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: logger,
    )


def _as_it_is(logger: Any, name: str, entry: structlog.typing.EventDict) -> tuple[tuple[Any], dict[str, Any]]:
    """Pass the entry on as it is, for a logger that takes entries and not lines."""
    return (entry,), {}


def _without_nodes(logger: Any, name: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Leave the nodes out: readers of the text find them there."""
    entry.pop("nodes", None)
    return entry


def _on_one_line(logger: Any, name: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put each value on one line. Names given by users (jobs, files) can then neither begin a line of their
    own nor steer a terminal."""
    return {
        key: one_line(value, _LONGEST) if isinstance(value, str) and key != "exception" else value
        for key, value in entry.items()
    }
