"""Checks this host's clock against slurmctld's: time limits and MUNGE's credentials need equal clocks."""

from __future__ import annotations

from typing import Final

from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo_protos.credentials import LIFETIME_S

NOTICEABLE_S: Final = 5.0
"""The least difference that is reported, beyond the time of the answer and slurmctld's whole seconds."""


def check_clock(controller_at: float, asked_at: float, answered_at: float) -> list[Finding]:
    """Check the clock. `controller_at`: slurmctld's clock at some time between `asked_at` and `answered_at`,
    which are of this host's clock; 0: slurmctld did not say."""
    check = "clock"
    if not controller_at:
        return [not_checked(check, "slurmctld did not say what time it is")]
    off = max(asked_at - (controller_at + 1.0), controller_at - answered_at, 0.0)
    fix = "Let one time service run on all hosts: `timedatectl`, `chronyc tracking`."
    if off > LIFETIME_S:
        said = f"this host's clock and slurmctld's differ by {off:.0f} s: MUNGE refuses credentials"
        return [problem(check, f"{said} older than {LIFETIME_S} s", fix)]
    if off > NOTICEABLE_S:
        return [warning(check, f"this host's clock and slurmctld's differ by {off:.0f} s", fix)]
    return [ok(check, "this host's clock agrees with slurmctld's")]
