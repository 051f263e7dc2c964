"""How long a base would wait for faster GPUs: what a start on slower ones is weighed against.

A run keeps its GPUs to its end, so that on slower ones it loses time for as long as it runs. Lyra's slides do
not say when that is worth it. Here it is where the wait for faster ones would take at least as long, if all
that waits started in order, each as soon as it has room, and nothing else came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heappush


class Waits:
    """For GPUs of some types that are alike to a job. Mutable: belongs to one plan in the making."""

    def __init__(self, now: float, room: int, ends: Iterable[tuple[float, int]]) -> None:
        """`room`: GPUs that are free; `ends`: when runs end, and what they give back."""
        self._now = self._at = now
        self._room = room
        self._ends = list(ends)
        heapify(self._ends)

    def starts(self, gpus: int, ends_at: float) -> None:
        """A base starts now on so many of them."""
        self._room -= gpus
        heappush(self._ends, (ends_at, gpus))

    def waits(self, gpus: int, seconds: float) -> None:
        """A base that runs for so long waits for them, before any that is asked for from now on."""
        self._at, self._room = _until(gpus, self._at, self._room, self._ends)
        if self._at < math.inf:
            self._room -= gpus
            heappush(self._ends, (self._at + seconds, gpus))

    def for_s(self, gpus: int) -> float:
        """How long one that needs `gpus` would wait after those; infinite where there are never enough."""
        return _until(gpus, self._at, self._room, self._ends.copy())[0] - self._now


def _until(gpus: int, at: float, room: int, ends: list[tuple[float, int]]) -> tuple[float, int]:
    """From `at` on, when `gpus` are free, and how many are then; the `ends` until then are removed."""
    while room < gpus:
        if not ends:
            return math.inf, room
        ends_at, given = heappop(ends)
        at, room = max(at, ends_at), room + given
    return at, room
