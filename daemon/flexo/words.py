"""Words for sentences for people: counts, durations, texts from outside. Imports nothing of flexo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
"""Units of time, and their lengths in seconds."""
MAX_TEXT: Final = 500
"""Characters of a text from outside that are shown."""
BEGINS_WITHIN_S: Final = 60.0
"""How long after its start a job is said to start, and not to be without a leader."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def counted(number: int, what: str) -> str:
    """``1 job``, ``1,234 jobs``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def workers(number: int) -> str:
    """``1 worker``, ``2 workers``."""
    return "1 worker" if number == 1 else f"{number} workers"


def held_by(number: int) -> str:
    """What a satellite of so many workers runs: ``2 workers``, or, without workers, ``an Aggregator``."""
    return workers(number) if number else "an Aggregator"


def duration(seconds: float) -> str:
    """A duration, rounded for people: ``40 s``, ``12 min``, ``5.2 h``, ``3 d``."""
    value, unit = in_units(seconds)
    digits = 1 if unit in ("h", "d") else 0
    return f"{value:.{digits}f}".removesuffix(".0") + f" {unit}"


def needs_restart(settings: Sequence[str]) -> str:
    """``needs a restart of flexod: [service] address``; "": no setting does."""
    return f"needs a restart of flexod: {', '.join(settings)}" if settings else ""


def takes_no_satellites(partitions: Iterable[str]) -> str:
    """Why a node outside `partitions`, those of satellites, gets none."""
    return f"the node is in no partition of satellites ({', '.join(partitions)})"


def in_units(seconds: float) -> tuple[float, str]:
    """A duration in the largest unit of which it has at least two."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return seconds / length, unit
    return seconds, "s"


def names_in(text: str) -> frozenset[str]:
    """All words in `text` that could be the name of a node, without the full stop behind them."""
    return frozenset(word.rstrip(".-_") for word in _NAME.findall(text))


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """`text` from outside, fit for a log: printable characters of one line, at most `limit` of them."""
    clean = "".join(character if character.isprintable() else " " for character in text[:limit])
    return clean.strip()
