"""What flexod says of its loans (`flexo loans --json`), as the demo needs it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Returned:
    """A loan that is over. Times are seconds since the epoch."""

    node: str
    since_at: float
    called_back_at: float | None
    deadline_at: float | None
    empty_at: float
    why_back: str
    bases_preempted: int


@dataclass(frozen=True, slots=True)
class Book:
    """All loans that were, and those that are; `closed`: servers that nothing new is placed on."""

    standing: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    returned: tuple[Returned, ...] = ()


def parse(text: str) -> Book:
    """Raises ValueError where this is not what flexo prints."""
    try:
        document = json.loads(text)
        standing = document["loans"]
        return Book(
            frozenset(loan["node"] for loan in standing),
            frozenset(loan["node"] for loan in standing if loan["called_back_at"] is not None),
            tuple(_returned(loan) for loan in document["past"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"flexo loans --json lacks {error}") from error


def _returned(loan: dict[str, Any]) -> Returned:
    return Returned(
        node=loan["node"],
        since_at=loan["since_at"],
        called_back_at=loan["called_back_at"],
        deadline_at=loan["deadline_at"],
        empty_at=loan["empty_at"],
        why_back=loan["why_back"],
        bases_preempted=loan["bases_preempted"],
    )
