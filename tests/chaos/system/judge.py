"""All invariants, each a function from the evidence to what violates it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaos.system import job_checks, slurm_checks
from chaos.system.evidence import Evidence, Violation


def no_daemon_dies(evidence: Evidence) -> Iterable[Violation]:
    """flexod and Slurm's daemons end only if somebody ends them."""
    return [Violation("no daemon dies by itself", what) for what in evidence.deaths]


def nothing_is_left(evidence: Evidence) -> Iterable[Violation]:
    """When the last job has ended, no process and no satellite of it is there."""
    return [Violation("nothing is left behind", what) for what in evidence.remains]


INVARIANTS: tuple[Callable[[Evidence], Iterable[Violation]], ...] = (
    slurm_checks.no_gpu_is_given_twice,
    slurm_checks.no_grant_is_given_twice,
    slurm_checks.nobody_outlives_its_base,
    slurm_checks.nobody_waits_too_long,
    slurm_checks.no_job_is_lost,
    slurm_checks.no_base_is_taken,
    slurm_checks.only_servers_are_borrowed,
    slurm_checks.no_server_in_use_stays_borrowed,
    job_checks.no_gpu_is_used_twice,
    job_checks.sizes_stay_in_range,
    job_checks.every_sample_counts_once,
    job_checks.only_hits_cost_steps,
    job_checks.training_goes_on,
    no_daemon_dies,
    nothing_is_left,
)


def judge(evidence: Evidence) -> tuple[Violation, ...]:
    """Everything that is wrong; nothing: all invariants hold."""
    return tuple(violation for invariant in INVARIANTS for violation in invariant(evidence))
