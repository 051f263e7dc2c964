"""How a worker ends that was told to leave: with what its script does at its end, and without Python's own.

Somebody waits for the node. Python's end takes every module apart, which is a second of CPU time once PyTorch
is loaded, and nothing of it outlives the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

_leaving = False


def install() -> None:
    """Before the script begins, so that what it registers with atexit is done first."""
    atexit.register(_end_at_once)


def leave() -> NoReturn:
    """Out of the job: SystemExit with 0."""
    global _leaving
    _leaving = True
    sys.exit(0)


def _end_at_once() -> None:
    if not _leaving:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # set where the script has answered SystemExit with an exception that nobody caught
    os._exit(1 if hasattr(sys, "last_value") else 0)
