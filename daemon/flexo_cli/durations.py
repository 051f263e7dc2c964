"""Durations as people type them: ``30s``, ``15min``, ``2h``, ``3d``."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def read_duration(text: str) -> float | None:
    """The seconds of ``2h`` and the like; None if `text` is no duration."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(s|m|min|h|d)", text)
    return float(match[1]) * _UNITS[match[2]] if match else None
