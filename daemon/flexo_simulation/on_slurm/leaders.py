"""The leaders of simulated elastic jobs, which report to flexod and carry out its orders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from flexo.control.leaders import Orders, Saved
from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import FailedWorkers, SlowGpuReport
from flexo.model.queue import JobKey


class SimulatedLeaders:
    """The leaders of all jobs (implements Leaders). The world makes the reports, and carries out the
    orders."""

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
        """Record that a leader gives a grant back."""
        self._failures.append(failure)

    def reports(self) -> tuple[LeaderReport, ...]:
        """The reports of all elastic jobs whose scripts train."""
        return self._reports()

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The failures since the last call."""
        failures, self._failures = self._failures, []
        return tuple(failures)

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """No report: all GPUs are equally fast."""
        return ()

    def take_failed_workers(self) -> tuple[FailedWorkers, ...]:
        """No workers fail."""
        return ()

    def tell(self, key: JobKey, orders: Orders) -> None:
        """Let a leader carry out its orders."""
        self._obey(key, orders)

    def save(self, key: JobKey, path: str) -> None:
        """Do nothing: no checkpoint is written here."""

    def take_saved(self) -> tuple[Saved, ...]:
        """No checkpoint."""
        return ()
