"""yarn.json: the record of a YARN lab, from which other processes load the lab."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexo_lab.record import replace_record
from flexo_lab.yarn.spec import Protection, YarnLabSpec


@dataclass(frozen=True, slots=True)
class YarnRecord:
    """The record of a YARN lab. `up` is false until every part of the lab answers."""

    spec: YarnLabSpec
    number: int
    """See YarnLayout."""
    up: bool

    def write(self, path: Path) -> None:
        """Replace `path` in one step: readers see the old record or the new one."""
        replace_record(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> YarnRecord | None:
        """Read the record at `path`; None if there is none, or it cannot be read."""
        try:
            data = json.loads(path.read_text())
            return cls(_spec(data["spec"]), int(data["number"]), bool(data["up"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _spec(data: dict[str, Any]) -> YarnLabSpec:
    return YarnLabSpec(**{**data, "protection": Protection(data["protection"])})
