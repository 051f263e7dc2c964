"""Reads how much CPU time a process has used (proc(5))."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process so far; 0.0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
