"""Parses Slurm's spellings of single values (times, memory, GPUs) into numbers. Pure functions."""

from __future__ import annotations

import functools
import math
import re

from flexo_protos.resources import Devices, Resources, total

_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE", "Unknown"})
_MIB_PER_UNIT = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_PIECES = frozenset({"shard", "mps"})
"""The generic resources that hand a GPU out in pieces."""
_NOT_GENERIC = frozenset({"cpu", "mem", "node", "energy", "billing"})
"""What a job may request beside generic resources: `--tres-per-task=cpu=1,gres/gpu:1,license/matlab:1`."""
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class BadValue(ValueError):
    """A value that Slurm is not known to print; the message quotes it."""


def is_nothing(text: str) -> bool:
    """Whether this is one of Slurm's ways to print that there is no value."""
    return text in _NOTHING


def or_empty(text: str) -> str:
    """The text, or "" for Slurm's ways to print that there is none."""
    return "" if text in _NOTHING else text


def number(text: str) -> int:
    """`"16"` -> 16; the first number of a range `"2-4"`. Raises BadValue."""
    first = text.partition("-")[0]
    if not first.isdecimal():
        raise BadValue(f"'{text[:40]}' is not a number")
    return int(first)


def epoch(text: str) -> float | None:
    """A time printed with SLURM_TIME_FORMAT=%s; None if Slurm has none."""
    return float(text) if text.isdecimal() and text != "0" else None


@functools.lru_cache(maxsize=1024)
def time_limit_s(text: str) -> int | None:
    """`"1-02:03:04"`, `"30:00"` -> seconds; None when there is no limit. Raises BadValue."""
    if text in ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit") or is_nothing(text):
        return None
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise BadValue(f"'{text[:40]}' is not a time limit")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@functools.lru_cache(maxsize=1024)
def memory_mib(text: str) -> int:
    """`"200M"`, `"1.50G"`, `"4000"` (MiB) -> MiB, rounded up. Raises BadValue."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    if match is None:
        raise BadValue(f"'{text[:40]}' is not an amount of memory")
    return math.ceil(float(match[1]) * _MIB_PER_UNIT[match[2] or "M"])


@functools.lru_cache(maxsize=4096)
def generic_resources(text: str) -> Resources:
    """The GPUs and other devices in a list of generic resources, as nodes have and jobs ask for them.

    `gpu:v100:4(S:0-1)`, `gpu:(null):2(IDX:0,2)`, `gres:gpu:4` (up to 23.11), `gres/gpu:v100:2` (later),
    `gres/gpu=2`. The type of GPUs is "" when none is named or several are. Pieces of GPUs (shard, mps), what
    is not counted one by one (`no_consume`, `4G`) and what is not generic (`cpu=1`) are left out.
    """
    words = () if is_nothing(text) else _words(text)
    found = [each for each in map(_devices, words) if each is not None]
    gpus = [each for each in found if each.name == "gpu"]
    types = {each.type for each in gpus}
    others = (Resources(devices=(each,)) for each in found if each.name != "gpu" and each.amount)
    gpu_type = types.pop() if len(types) == 1 else ""
    return sum(others, Resources(gpus=total(each.amount for each in gpus), gpu_type=gpu_type))


@functools.lru_cache(maxsize=4096)
def shared_gpus_in_use(text: str) -> bool:
    """Whether a node's GresUsed shows GPUs handed out in pieces (shard, mps): it counts no gpu for them."""
    pieces = (word.split(":") for word in _words(text))
    return any(parts[0] in _PIECES and parts[-1].strip("0") for parts in pieces)


def _words(text: str) -> list[str]:
    """The words of the list, without the text in brackets: sockets, indices, (null)."""
    return re.sub(r"\([^()]*\)", "", text).split(",")


def _devices(word: str) -> Devices | None:
    name, *parts = re.split("[:=]", word.removeprefix("gres:").removeprefix("gres/"))
    if not name or name in _PIECES or "no_consume" in parts or name in _NOT_GENERIC or "/" in name:
        return None
    if parts and parts[-1].isdecimal():
        return Devices(name, ":".join(parts[:-1]), int(parts[-1]))
    if name != "gpu" and parts and re.fullmatch(r"\d+[KMGTP]", parts[-1], re.IGNORECASE):
        return None
    return Devices(name, ":".join(parts), 1)


@functools.lru_cache(maxsize=4096)
def tres(text: str) -> Resources:
    """Parse `cpu=2,mem=200M,node=1,billing=2,gres/gpu=2,gres/gpu:v100=2`, in which typed GPUs count twice.

    The result has no GPUs if the site does not track them (AccountingStorageTRES). CPUs and other devices are
    left out.
    """
    memory, whole, typed = 0, 0, {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name == "mem":
            memory = memory_mib(value)
        elif name == "gres/gpu":
            whole = number(value)
        elif name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = number(value)
    gpu_type = next(iter(typed)) if len(typed) == 1 else ""
    return Resources(gpus=whole or sum(typed.values()), memory_mib=memory, gpu_type=gpu_type)
