"""Checks preemption for the whole cluster: it lets Slurm reclaim satellites, whether flexod lives or not."""

from __future__ import annotations

from typing import Final

from flexo.doctor.finding import Finding, ok, problem, warning
from flexo.doctor.slurm_says import SlurmConfig

BY_PARTITION: Final = "preempt/partition_prio"
BY_QOS: Final = "preempt/qos"
_YOUNGEST_FIRST: Final = ("preempt_youngest_first", "youngest_first")
"""The names of the option in SchedulerParameters, and in PreemptParameters."""


def check_preemption(config: SlurmConfig) -> list[Finding]:
    """Check PreemptType, PreemptMode, PreemptExemptTime, and the order in which jobs are preempted."""
    return [_type(config), _mode(config), _exempt(config), _order(config)]


def _type(config: SlurmConfig) -> Finding:
    check = "preemption.type"
    if config.preempt_type == BY_PARTITION:
        return ok(check, f"PreemptType={BY_PARTITION}: Slurm takes satellites back by itself")
    if config.preempt_type == BY_QOS:
        return ok(check, f"PreemptType={BY_QOS}: Slurm takes satellites back if their QOS gives way")
    return problem(
        check,
        f"PreemptType={config.preempt_type or 'preempt/none'}: Slurm does not take satellites back",
        f"slurm.conf: PreemptType={BY_PARTITION} and PreemptMode=REQUEUE; restart slurmctld.",
    )


def _mode(config: SlurmConfig) -> Finding:
    check, said = "preemption.mode", ",".join(config.preempt_mode)
    if "SUSPEND" in config.preempt_mode and "GANG" not in config.preempt_mode:
        return problem(
            check,
            f"PreemptMode={said} without GANG: slurmctld does not start with it",
            "slurm.conf: PreemptMode=SUSPEND,GANG, or PreemptMode=REQUEUE; restart slurmctld.",
        )
    if set(config.preempt_mode) - {"OFF", "GANG"}:
        return ok(check, f"PreemptMode={said} for partitions that name none of their own")
    return problem(
        check,
        f"PreemptMode={said or 'OFF'}: preemption is off for the whole cluster",
        "slurm.conf: PreemptMode=REQUEUE, and PreemptMode=OFF for each partition whose jobs shall never be"
        " preempted; restart slurmctld.",
    )


def _exempt(config: SlurmConfig) -> Finding:
    check = "preemption.exempt"
    if not config.preempt_exempt_s:
        return ok(check, "no job is exempt from preemption for a while")
    return warning(
        check,
        f"PreemptExemptTime: a satellite cannot be taken back in its first {config.preempt_exempt_s} s",
        "slurm.conf: PreemptExemptTime=0, then `scontrol reconfigure`.",
    )


def _order(config: SlurmConfig) -> Finding:
    check = "preemption.order"
    words = {*config.scheduler_parameters, *config.preempt_parameters}
    youngest = sorted(words.intersection(_YOUNGEST_FIRST))
    if not youngest:
        return ok(check, "of satellites alike the oldest is taken first, as flexod expects")
    return warning(
        check,
        f"{youngest[0]} is set: Slurm takes the youngest satellite first, and flexod expects the oldest",
        f"slurm.conf: leave {youngest[0]} out, then `scontrol reconfigure`.",
    )
