"""`scontrol show config` and `sdiag`: what Slurm says of itself. Pure functions."""

from __future__ import annotations

import re

from flexo.clusters.base import ClusterTraits

_DEFAULT_BACKFILL_INTERVAL_S = 30.0
"""slurm.conf(5), SchedulerParameters, bf_interval."""


def parse_traits(config: str, diagnosis: str) -> ClusterTraits:
    """Name, release, and how long one turn of backfill takes: its interval and its slowest cycle so far."""
    return ClusterTraits(
        name=_setting(config, "ClusterName"),
        version=_setting(config, "SLURM_VERSION"),
        backfill_interval_s=_backfill_interval_s(_setting(config, "SchedulerParameters"))
        + _slowest_backfill_cycle_s(diagnosis),
    )


def _setting(config: str, name: str) -> str:
    match = re.search(rf"^{name}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return match[1] if match else ""


def _backfill_interval_s(scheduler_parameters: str) -> float:
    match = re.search(r"(?:^|,)bf_interval=(\d+)", scheduler_parameters)
    return float(match[1]) if match else _DEFAULT_BACKFILL_INTERVAL_S


def _slowest_backfill_cycle_s(diagnosis: str) -> float:
    backfill = diagnosis.partition("Backfilling stats")[2]
    match = re.search(r"^\s*Max cycle:\s*(\d+)", backfill, re.MULTILINE)
    return int(match[1]) / 1e6 if match else 0.0
