"""Grants no more satellites at a time than Slurm can start before their leaders give them up again.

Backfill looks at so many jobs of a partition in each of its turns (bf_max_job_part). A thousand satellites
submitted at once would nearly all be cancelled after `start_within_s` and submitted anew, over and over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from flexo.model import Action, ElasticJob, Grow, Note, Plan, SatelliteState

_WAITING = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})


def not_more_than_start(plan: Plan, jobs: Iterable[ElasticJob], most: int | None) -> Plan:
    """`plan`, without the new grants by which more than `most` satellites of a partition would wait.

    None: however many. What is left out is planned again when some have started.
    """
    if most is None:
        return plan
    waiting = Counter(grant.partition for job in jobs for grant in job.grants if grant.state in _WAITING)
    actions: list[Action] = []
    notes = []
    for action in plan.actions:
        if isinstance(action, Grow):
            if waiting[action.partition] >= most:
                notes.append(Note(action.job, _why(action, most)))
                continue
            waiting[action.partition] += 1
        actions.append(action)
    return replace(plan, actions=tuple(actions), notes=(*plan.notes, *notes)) if notes else plan


def _why(grow: Grow, most: int) -> str:
    return (
        f"{grow.node} is not granted yet: {most} satellites wait in {grow.partition} already, as many as"
        " Slurm starts in the time that they have (bf_max_job_part)"
    )
