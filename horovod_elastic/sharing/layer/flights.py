"""Bounds how much work of the opportunistic job is queued on a GPU: an event every K operations.

Kernels are launched long before they run. Without a bound, the gate would close on a job whose queue is
full.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

GOAL_MS = 1.0
"""What is queued between two events should take about this long."""
MOST_QUEUED = 2
"""Events on the GPU at a time."""
_FEWEST, _MOST = 1, 64


class Flights:
    """The opportunistic job's queue on a GPU. `every`: module boundaries from event to event."""

    def __init__(self, event: Any = None) -> None:
        self._event = event or (lambda: torch.cuda.Event(enable_timing=True, blocking=True))
        self._queued: deque[Any] = deque()
        self._since = 0
        self.every = 8

    def boundary(self) -> None:
        """Note a module boundary. Waits if too much is queued."""
        self._since += 1
        if self._since < self.every:
            return
        self._since = 0
        event = self._event()
        event.record()
        self._queued.append(event)
        if len(self._queued) > MOST_QUEUED:
            first = self._queued.popleft()
            first.synchronize()
            second = self._queued[0]
            second.synchronize()
            self._adapt(float(first.elapsed_time(second)))

    def forget(self) -> None:
        """Everything has run: the device was drained."""
        self._queued.clear()
        self._since = 0

    def _adapt(self, took_ms: float) -> None:
        if took_ms > GOAL_MS:
            self.every = max(_FEWEST, self.every // 2)
        elif took_ms < GOAL_MS / 4:
            self.every = min(_MOST, self.every + 1)
