"""Checks how fast Slurm's schedulers go round: a satellite waits for its turn like any other job."""

from __future__ import annotations

from typing import Final

from flexo.clusters.slurm.parse_config import parameter
from flexo.doctor.finding import Finding, ok, problem, warning
from flexo.doctor.slurm_says import SchedulerStats, SlurmConfig

LONGEST_TURN_S: Final = 120.0
"""The longest turn without a warning: GPUs that wait longer for a satellite are idle for no good reason."""
LONGEST_CYCLE_S: Final = 5.0
"""The longest cycle without a warning: while the main scheduler works, slurmctld answers nobody."""
_TESTED_BY_BACKFILL: Final = 500
"""The default of bf_max_job_test (slurm.conf(5), SchedulerParameters)."""
_PARTITIONS: Final = 10
"""The number of partitions that must be able to have their full share of the jobs that backfill looks at."""


def check_scheduler(config: SlurmConfig, stats: SchedulerStats, start_within_s: int | None) -> list[Finding]:
    """Check backfill, its turn and its depth, and the main scheduler's cycle.

    `start_within_s`: the time that flexo.toml allows a satellite to wait; None: flexod goes by backfill's
    turn.
    """
    if without := check_backfill(config):
        return [without]
    return [_turn(stats, start_within_s), _depth(config, stats), _main(stats)]


def check_backfill(config: SlurmConfig) -> Finding | None:
    """A problem without backfill; else None."""
    if config.scheduler_type == "sched/backfill":
        return None
    return problem(
        "scheduler.backfill",
        f"SchedulerType={config.scheduler_type}: without backfill satellites, of the lowest tier,"
        " wait behind every job that waits for nodes of theirs",
        "slurm.conf: SchedulerType=sched/backfill; restart slurmctld.",
    )


def _turn(stats: SchedulerStats, start_within_s: int | None) -> Finding:
    check, turn = "scheduler.turn", stats.backfill_turn_s
    said = (
        f"while bigger jobs wait, a satellite gets its turn every {turn:.0f} s (bf_interval, slowest cycle)"
    )
    if start_within_s is not None and start_within_s < turn:
        return warning(
            check,
            f"{said}, and [controller] start_within_s = {start_within_s} gives up sooner",
            "Leave start_within_s out of flexo.toml, so that flexod goes by what Slurm says; restart flexod.",
        )
    if turn > LONGEST_TURN_S:
        return warning(
            check,
            f"{said}: GPUs stay idle for that long",
            "slurm.conf: a smaller bf_interval in SchedulerParameters, or less work for each cycle"
            " (bf_max_job_test, bf_resolution, bf_window); then `scontrol reconfigure`.",
        )
    return ok(check, said)


def _depth(config: SlurmConfig, stats: SchedulerStats) -> Finding:
    check = "scheduler.depth"
    tested = parameter(config.scheduler_parameters, "bf_max_job_test", _TESTED_BY_BACKFILL)
    if stats.backfill_queue <= tested:
        return ok(
            check, f"backfill looks at all {stats.backfill_queue} jobs that wait (bf_max_job_test={tested})"
        )
    of_each = parameter(config.scheduler_parameters, "bf_max_job_part", 0)
    if 0 < of_each <= tested // _PARTITIONS:
        return ok(
            check, f"backfill looks at {of_each} jobs of each partition, satellites' too (bf_max_job_part)"
        )
    return warning(
        check,
        f"{stats.backfill_queue} jobs wait, and backfill looks at the first {tested} of them; satellites, of"
        " the lowest tier, are the last",
        "slurm.conf: SchedulerParameters=...,bf_max_job_part=50,bf_max_job_test=1000,bf_continue; then"
        " `scontrol reconfigure`. Backfill then looks at 50 jobs of each partition.",
    )


def _main(stats: SchedulerStats) -> Finding:
    check = "scheduler.cycle"
    said = f"the slowest cycle of the main scheduler took {stats.main_max_s:.3g} s"
    if stats.main_max_s <= LONGEST_CYCLE_S:
        return ok(check, said)
    return warning(
        check,
        f"{said}, in which slurmctld answers nobody, flexod neither",
        "slurm.conf: a smaller default_queue_depth or max_sched_time in SchedulerParameters; `sdiag` shows"
        " what it does.",
    )
