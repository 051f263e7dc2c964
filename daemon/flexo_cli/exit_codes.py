"""Exit codes of `flexo`: one for each kind of failure, the same for all commands. Manual pages print them.

Three commands end with the exit code of a program or a job: `flexo run`, `flexo lab shell` and `flexo wait`.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """An exit code. `meaning`: its description for people."""

    meaning: str

    DONE = 0, "done"
    REFUSED = (
        1,
        "no: there is no such job, a file is unusable, flexod, MUNGE or Slurm refused, or flexo doctor found"
        " problems; the sentence on the error output says which",
    )
    USAGE = 2, "the command line is wrong"
    UNREACHABLE = 3, "flexod does not answer; the sentence names the address and where it came from"
    BUSY = 4, "the job is being resized, profiled or checkpointed: try again later, or say --wait"
    FIXED_SIZE = 5, "flexo check: an elastic job with this script would stay at the size of its base"
    TIME_OVER = 124, "flexo wait: the time of --timeout is over"
    INTERRUPTED = 130, "interrupted by Ctrl-C"

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Make a number with a `meaning`."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made
