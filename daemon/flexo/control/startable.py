"""Grants no more satellites at a time than the cluster can start before their leaders give them up again.

A cluster starts so many jobs of a partition in each of its turns (`StartBounds`). A thousand satellites
submitted at once would nearly all be cancelled after `start_within_s` and submitted anew, over and over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from flexo.clusters.base import StartBounds
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.plans import Action, Grow, Note, Plan

_WAITING = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})


def not_more_than_start(
    plan: Plan, jobs: Iterable[ElasticJob], bounds: StartBounds, start_within_s: float
) -> Plan:
    """`plan`, without the new grants by which more satellites of a partition would wait than start in time.

    What is left out is planned again when some have started.
    """
    most = bounds.within(start_within_s)
    if most is None:
        return plan
    waiting = Counter(grant.partition for job in jobs for grant in job.grants if grant.state in _WAITING)
    actions: list[Action] = []
    notes = []
    for action in plan.actions:
        if isinstance(action, Grow):
            if waiting[action.partition] >= most:
                notes.append(Note(action.job, _why(action, most, bounds.setting)))
                continue
            waiting[action.partition] += 1
        actions.append(action)
    return replace(plan, actions=tuple(actions), notes=(*plan.notes, *notes)) if notes else plan


def _why(grow: Grow, most: int, setting: str) -> str:
    text = (
        f"{grow.node} is not granted yet: {most} satellites wait in {grow.partition} already, as many as"
        " the cluster starts in the time that they have"
    )
    return f"{text} ({setting})" if setting else text
