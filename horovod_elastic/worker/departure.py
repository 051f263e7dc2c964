"""The end of a worker that was told to leave: with its script's exit functions, without Python's teardown.

Another job may wait for the node. Python's teardown takes every module apart. That costs a second of CPU time
once PyTorch is loaded, and nothing of the teardown outlives the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

_leaving = False


def install() -> None:
    """Register the end before the script begins, so that functions that the script registers run first."""
    atexit.register(_end_at_once)


def leave() -> NoReturn:
    """Leave the job. Raises SystemExit with 0."""
    global _leaving
    _leaving = True
    sys.exit(0)


def is_leaving() -> bool:
    """Whether this worker leaves the job, rather than being at the end of its script."""
    return _leaving


def _end_at_once() -> None:
    if not _leaving:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # last_value is set if the script has answered SystemExit with an exception that nobody caught
    os._exit(1 if hasattr(sys, "last_value") else 0)
