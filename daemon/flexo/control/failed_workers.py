"""Turns leaders' reports of workers that failed, and were started again, into events."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from flexo.events import Event
from flexo.model.measured import FailedWorkers
from flexo.model.queue import JobKey
from flexo.words import counted

_OFTEN: Final = 3
"""From so many failures on within _LATELY_S, they are many."""
_LATELY_S: Final = 600.0
_AGAIN_AFTER_S: Final = 60.0
"""A job's further reports on a node within this time are dropped: leaders can report anything."""


class FailedWorkersLog:
    """See the module."""

    def __init__(self) -> None:
        self._heard: dict[tuple[JobKey, str], float] = {}
        self._often: dict[JobKey, tuple[int, float]] = {}

    def often(self, now: float) -> Mapping[JobKey, int]:
        """How many workers of a job failed in the last 10 minutes, of jobs where these are many."""
        self._often = {job: (many, at) for job, (many, at) in self._often.items() if now < at + _LATELY_S}
        return {job: many for job, (many, _) in self._often.items()}

    def take(
        self, reports: Iterable[FailedWorkers], held: Mapping[JobKey, Container[str]], now: float
    ) -> list[Event]:
        """The events of these reports. `held`: the nodes that jobs have or had a moment ago."""
        self._heard = {place: at for place, at in self._heard.items() if now < at + _AGAIN_AFTER_S}
        events = []
        for report in reports:
            place = report.job, report.node
            if report.lately >= _OFTEN:
                self._often[report.job] = report.lately, now
            if place in self._heard or report.node not in held.get(report.job, ()):
                continue
            self._heard[place] = now
            kind, when = ("worker", "") if report.trained else ("new worker", " before training")
            were = "was" if report.workers == 1 else "were"
            text = (
                f"{counted(report.workers, kind)} on {report.node} failed{when} ({report.how})"
                f" and {were} started again"
            )
            if report.lately >= _OFTEN:
                text += f"; that makes {report.lately} failures in 10 minutes"
            events.append(Event(now, "restart", report.job, text))
        return events
