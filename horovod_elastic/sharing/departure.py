"""Tells when a job that has to leave a GPU is gone: the process that had the GPU, and its whole group."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path

_GONE = ("Z", "X", "x")
"""States of a process that holds nothing any more (proc(5))."""


def began_s(pid: int) -> float:
    """When a process began, by CLOCK_BOOTTIME; the present time for one that /proc hides."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return int(ticks) / os.sysconf("SC_CLK_TCK")


class Departure:
    """The end of one process and of its process group, which the supervisor made for the job.

    Its closed connection is no proof: the kernel closes descriptors one by one, and the GPU's among them.
    """

    def __init__(self, pid: int) -> None:
        self._process = self._group = None
        with suppress(OSError):  # it has ended already
            self._process = os.pidfd_open(pid)
            self._group = os.getpgid(pid)
        if self._group == os.getpgrp():  # a job without a supervisor, started from where this service was
            self._group = None

    def is_complete(self) -> bool:
        """Whether nothing of the job runs on this node. Processes that /proc hides count as gone."""
        if self._process is not None:
            if not select.select([self._process], [], [], 0)[0]:
                return False
            os.close(self._process)
            self._process = None
        return self._group is None or not _runs(self._group)


def _runs(group: int) -> bool:
    """Whether a process of the group runs still."""
    with suppress(PermissionError):  # another user's
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
    return any(_group_of(each) == group for each in Path("/proc").glob("[0-9]*/stat"))


def _group_of(stat: Path) -> int | None:
    """The process group of a process that runs; None for one that has ended."""
    try:
        state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state in _GONE else int(group)
