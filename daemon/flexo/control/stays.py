"""How long satellites lately stayed before their GPUs were wanted back, from what is seen of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey

_WINDOW_S: Final = 3600.0
"""What is longer ago says nothing of now."""
_FEWEST: Final = 5
"""Satellites that have to have left before anything is made of it."""
_THERE: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})

_Name = tuple[JobKey, str]


@dataclass(frozen=True, slots=True)
class _Stay:
    ended_at: float
    seconds: float


class Stays:
    """The last hour's. For the controller's thread alone."""

    def __init__(self) -> None:
        self._since: dict[_Name, float] = {}
        """When satellites that are there were first seen there."""
        self._ended: deque[_Stay] = deque()

    def see(self, jobs: Iterable[ElasticJob], now: float, given_back: Container[_Name] = ()) -> None:
        """One look. A satellite that is on its way out has been taken back; one that is gone failed, or its
        base has ended. `given_back`: those that their own jobs wanted to leave say nothing of others."""
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
        """The mean stay, as if each moment were as likely to end one as any other; infinite: not known.

        Those that are still there count as well: the time that all have stayed, to the number that have left.
        """
        if len(self._ended) < _FEWEST:
            return math.inf
        stayed_s = sum(stay.seconds for stay in self._ended)
        stayed_s += sum(min(_WINDOW_S, now - since) for since in self._since.values())
        return stayed_s / len(self._ended)
