"""What every part of the benchmark is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PartMissing(Exception):
    """This machine lacks what a part needs; the text goes on after "left out:"."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of one run, and where a part finds and leaves files."""

    quick: bool
    """A small part of each measurement is enough."""
    traces: Path
    """The folder of traces of real jobs; it may be missing."""
    build: Path
    """The folder for pictures and logs."""
    tell: Callable[[str], None]
    """Tells the user how far the part is."""
    keep: Callable[[Mapping[str, Any]], None] = lambda found: None
    """Writes the keys that the part has so far. A part that takes long calls it now and then."""
