"""Determines how often the controller polls the cluster: seldom if polls are expensive or it is idle."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final

from flexo.config import ControllerSettings

_READS_COMPARED: Final = 5
_TIME_LIMIT_SHARE: Final = 0.4
"""The longest interval, as a part of the time limit, whatever a poll costs. flexod extends a time limit when
half of it is left, so it must poll before that."""
_MOST_DOUBLINGS: Final = 16


class PollInterval:
    """The interval, by the cost of the last polls or by the number of failures in a row. Only the
    controller's thread changes it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._read_costs: deque[float] = deque(maxlen=_READS_COMPARED)
        self._failures = 0

    def record_read_cost(self, cost_s: float) -> None:
        """Note that a poll of the cluster took `cost_s` seconds."""
        self._read_costs.append(cost_s)

    def cycle_failed(self) -> None:
        """Note that a cycle failed."""
        self._failures += 1

    def cycle_succeeded(self) -> None:
        """Note that a cycle succeeded."""
        self._failures = 0

    @property
    def shortest_s(self) -> float:
        """The least time from one poll to the next, in seconds.

        It goes by the median cost of the last polls. A single poll may have waited for the cluster's backup
        that was about to take over. Such a wait costs nobody anything.
        """
        settings = self._settings
        if self._failures:
            doublings = min(self._failures, _MOST_DOUBLINGS)
            return min(settings.max_interval_s, settings.min_interval_s * 2.0**doublings)
        cost = median_low(self._read_costs) if self._read_costs else 0.0
        affordable = min(cost / settings.max_read_share, settings.time_limit_s * _TIME_LIMIT_SHARE)
        return max(settings.min_interval_s, affordable)

    def interval_s(self, *, busy: bool) -> float:
        """The time from one poll to the next, unless a leader wakes the loop. `busy`: jobs need attention."""
        if busy or self._failures:
            return self.shortest_s
        return max(self.shortest_s, self._settings.max_interval_s)
