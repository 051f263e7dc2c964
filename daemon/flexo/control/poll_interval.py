"""Determines how often the controller polls the cluster: rarely if polls are slow or no job needs it."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final

from flexo.config import ControllerSettings

_POLLS_IN_MEDIAN: Final = 5
_TIME_LIMIT_SHARE: Final = 0.4
"""The longest interval while jobs need attention, as a part of a satellite's time limit, however slow polls
are. flexod extends a time limit when half of it is left, so it must poll before that."""
_MOST_DOUBLINGS: Final = 16


class PollInterval:
    """Computes the interval from the duration of the last polls, or from the number of failures in a row.

    Only the controller's thread changes it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._poll_costs: deque[float] = deque(maxlen=_POLLS_IN_MEDIAN)
        self._failures = 0

    def record_poll_cost(self, cost_s: float) -> None:
        """Note that a poll of the cluster took `cost_s` seconds."""
        self._poll_costs.append(cost_s)

    def cycle_failed(self) -> None:
        """Note that a cycle failed."""
        self._failures += 1

    def cycle_succeeded(self) -> None:
        """Note that a cycle succeeded."""
        self._failures = 0

    @property
    def least_interval_s(self) -> float:
        """The least time from one poll to the next, in seconds; after failures, the back-off.

        It depends on the median of the last polls, because one slow poll is no trend. It may only have waited
        while the cluster's backup controller took over.
        """
        settings = self._settings
        if self._failures:
            doublings = min(self._failures, _MOST_DOUBLINGS)
            return min(settings.max_interval_s, settings.min_interval_s * 2.0**doublings)
        cost = median_low(self._poll_costs) if self._poll_costs else 0.0
        affordable = min(cost / settings.max_read_share, settings.time_limit_s * _TIME_LIMIT_SHARE)
        return max(settings.min_interval_s, affordable)

    def interval_s(self, *, busy: bool) -> float:
        """The time from one poll to the next, unless a job's leader wakes the controller before.

        `busy`: jobs need attention."""
        if busy or self._failures:
            return self.least_interval_s
        return max(self.least_interval_s, self._settings.max_interval_s)
