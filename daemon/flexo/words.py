"""Words for sentences for people: counts, and the names in a text. Imports nothing of flexo."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def workers(number: int) -> str:
    """``1 worker``, ``2 workers``."""
    return "1 worker" if number == 1 else f"{number} workers"


def held_by(number: int) -> str:
    """What a satellite of so many workers runs: ``2 workers``, or, without workers, ``an Aggregator``."""
    return workers(number) if number else "an Aggregator"


def names_in(text: str) -> frozenset[str]:
    """All words in `text` that could be the name of a node, without the full stop behind them."""
    return frozenset(word.rstrip(".-_") for word in _NAME.findall(text))
