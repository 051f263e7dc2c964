"""What the controller needs of a journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flexo.events import Event
from flexo.issued_grants import IssuedGrant
from flexo.model.loans import Demand, LeftAlone, Loan, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, SlowGpu
from flexo.model.queue import JobKey


class Logbook(Protocol):
    """None of it raises."""

    @property
    def keeps(self) -> bool:
        """Whether anybody will read what is recorded; if not, no words are made for it."""
        ...

    @property
    def trouble(self) -> str:
        """Why entries are not written at present; "" when they are."""
        ...

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> None:
        """Write what happened in one cycle, and the facts of the snapshot that it went by."""
        ...

    def unended(self, since: float) -> tuple[JobKey, ...]:
        """Jobs that flexod let grow, of which there are events since then, and no end."""
        ...

    def caps(self) -> dict[JobKey, int]:
        """All caps that were set and not taken away."""
        ...

    def set_cap(self, key: JobKey, workers: int | None) -> None:
        """Remember the owner's cap of a job; None: forget it."""
        ...

    def grants(self) -> tuple[IssuedGrant, ...]:
        """The grants that are remembered."""
        ...

    def set_grants(self, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]) -> bool:
        """Remember `kept` as they are now, and forget `forgotten`; whether the disk took it."""
        ...

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """The newest profile of each job that has one."""
        ...

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Remember what a profile of a job has measured."""
        ...

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """The GPUs that are remembered at `now`."""
        ...

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Remember that a GPU is slow."""
        ...

    def running_times(self) -> tuple[RunningTime, ...]:
        """How long jobs ran that have ended, in the order in which they ended."""
        ...

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Remember more of them."""
        ...

    def priorities(self) -> dict[JobKey, int]:
        """The priorities that were given to pending jobs, and not forgotten."""
        ...

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Remember the priorities that jobs were given, and forget those of others."""
        ...

    def loans(self) -> tuple[Loan, ...]:
        """The servers on loan when they were last written down."""
        ...

    def left_alone(self) -> tuple[LeftAlone, ...]:
        """Servers that somebody had taken back by hand when that was last written down."""
        ...

    def set_loans(
        self, loans: Iterable[Loan], over: Iterable[PastLoan] = (), left_alone: Iterable[LeftAlone] = ()
    ) -> None:
        """Remember the loans that stand and the servers that are left alone, instead of those before, and
        the loans that are over.
        """
        ...

    def add_demand(self, demand: Demand) -> None:
        """Remember what the inference cluster needed."""
        ...
