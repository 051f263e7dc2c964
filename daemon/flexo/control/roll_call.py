"""After a start nothing is granted before the jobs that run have said what they were granted before.

A grant that its leader has heard and not submitted yet is known to nobody but that leader: until it has
attached to this flexod, the GPUs look idle and would be promised a second time. A job of one size was never
granted any.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Final

from flexo.model.elastic import ElasticJob
from flexo.model.plans import Grow, Note, Plan
from flexo.model.queue import JobKey

PATIENCE_S: Final = 45.0
"""Leaders dial again every 30 s at the latest (horovod_elastic/leader/daemon_link.py). Those that have not by
then are gone, and what they were granted is in the queue or nowhere."""


class RollCall:
    """Who is still waited for. For the controller's thread alone."""

    def __init__(self) -> None:
        self._awaited: frozenset[JobKey] | None = None
        """None: nobody has looked yet."""
        self._until = 0.0

    def held_back(
        self, plan: Plan, jobs: Iterable[ElasticJob], attached: Container[JobKey], now: float
    ) -> Plan:
        """`plan`, without new grants for as long as a job is waited for that ran at the first look."""
        running = frozenset(job.key for job in jobs if job.workers.max > job.workers.min)
        if self._awaited is None:
            self._awaited, self._until = running, now + PATIENCE_S
        here = frozenset(key for key in self._awaited if key not in running or key in attached)
        self._awaited = frozenset() if now > self._until else self._awaited - here
        held = [action for action in plan.actions if isinstance(action, Grow)] if self._awaited else []
        if not held:
            return plan
        notes = tuple(Note(action.job, _why(action, len(self._awaited))) for action in held)
        actions = tuple(action for action in plan.actions if action not in held)
        return replace(plan, actions=actions, notes=(*plan.notes, *notes))


def _why(grow: Grow, missing: int) -> str:
    leaders = "one leader" if missing == 1 else f"{missing} leaders"
    return f"{grow.node} is not granted yet: flexod has just begun, and waits to hear from {leaders}"
