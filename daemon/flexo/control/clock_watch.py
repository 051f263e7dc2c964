"""Detects that the wall clock was set: compares it with a steady clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JUMP_S: Final = 5.0
"""The largest drift between the two clocks from one check to the next. NTP's gradual corrections stay below
it."""


class ClockWatch:
    """The difference between the two clocks at the last check. For one thread."""

    def __init__(self, clock: Callable[[], float], steady: Callable[[], float]) -> None:
        self._clock = clock
        self._steady = steady
        self._apart = clock() - steady()

    def jump(self) -> float:
        """Seconds by which the clock was set since the last check: above 0 is forward, 0 is not at all."""
        before, self._apart = self._apart, self._clock() - self._steady()
        jump = self._apart - before
        return jump if abs(jump) > JUMP_S else 0.0
