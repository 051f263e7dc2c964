"""What the controller has in a simulation in place of leaders and a journal: nobody speaks, nobody reads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from flexo.control.leaders import Orders, Saved
from flexo.events import Event
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.loans import Demand, LeftAlone, Loan, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu, SlowGpuReport
from flexo.model.queue import JobKey


class NoLeaders:
    """Nobody is attached (implements Leaders)."""

    def __init__(self) -> None:
        self.wake: Final = threading.Event()

    def reports(self) -> tuple[LeaderReport, ...]:
        """None."""
        return ()

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """None."""
        return ()

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """None."""
        return ()

    def tell(self, key: JobKey, orders: Orders) -> None:
        """Nobody hears it."""

    def save(self, key: JobKey, path: str) -> None:
        """Nobody hears it."""

    def take_saved(self) -> tuple[Saved, ...]:
        """None."""
        return ()


class NoJournal:
    """Nothing is kept (implements Logbook): the simulator keeps its own records."""

    keeps: Final = False
    trouble: Final = ""

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> None:
        """Not kept."""

    def unended(self, since: float) -> tuple[JobKey, ...]:
        """None."""
        return ()

    def caps(self) -> dict[JobKey, int]:
        """None."""
        return {}

    def set_cap(self, key: JobKey, workers: int | None) -> None:
        """Not kept."""

    def grants(self) -> tuple[IssuedGrant, ...]:
        """None."""
        return ()

    def set_grants(self, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]) -> bool:
        """Not kept."""
        return True

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """None."""
        return {}

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Not kept."""

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """None."""
        return ()

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Not kept."""

    def running_times(self) -> tuple[RunningTime, ...]:
        """None."""
        return ()

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Not kept."""

    def priorities(self) -> dict[JobKey, int]:
        """None."""
        return {}

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Not kept."""

    def loans(self) -> tuple[Loan, ...]:
        """None."""
        return ()

    def left_alone(self) -> tuple[LeftAlone, ...]:
        """None."""
        return ()

    def set_loans(
        self, loans: Iterable[Loan], over: Iterable[PastLoan] = (), left_alone: Iterable[LeftAlone] = ()
    ) -> None:
        """Not kept."""

    def add_demand(self, demand: Demand) -> None:
        """Not kept."""
