"""What came of both parts: build/chaos/report.json, and a sentence for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """One of the two parts of make test-chaos."""

    name: str
    """`jobs` or `system`: also the option that repeats it."""
    runs: int
    kills: dict[str, int]
    """How often each deed was done to each kind of victim."""
    violations: tuple[str, ...]
    seeds_failed: tuple[int, ...]
    details: dict[str, Any]
    """Of this part alone; goes into the file as it is."""


def count(deeds: Sequence[tuple[str, str]]) -> dict[str, int]:
    """(deed, victim) -> how often, sorted by name."""
    names = [f"{deed} {victim}" for deed, victim in deeds]
    return {name: names.count(name) for name in sorted(set(names))}


def write(parts: Sequence[Part], seconds: float, path: Path) -> None:
    """The file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "runs": sum(part.runs for part in parts),
        "kills": sum(sum(part.kills.values()) for part in parts),
        "violations": sum(len(part.violations) for part in parts),
        "seeds_failed": [f"{part.name} {seed}" for part in parts for seed in part.seeds_failed],
        "seconds": round(seconds, 1),
        "parts": [asdict(part) for part in parts],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def sentence(part: Part) -> str:
    """The last line of a part."""
    well = part.runs - len(part.seeds_failed)
    return (
        f"{part.name}: {well} of {part.runs} went well, {sum(part.kills.values())} failures of "
        f"{len(part.kills)} kinds, {len(part.violations)} violations"
    )
