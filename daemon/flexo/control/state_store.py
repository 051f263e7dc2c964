"""The controller's interface to the event store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from flexo.event_store.job_owners import JobOwner
from flexo.events import Event
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import Cap
from flexo.model.loans import Demand, LeftAlone, Loan, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, ScriptKey, SlowGpu, TriedScript
from flexo.model.queue import JobKey


class StateStore(Protocol):
    """The event store as the controller uses it. No method raises."""

    @property
    def keeps(self) -> bool:
        """Whether anybody will read the records; if not, the controller makes no texts for them."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why the store cannot write entries at present; "" when it can."""
        ...

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> Sequence[int]:
        """Write the events of one cycle, and the facts of the snapshot behind them. Returns the numbers of
        their entries; none if they cannot be written."""
        ...

    def unended(self, since: float) -> tuple[JobKey, ...]:
        """Jobs that flexod let grow, with events from `since` on and without an end."""
        ...

    def caps(self) -> dict[JobKey, Cap]:
        """All caps that were set and not taken away."""
        ...

    def set_cap(self, key: JobKey, cap: Cap | None) -> None:
        """Remember the owner's cap of a job; None: forget it."""
        ...

    def grants(self) -> tuple[IssuedGrant, ...]:
        """All remembered grants."""
        ...

    def set_grants(self, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]) -> bool:
        """Remember `kept` as they are now, and forget `forgotten`. Returns whether the disk took it."""
        ...

    def set_owners(self, owners: Iterable[JobOwner], at: float) -> bool:
        """Remember the owners of jobs that were seen at `at`. Returns whether the disk took it."""
        ...

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """The newest profile of each job that has one."""
        ...

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Remember the measurements of a job's profile."""
        ...

    def tried_scripts(self) -> tuple[TriedScript, ...]:
        """All remembered trials of scripts with several batches."""
        ...

    def set_tried_script(self, tried: TriedScript, forgotten: Iterable[ScriptKey]) -> None:
        """Remember the trials of a script, and forget those of the scripts `forgotten`."""
        ...

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """The slow GPUs that are remembered at `now`."""
        ...

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Remember that a GPU is slow."""
        ...

    def running_times(self) -> tuple[RunningTime, ...]:
        """The running times of jobs that have ended, in the order of their ends."""
        ...

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Remember further running times."""
        ...

    def priorities(self) -> dict[JobKey, int]:
        """The priorities that flexod gave to pending jobs and has not forgotten."""
        ...

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Remember the priorities in `given`, and forget those of the jobs in `forgotten`."""
        ...

    def loans(self) -> tuple[Loan, ...]:
        """The servers on loan, as of the last write."""
        ...

    def left_alone(self) -> tuple[LeftAlone, ...]:
        """The servers that somebody had taken back by hand, as of the last write."""
        ...

    def set_loans(
        self, loans: Iterable[Loan], over: Iterable[PastLoan] = (), left_alone: Iterable[LeftAlone] = ()
    ) -> None:
        """Replace the remembered loans and left-alone servers by `loans` and `left_alone`, and add the ended
        loans `over`."""
        ...

    def add_demand(self, demand: Demand) -> None:
        """Remember one demand of the inference cluster."""
        ...
