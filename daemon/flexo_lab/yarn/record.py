"""yarn.json: the record of a YARN lab, from which other processes load the lab."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexo_lab.yarn.spec import Protection, YarnLabSpec

FILE = "yarn.json"


@dataclass(frozen=True, slots=True)
class YarnRecord:
    """The record of a YARN lab. `up` is false until every part of the lab answers."""

    spec: YarnLabSpec
    number: int
    """See Place."""
    up: bool

    def write(self, folder: Path) -> None:
        """Replace the record in one step: readers see the old record or the new one."""
        fresh = folder / f"{FILE}.new"
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n")
        fresh.replace(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> YarnRecord | None:
        """Read the record in the lab's folder; None if there is none, or it cannot be read."""
        try:
            data = json.loads((folder / FILE).read_text())
            return cls(_spec(data["spec"]), int(data["number"]), bool(data["up"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _spec(data: dict[str, Any]) -> YarnLabSpec:
    return YarnLabSpec(**{**data, "protection": Protection(data["protection"])})
