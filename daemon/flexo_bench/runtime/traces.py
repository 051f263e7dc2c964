"""Reads resizes from a flexo leader's trace (FLEXO_TRACE)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexo_bench.runtime.pauses import Pause

FILE = "trace.jsonl"
"""Name of the trace in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Traced:
    """One line of the trace."""

    at: float
    event: str
    fields: dict[str, Any]


def read(folder: Path) -> list[Traced]:
    """Lines of the trace in order of time; none if there is no trace. A torn last line is left out."""
    path = folder / FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            found.append(Traced(fields.pop("time"), fields.pop("event"), fields))
    return sorted(found, key=lambda each: each.at)


def grant_to_useful(folder: Path, asked_at: float, cost: Pause) -> float | None:
    """Time from the first grant after the request to the end of the first mini-batch at the new size."""
    useful_at = asked_at + cost.first_useful_s
    grants = [e.at for e in read(folder) if e.event == "grant" and asked_at <= e.at <= useful_at]
    return useful_at - grants[0] if grants else None
