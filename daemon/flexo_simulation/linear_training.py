"""Training whose progress is known from the number of its workers alone: what most traces can tell.

A trace's duration is the time on the workers that it names; on others it is linear, or goes by a table of
speeds (`scalability`). Batches do not matter to it, nor epochs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo.model.measured import Source, Speed
from flexo.model.training import Share

_NOTHING_S: Final = 1e-6
"""What is nearer to the end than this has ended: sums of times are not exact."""


@dataclass(frozen=True, slots=True)
class LinearTraining:
    """A job of so much work (implements Training)."""

    work: float
    """In the unit of `speed`; without one, seconds of one worker."""
    speed: Speed | None = None
    """None: twice the workers do twice the work."""
    source: Source = Source.ORACLE
    """Who tells what is left: a trace's true duration, or a job that counts its own work."""

    def begin(self) -> LinearRun:
        """A run from the start."""
        return LinearRun(self)


class LinearRun:
    """One job's training under way (implements Run)."""

    __slots__ = ("_left", "_source", "_speed")

    def __init__(self, training: LinearTraining) -> None:
        self._speed = training.speed
        self._left = training.work
        self._source = training.source

    @property
    def finished(self) -> bool:
        """Whether all work is done."""
        return self._left <= 0

    @property
    def steady(self) -> bool:
        """Yes: nothing changes unless its workers do."""
        return True

    def time_left_s(self, shares: Sequence[Share], samples: int) -> float:
        """Seconds to its end."""
        if self._left <= 0:
            return 0.0
        rate = self._rate(shares, samples)
        return self._left / rate if rate > 0 else math.inf

    def advance(self, seconds: float, shares: Sequence[Share], samples: int) -> float:
        """Train for `seconds`, or to the end if that comes first; the seconds that it trained."""
        left_s = self.time_left_s(shares, samples)
        if seconds >= left_s - _NOTHING_S:
            self._left = 0.0
            return min(seconds, left_s)
        self._left -= seconds * self._rate(shares, samples)
        return seconds

    def speed(self) -> Speed | None:
        """The true speed: the table is what its leader would have measured."""
        return self._speed

    def remaining_work(self) -> float:
        """The truth; where only an oracle knows it, see `estimates`."""
        return self._left

    @property
    def source(self) -> Source:
        """As its training says."""
        return self._source

    def _rate(self, shares: Sequence[Share], samples: int) -> float:
        workers = 0
        for share in shares:
            workers += share.workers
        return float(workers) if self._speed is None else self._speed.rate(workers, len(shares), samples)
