"""What readers of traces raise: for a file, for a line, for a job."""

from __future__ import annotations


class BadTrace(Exception):
    """A trace that is not simulated. `problems` has one sentence for each mistake, with file and line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BadValue(Exception):
    """A line makes no sense: the message says why, and what is allowed."""


class NotSimulated(Exception):
    """A line makes sense, but its job is left out: the message goes on after "jobs that ..."."""
