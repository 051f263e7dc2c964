"""The errors of readers of traces: for a file, for a line, for a job."""

from __future__ import annotations


class BadTrace(Exception):
    """The error for a trace that is not simulated. `problems` has one sentence per mistake, with file and
    line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BadValue(Exception):
    """The error for a line that makes no sense; the message says why, and what is allowed."""


class NotSimulated(Exception):
    """The error for a sensible line whose job is left out; the message goes on after "jobs that ..."."""
