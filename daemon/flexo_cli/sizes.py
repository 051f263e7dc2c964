"""Sizes of a job as people write them, ``4``, ``+2``, ``-2`` or ``auto``, and flexod's calls for them."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon
from flexo_protos.v1 import admin_pb2

_MOST: Final = 1_000_000
"""The most workers that a user may name."""


class BadSize(ValueError):
    """A text is no size; the message says what is allowed."""


class Change(enum.Enum):
    """How a number of workers is meant."""

    AT_MOST = ""
    MORE = "+"
    FEWER = "-"


@dataclass(frozen=True, slots=True)
class Size:
    """A size as written: ``4``, ``+2``, ``-2``, or ``auto``, which is at most 0: no cap."""

    change: Change
    workers: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """The size in `text`. Raises BadSize."""
        if text == "auto":
            return cls(Change.AT_MOST, 0)
        match = re.fullmatch(r"([+-]?)([0-9]{1,7})", text)
        if match is None or not 1 <= int(match[2]) <= _MOST:
            allowed = f"a number of workers from 1 to {_MOST}, one with + or - before it, or auto"
            raise BadSize(f"'{text}' is no size; allowed: {allowed}")
        return cls(Change(match[1]), int(match[2]))


def scaled(flexod: Daemon, job: int, size: Size, nodes: Sequence[str] = ()) -> admin_pb2.ScaleJobReply:
    """Ask flexod for `size`; to grow, on `nodes` only if there are any. Raises BadSize, Refusal, Busy and
    Unreachable."""
    if size.change is Change.MORE:
        return flexod.scale_out(job, size.workers, nodes)
    if nodes:
        raise BadSize("nodes go with +N, which grows there, or without a size: the satellites there go")
    if size.change is Change.AT_MOST:
        return flexod.scale(job, size.workers)
    return flexod.scale_in(job, size.workers)
