"""Training whose progress depends on the number of workers alone, which is all that most traces tell.

A trace's duration is the time on the workers that it names. On other numbers of workers, speed is linear, or
goes by a table of speeds (`scalability`). Batches and epochs do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo.model.measured import Source, Speed
from flexo.model.training import NodeShare

_NOTHING_S: Final = 1e-6
"""A run that is nearer to its end than this has ended, because sums of times are not exact."""


@dataclass(frozen=True, slots=True)
class LinearTraining:
    """A job with a fixed amount of work (implements Training)."""

    work: float
    """The work, in the unit of `speed`; without a speed, seconds of one worker."""
    speed: Speed | None = None
    """The speed; None: twice the workers do twice the work."""
    source: Source = Source.ORACLE
    """The source of the remaining work: a trace's true duration, or a job that counts its own work."""

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
        """True: nothing changes unless the workers do."""
        return True

    def time_left_s(self, shares: Sequence[NodeShare], samples: int) -> float:
        """Seconds to the end of the run."""
        if self._left <= 0:
            return 0.0
        rate = self._rate(shares, samples)
        return self._left / rate if rate > 0 else math.inf

    def advance(self, seconds: float, shares: Sequence[NodeShare], samples: int) -> float:
        """Train for `seconds`, or to the end if that comes first. Returns the seconds that it trained."""
        left_s = self.time_left_s(shares, samples)
        if seconds >= left_s - _NOTHING_S:
            self._left = 0.0
            return min(seconds, left_s)
        self._left -= seconds * self._rate(shares, samples)
        return seconds

    def speed(self) -> Speed | None:
        """The true speed, as the job's leader would have measured it."""
        return self._speed

    def speeds(self) -> tuple[tuple[str, Speed], ...]:
        """Empty: the simulation's own table has the pace of each GPU type."""
        return ()

    def remaining_work(self) -> float:
        """The true remaining work; where only an oracle knows it, see `estimates`."""
        return self._left

    @property
    def source(self) -> Source:
        """The source that the training states."""
        return self._source

    def _rate(self, shares: Sequence[NodeShare], samples: int) -> float:
        workers = 0
        for share in shares:
            workers += share.workers
        return float(workers) if self._speed is None else self._speed.rate(workers, len(shares), samples)
