"""The true training of a simulated job: known to the simulator alone, never to a policy.

A reader of traces gives each job a `Training`. The simulator begins a `Run` of it and advances the run in
virtual time. Policies see only the reports of the job's leader (`speed`, `remaining_work`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flexo.model.measured import Source, Speed
from flexo.model.training import NodeShare


class Run(Protocol):
    """One job's training under way. Mutable; belongs to the simulator."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        ...

    def time_left_s(self, shares: Sequence[NodeShare], samples: int) -> float:
        """Seconds of undisturbed training to the end if nothing changed; infinite: the job cannot train so.

        The result may be smaller if the speed will change on the way (an epoch ends): the simulator asks
        again then.
        """
        ...

    def advance(self, seconds: float, shares: Sequence[NodeShare], samples: int) -> float:
        """Train for `seconds` with `shares`. `samples`: the aggregate batch; 0: the job's own choice.

        Returns the seconds that it trained: all of them, unless it finished before.
        """
        ...

    @property
    def steady(self) -> bool:
        """Whether `time_left_s` always tells the end, and `speed` never changes.

        The simulator advances such a run when its shares change and when it ends, and other runs at every
        decision.
        """
        ...

    def speed(self) -> Speed | None:
        """The speed that is known from the run so far: never the hidden truth."""
        ...

    def speeds(self) -> tuple[tuple[str, Speed], ...]:
        """The speed that is known on each GPU type; empty: the GPU type makes no difference to `speed`."""
        ...

    def remaining_work(self) -> float | None:
        """The remaining work that the job reports, in the unit of `speed`; None: it reports no progress."""
        ...

    @property
    def source(self) -> Source:
        """The source of `remaining_work`."""
        ...


class Training(Protocol):
    """The truth about one job."""

    def begin(self) -> Run:
        """Begin a run from the start."""
        ...
