"""Parses single words of sacct: lengths of time, time limits, trackable resources, identifiers of jobs."""

from __future__ import annotations

import re
from typing import Final

_ELAPSED: Final = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,4}):)?(\d{1,4}):(\d{1,2})(?:\.\d+)?", re.ASCII)
_LIMIT: Final = re.compile(r"(\d{1,7})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_AMOUNT: Final = re.compile(r"(\d{1,12})(?:\.0+)?([KMGT]?)", re.ASCII)
_TIMES: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_HET: Final = re.compile(r"(\d+)\+\d+", re.ASCII)
NO_LIMIT: Final = frozenset({"", "unlimited", "partition_limit", "invalid"})
NO_NODES: Final = frozenset({"", "none assigned", "none", "(null)", "unknown"})
NO_TIME_YET: Final = frozenset({"", "unknown", "none", "n/a"})


def elapsed_s(text: str) -> int | None:
    """Seconds in ``"1-02:03:04"``, ``"02:03:04"``, ``"03:04"`` or ``"184"``; None: nonsense."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return int(text)
    match = _ELAPSED.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def limit_s(text: str) -> int | None:
    """A time limit in seconds: TimelimitRaw's minutes, or Timelimit's 1-00:00:00. None: nonsense.

    The caller handles a limit in words (UNLIMITED, Partition_Limit): see NO_LIMIT.
    """
    if text.isascii() and text.isdigit() and len(text) < 12:
        return 60 * int(text)
    if match := _LIMIT.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return elapsed_s(text)


def gpus_of(tres: str) -> tuple[int, str] | None:
    """GPUs in all and their type in ``"billing=8,cpu=8,gres/gpu:v100=4,gres/gpu=4"``; None: nonsense.

    If a site tracks the plain gres/gpu, Slurm counts typed GPUs in it, too. The type of several types is "".
    """
    plain, typed = 0, dict[str, int]()
    for item in filter(None, tres.split(",")):
        name, _, amount = item.partition("=")
        kind, _, gpu_type = name.partition(":")
        if kind.strip().casefold() != "gres/gpu":
            continue
        match = _AMOUNT.fullmatch(amount.strip())
        if match is None:
            return None
        count = int(match[1]) * _TIMES[match[2]]
        if gpu_type:
            typed[gpu_type] = typed.get(gpu_type, 0) + count
        else:
            plain += count
    types = [gpu_type for gpu_type, count in typed.items() if count]
    return plain or sum(typed.values()), types[0] if len(types) == 1 else ""


def is_step(job_id: str) -> bool:
    """Whether `job_id` names a step, as 123.batch, 123.extern and 123_4.0 do."""
    return "." in job_id


def het_job(job_id: str) -> str:
    """The whole job, 123, of a component of a heterogeneous job, as in 123+1; "" for any other."""
    match = _HET.fullmatch(job_id)
    return match[1] if match else ""
