"""What happens in a job, told to people (one sentence on the job's output) and to machines (a trace).

A trace is one JSON line an event, in the file that FLEXO_TRACE names, written by whoever leads; leaders that
follow each other append to the same file. Times are seconds since the epoch. Without FLEXO_TRACE there is
none.
"""

from __future__ import annotations

import json
import os
import sys
import time

VARIABLE = "FLEXO_TRACE"


def say(sentence: str) -> None:
    """One line for the user, in the job's output."""
    print(f"flexo: {sentence}", file=sys.stderr, flush=True)


class Trace:
    """Appends to `path`; to nothing if that is ""."""

    def __init__(self, path: str) -> None:
        self._path = path

    def event(self, event: str, **fields: str | int | float | bool) -> None:
        """Write {"time": ..., "event": event, **fields}. A trace that cannot be written is no trouble."""
        if not self._path:
            return
        line = json.dumps({"time": time.time(), "event": event, **fields}) + "\n"
        try:
            # One write of one line, at the end wherever that is: other leaders may write there too.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError:
            self._path = ""
