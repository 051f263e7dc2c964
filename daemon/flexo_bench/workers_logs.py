"""The log files of a job's workers, JSON lines, while they grow: each look parses only what is new.

Tests look five times a second, and a job of four workers writes megabytes: parsing all of it at each look
took more CPU than the workers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class WorkersLogs:
    """All files of `folder` with this `suffix`. Files only grow, and none is removed."""

    folder: Path
    suffix: str = "jsonl"
    _read: dict[Path, int] = field(default_factory=dict)
    """Bytes of each file that have been parsed."""
    _events: list[Event] = field(default_factory=list)

    def events(self, *kinds: str) -> list[Event]:
        """Events of these kinds (of all, without any), by `time`; each with the `log` that it stands in."""
        self._events += self.new()
        self._events.sort(key=lambda event: event["time"])
        return [event for event in self._events if not kinds or event["event"] in kinds]

    def new(self) -> list[Event]:
        """What was written since the last look, file by file.

        Whole lines only: a worker may be in the middle of writing its last one, or was killed in it.
        """
        return [event for path in sorted(self.folder.glob(f"*.{self.suffix}")) for event in self._added(path)]

    def _added(self, path: Path) -> list[Event]:
        start = self._read.get(path, 0)
        with path.open("rb") as log:
            log.seek(start)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = start + len(whole)
        return [{**json.loads(line), "log": path.stem} for line in whole.splitlines()]
