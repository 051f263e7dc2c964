"""Parses `scontrol show config` and `sdiag`, Slurm's description of itself. Pure functions."""

from __future__ import annotations

import re

from flexo.clusters.base import ClusterTraits, StartBounds
from flexo.clusters.slurm.text import or_empty

_DEFAULT_BACKFILL_INTERVAL_S = 30
"""The default of bf_interval (slurm.conf(5), SchedulerParameters)."""


def parse_traits(config: str, diagnosis: str) -> ClusterTraits:
    """The traits: name, release, the duration of one turn of backfill (its interval and its slowest cycle so
    far), and how many jobs of a partition backfill looks at."""
    parameters = words(setting(config, "SchedulerParameters"))
    interval_s = parameter(parameters, "bf_interval", _DEFAULT_BACKFILL_INTERVAL_S)
    return ClusterTraits(
        name=setting(config, "ClusterName"),
        version=setting(config, "SLURM_VERSION"),
        starts=StartBounds(
            turn_s=interval_s + _slowest_backfill_cycle_s(diagnosis),
            # 0, as by default, is no limit of its own
            per_turn=parameter(parameters, "bf_max_job_part", 0) or None,
            setting="bf_max_job_part",
        ),
    )


def setting(config: str, name: str) -> str:
    """The value of a setting in `scontrol show config`; "" if it is missing or (null)."""
    match = re.search(rf"^{name}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return or_empty(match[1]) if match else ""


def words(text: str) -> tuple[str, ...]:
    """The words between commas."""
    return tuple(word for word in or_empty(text).split(",") if word)


def parameter(parameters: tuple[str, ...], name: str, default: int) -> int:
    """The number of `name=N` among Slurm's parameters; `default` if it is missing or no number."""
    for word in parameters:
        key, _, value = word.partition("=")
        if key == name and value.isdecimal():
            return int(value)
    return default


def _slowest_backfill_cycle_s(diagnosis: str) -> float:
    backfill = diagnosis.partition("Backfilling stats")[2]
    match = re.search(r"^\s*Max cycle:\s*(\d+)", backfill, re.MULTILINE)
    return int(match[1]) / 1e6 if match else 0.0
