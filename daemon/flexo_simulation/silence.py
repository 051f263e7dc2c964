"""Stand-ins for leaders and the event store in a simulation: no leader reports, and nothing is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from flexo.control.leaders import Orders, Saved
from flexo.event_store.job_owners import JobOwner
from flexo.events import Event
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import Cap, GrantFailure, LeaderReport
from flexo.model.loans import Demand, LeftAlone, Loan, PastLoan
from flexo.model.measured import (
    FailedWorkers,
    RunningTime,
    ScalingPoint,
    ScriptKey,
    SlowGpu,
    SlowGpuReport,
    TriedScript,
)
from flexo.model.queue import JobKey


class NoLeaders:
    """Leaders of no job (implements Leaders)."""

    def __init__(self) -> None:
        self.wake: Final = threading.Event()

    def reports(self) -> tuple[LeaderReport, ...]:
        """No reports."""
        return ()

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """No failures."""
        return ()

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """No reports."""
        return ()

    def take_failed_workers(self) -> tuple[FailedWorkers, ...]:
        """No workers fail."""
        return ()

    def tell(self, key: JobKey, orders: Orders) -> None:
        """Do nothing: there is no leader."""

    def save(self, key: JobKey, path: str) -> None:
        """Do nothing: there is no leader."""

    def take_saved(self) -> tuple[Saved, ...]:
        """No checkpoints."""
        return ()


class NoEventStore:
    """A store that keeps nothing (implements StateStore): the simulator keeps its own records."""

    keeps: Final = False
    trouble: Final = ""

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> tuple[int, ...]:
        """Do nothing."""
        return ()

    def unended(self, since: float) -> tuple[JobKey, ...]:
        """No jobs."""
        return ()

    def caps(self) -> dict[JobKey, Cap]:
        """No caps."""
        return {}

    def set_cap(self, key: JobKey, cap: Cap | None) -> None:
        """Do nothing."""

    def grants(self) -> tuple[IssuedGrant, ...]:
        """No grants."""
        return ()

    def set_grants(self, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]) -> bool:
        """Do nothing. Returns success."""
        return True

    def set_owners(self, owners: Iterable[JobOwner], at: float) -> bool:
        """Do nothing. Returns success."""
        return True

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """No measurements."""
        return {}

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Do nothing."""

    def tried_scripts(self) -> tuple[TriedScript, ...]:
        """No trials."""
        return ()

    def set_tried_script(self, tried: TriedScript, forgotten: Iterable[ScriptKey]) -> None:
        """Do nothing."""

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """No slow GPUs."""
        return ()

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Do nothing."""

    def running_times(self) -> tuple[RunningTime, ...]:
        """No running times."""
        return ()

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Do nothing."""

    def priorities(self) -> dict[JobKey, int]:
        """No priorities."""
        return {}

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Do nothing."""

    def loans(self) -> tuple[Loan, ...]:
        """No loans."""
        return ()

    def left_alone(self) -> tuple[LeftAlone, ...]:
        """No servers."""
        return ()

    def set_loans(
        self, loans: Iterable[Loan], over: Iterable[PastLoan] = (), left_alone: Iterable[LeftAlone] = ()
    ) -> None:
        """Do nothing."""

    def add_demand(self, demand: Demand) -> None:
        """Do nothing."""
