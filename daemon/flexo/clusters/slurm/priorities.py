"""Sets priorities of pending jobs with one scontrol, however many jobs there are.

scontrol also takes commands from its standard input, one on a line, and goes on after one that fails. So a
hundred priorities take one process instead of a hundred. For slurmctld they are a hundred small requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexo.clusters.base import Priority
from flexo.clusters.priority_band import PriorityBand
from flexo.clusters.slurm.commands import SlurmCommands

_TOO_LATE = (
    "no longer pending",
    "already completing",
    "invalid job id",
    "already finished",
)
"""Slurm's words for a job that has started or ended since it was seen, in small letters."""
BAND: Final = PriorityBand(4_294_910_000, 4_294_960_000)
"""Slurm's own priorities are below, whichever plugin sets them: `priority/basic` counts down from 4294901760
(0xffff0000), and weights of `priority/multifactor` add up to less. So jobs that flexod has put in order come
before all others, and no job overtakes them by being new. Slurm's limit is above, with room for priorities
that administrators set by hand."""


def set_priorities(commands: SlurmCommands, priorities: Sequence[Priority]) -> None:
    """Set the priorities. Raises ClusterUnreachable, and ActionRefused if Slurm refuses for any reason but
    that a job has started or ended."""
    lines = "".join(f"update JobId={each.job} Priority={each.priority}\n" for each in priorities)
    commands.act("scontrol", lines=lines, harmless=_TOO_LATE)
