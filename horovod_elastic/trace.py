"""The events of a job, reported to people (one sentence on the job's output) and to machines (a trace).

A trace is one JSON line for each event, in the file that FLEXO_TRACE names. The leader writes the trace.
Leaders that follow each other append to the same file. Times are seconds since the epoch. Without FLEXO_TRACE
there is no trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback

VARIABLE = "FLEXO_TRACE"
OUTPUT_WAIT_S = 1.0
"""Longest time that a line waits for a full pipe: the script's own lines may fill it for a moment."""


def say(sentence: str) -> None:
    """Write one line for the user to the job's output. Never raises, and never waits for long."""
    _output.write(f"flexo: {sentence}\n")


def say_error(error: BaseException) -> None:
    """Write the traceback of an unforeseen error, as `say` does."""
    _output.write("".join(traceback.format_exception(error)))


def count(number: int, one: str, many: str = "") -> str:
    """``1 worker``, ``2 workers``; ``2 batches`` where `many` says so."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def how_it_ended(exit_code: int) -> str:
    """``exit code 1``, or ``SIGKILL`` for a process that a signal has ended (as in subprocess)."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class _Output:
    """Standard error. A full disk or quota, or a pipe that nobody reads, must neither end nor hang a job.

    Text that cannot be written is dropped. Nothing is buffered: Python would exit with 120 if the rest of a
    buffer could not be written in the end.
    """

    def __init__(self) -> None:
        self._stuck = False
        """Whether the last line found no room; then the next line does not wait."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None: there is no standard error
            try:
                descriptor = sys.stderr.fileno()
            except (OSError, ValueError):  # sys.stderr has been replaced, as tests do
                sys.stderr.write(text)
                return
            self._write(descriptor, text.encode(errors="backslashreplace"))

    def _write(self, descriptor: int, data: bytes) -> None:
        while data:
            _, ready, _ = select.select([], [descriptor], [], 0.0 if self._stuck else OUTPUT_WAIT_S)
            self._stuck = not ready
            if self._stuck:
                return
            # A pipe that is ready takes PIPE_BUF bytes at once.
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]


_output = _Output()


class Trace:
    """A trace in the file `path`; if `path` is "", events are dropped."""

    def __init__(self, path: str) -> None:
        self._path = path

    def event(self, event: str, **fields: str | int | float | bool) -> None:
        """Write {"time": ..., "event": event, **fields}. An error in writing ends the trace silently."""
        if not self._path:
            return
        line = json.dumps({"time": time.time(), "event": event, **fields}) + "\n"
        try:
            # One write for each line, at the end of the file: other leaders may write there too.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError:
            self._path = ""
