"""Parses flexod's loans (`flexo loans --json`) for the demo. All functions are pure."""

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
class LoanHistory:
    """All loans: `standing` ones and `returned` ones. `closed`: servers that are being reclaimed."""

    standing: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    returned: tuple[Returned, ...] = ()


def parse(text: str) -> LoanHistory:
    """Parse the output of `flexo loans --json`. Raises ValueError for any other text."""
    try:
        document = json.loads(text)
        standing = document["loans"]
        return LoanHistory(
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
