"""The parts of the benchmark by name. A further part is a function of a Setting, and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flexo_bench.service import (
    case_study,
    comm,
    kills,
    migration,
    sharing,
    simulation,
    slow_links,
    standalone,
)
from flexo_bench.service.setting import PartMissing, Setting

__all__ = ["PARTS", "Part", "PartMissing", "Setting"]

Part = Callable[[Setting], Mapping[str, Any]]
"""Measures, prints its table to the standard output, and returns keys of service.json with their values.
Raises PartMissing if this machine lacks what the part needs."""

PARTS: Final[Mapping[str, Part]] = {
    "simulation": simulation.measure,
    "comm": comm.measure,
    "kills": kills.measure,
    "migration": migration.measure,
    "sharing": sharing.measure,
    "slow_links": slow_links.measure,
    "standalone": standalone.measure,
    "case_study": case_study.measure,
}
