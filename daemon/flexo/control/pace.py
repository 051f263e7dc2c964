"""How often the controller looks at the cluster: by what a look costs, and seldom where nothing is to do."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final

from flexo.config import ControllerSettings

_READS_COMPARED: Final = 5
_LEASE_SHARE: Final = 0.4
"""Whatever a look costs: leases are extended when half of one is left, so the next look comes before that."""
_MOST_DOUBLINGS: Final = 16


class Pace:
    """What the last looks cost, or how many failed in a row. The controller's thread alone changes it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._read_costs: deque[float] = deque(maxlen=_READS_COMPARED)
        self._failures = 0

    def looked(self, cost_s: float) -> None:
        """A look at the cluster took so long."""
        self._read_costs.append(cost_s)

    def failed(self) -> None:
        """A cycle came to nothing."""
        self._failures += 1

    def succeeded(self) -> None:
        """A cycle went well."""
        self._failures = 0

    @property
    def least_s(self) -> float:
        """From one look to the next at least.

        By the median of the last looks: a look may wait for a backup controller that is about to take over,
        and has cost nobody anything then.
        """
        settings = self._settings
        if self._failures:
            doublings = min(self._failures, _MOST_DOUBLINGS)
            return min(settings.max_interval_s, settings.min_interval_s * 2.0**doublings)
        cost = median_low(self._read_costs) if self._read_costs else 0.0
        affordable = min(cost / settings.max_read_share, settings.lease_s * _LEASE_SHARE)
        return max(settings.min_interval_s, affordable)

    def interval_s(self, *, busy: bool) -> float:
        """From one look to the next, unless a leader calls. `busy`: there are jobs to look after."""
        if busy or self._failures:
            return self.least_s
        return max(self.least_s, self._settings.max_interval_s)
