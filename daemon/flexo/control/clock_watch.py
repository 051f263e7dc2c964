"""Notices that the clock was set: the one that tells the time of day, against one that nobody sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JUMP_S: Final = 5.0
"""So far apart the two may run from one look to the next; what NTP corrects bit by bit stays below."""


class ClockWatch:
    """The two clocks as of the last look. For one thread."""

    def __init__(self, clock: Callable[[], float], steady: Callable[[], float]) -> None:
        self._clock = clock
        self._steady = steady
        self._apart = clock() - steady()

    def jump(self) -> float:
        """By how many seconds the clock was set since the last look: forward above 0; 0: it was not."""
        before, self._apart = self._apart, self._clock() - self._steady()
        jump = self._apart - before
        return jump if abs(jump) > JUMP_S else 0.0
