"""The leaders of simulated elastic jobs, as flexod hears and tells them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from flexo.control.leaders import Orders, Saved
from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey


class SimulatedLeaders:
    """Implements Leaders. What orders mean, and how jobs are, is the world's."""

    def __init__(
        self,
        reports: Callable[[], tuple[LeaderReport, ...]],
        obey: Callable[[JobKey, Orders], None],
    ) -> None:
        self.wake: Final = threading.Event()
        self._reports = reports
        self._obey = obey
        self._failures: list[GrantFailure] = []

    def fail(self, failure: GrantFailure) -> None:
        """A leader gives a grant back."""
        self._failures.append(failure)

    def reports(self) -> tuple[LeaderReport, ...]:
        """Of all elastic jobs whose scripts train."""
        return self._reports()

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """Since this was last asked."""
        failures, self._failures = self._failures, []
        return tuple(failures)

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """All GPUs are equally fast."""
        return ()

    def tell(self, key: JobKey, orders: Orders) -> None:
        """A leader carries its orders out."""
        self._obey(key, orders)

    def save(self, key: JobKey, path: str) -> None:
        """Nothing is written here."""

    def take_saved(self) -> tuple[Saved, ...]:
        """None."""
        return ()
