"""`scontrol show config` and `sdiag`: what Slurm says of itself. Pure functions."""

from __future__ import annotations

import re

from flexo.clusters.base import ClusterTraits

_DEFAULT_BACKFILL_INTERVAL_S = 30.0
"""slurm.conf(5), SchedulerParameters, bf_interval."""


def parse_traits(config: str, diagnosis: str) -> ClusterTraits:
    """Name, release, how long one turn of backfill takes, its interval and its slowest cycle so far, and how
    many jobs of a partition it looks at.
    """
    parameters = _setting(config, "SchedulerParameters")
    return ClusterTraits(
        name=_setting(config, "ClusterName"),
        version=_setting(config, "SLURM_VERSION"),
        backfill_interval_s=_backfill_interval_s(parameters) + _slowest_backfill_cycle_s(diagnosis),
        starts_in_a_turn=_jobs_of_a_partition(parameters),
    )


def _setting(config: str, name: str) -> str:
    match = re.search(rf"^{name}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return match[1] if match else ""


def _backfill_interval_s(scheduler_parameters: str) -> float:
    match = re.search(r"(?:^|,)bf_interval=(\d+)", scheduler_parameters)
    return float(match[1]) if match else _DEFAULT_BACKFILL_INTERVAL_S


def _jobs_of_a_partition(scheduler_parameters: str) -> int | None:
    """bf_max_job_part; 0, as by default, is no limit of its own."""
    match = re.search(r"(?:^|,)bf_max_job_part=(\d+)", scheduler_parameters)
    return int(match[1]) or None if match else None


def _slowest_backfill_cycle_s(diagnosis: str) -> float:
    backfill = diagnosis.partition("Backfilling stats")[2]
    match = re.search(r"^\s*Max cycle:\s*(\d+)", backfill, re.MULTILINE)
    return int(match[1]) / 1e6 if match else 0.0
