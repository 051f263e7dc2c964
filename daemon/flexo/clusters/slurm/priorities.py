"""Sets priorities of pending jobs with one scontrol, however many jobs there are.

scontrol also takes commands from its standard input, one on a line, and goes on after one that fails. So a
hundred priorities take one process instead of a hundred. For slurmctld they are a hundred small requests.
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
    """Set the priorities. Raises ClusterUnreachable, and ActionRefused if Slurm refuses for any reason but
    that a job has started or ended."""
    lines = "".join(f"update JobId={each.job} Priority={each.priority}\n" for each in priorities)
    commands.act("scontrol", lines=lines, harmless=_TOO_LATE)
