"""Estimates how long satellites stay before their GPUs are needed again, from recent observations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey

_WINDOW_S: Final = 3600.0
"""The window of observations: older ones say nothing about the present."""
_FEWEST: Final = 5
"""The fewest reclaimed satellites that make an estimate possible."""
_THERE: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})

_Name = tuple[JobKey, str]


@dataclass(frozen=True, slots=True)
class _Stay:
    ended_at: float
    seconds: float


class ResidencyEstimator:
    """The stays of satellites in the last hour. For the controller's thread alone."""

    def __init__(self) -> None:
        self._since: dict[_Name, float] = {}
        """The time when each present satellite was first seen."""
        self._ended: deque[_Stay] = deque()

    def see(self, jobs: Iterable[ElasticJob], now: float, given_back: Container[_Name] = ()) -> None:
        """Process one poll. `given_back`: satellites that their own jobs gave up.

        A satellite on its way out has been reclaimed, unless its job gave it up. A satellite that is gone
        failed, or its base job has ended. Only reclaimed satellites count.
        """
        states = {(job.key, grant.grant_id): grant.state for job in jobs for grant in job.grants}
        there = {name for name, state in states.items() if state in _THERE}
        for name in self._since.keys() - there:
            since = self._since.pop(name)
            if states.get(name) is SatelliteState.LEAVING and name not in given_back:
                self._ended.append(_Stay(now, now - since))
        for name in there:
            self._since.setdefault(name, now)
        while self._ended and self._ended[0].ended_at < now - _WINDOW_S:
            self._ended.popleft()

    def likely_s(self, now: float) -> float:
        """The mean stay, if each moment is as likely as any other to end a stay; infinite: not known.

        Satellites that are still present count as well: the mean is the time that all satellites have stayed,
        divided by the number of satellites that have left.
        """
        if len(self._ended) < _FEWEST:
            return math.inf
        stayed_s = sum(stay.seconds for stay in self._ended)
        stayed_s += sum(min(_WINDOW_S, now - since) for since in self._since.values())
        return stayed_s / len(self._ended)
