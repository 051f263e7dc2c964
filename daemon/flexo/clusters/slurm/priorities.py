"""Sets priorities of pending jobs with one scontrol, however many there are.

scontrol takes commands from its standard input too, one on a line, and goes on after one that fails. So a
hundred priorities take one process instead of a hundred; for slurmctld they are a hundred small requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexo.clusters.base import Priority
from flexo.clusters.slurm.commands import SlurmCommands

_TOO_LATE = (
    "no longer pending",
    "already completing",
    "invalid job id",
    "already finished",
)
"""Slurm's words for a job that has started or ended since it was seen, in small letters."""


def set_priorities(commands: SlurmCommands, priorities: Sequence[Priority]) -> None:
    """Raises ActionRefused where Slurm refuses what has not come too late, ClusterUnreachable."""
    lines = "".join(f"update JobId={each.job} Priority={each.priority}\n" for each in priorities)
    commands.act("scontrol", lines=lines, harmless=_TOO_LATE)
