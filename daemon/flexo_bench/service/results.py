"""build/bench/service.json: how parts are merged into it, and how progress is told."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def merge(path: Path, part: str, found: Mapping[str, Any], command: str, *, quick: bool) -> None:
    """Write the keys of one part, and keep those of other parts and earlier runs.

    The key `parts` says of each part when and with which command it ran, and whether that was a quick run.
    """
    known = json.loads(path.read_text()) if path.exists() else {}
    ran = {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "quick": quick,
        "keys": sorted(found),
    }
    parts = {**known.get("parts", {}), part: ran}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**known, **found, "parts": parts}, indent=1) + "\n")


def progress() -> Callable[[str], None]:
    """A function that prints a line to the standard error, with the seconds since now."""
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)

    return tell
