"""What a simulated job really does: known to the simulator alone, never to a policy.

A reader of traces gives each job a `Training`; the simulator begins a `Run` of it and moves that on in
virtual time. What the job's leader would report of it (`speed`, `remaining_work`) is all that policies see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flexo.model.measured import Source, Speed
from flexo.model.training import Share


class Run(Protocol):
    """One job's training under way. Mutable; belongs to the simulator."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        ...

    def time_left_s(self, shares: Sequence[Share], samples: int) -> float:
        """Seconds of undisturbed training to its end if nothing changed; infinite if it cannot train so.

        May be less where its speed will change on the way (an epoch ends): the simulator looks again then.
        """
        ...

    def advance(self, seconds: float, shares: Sequence[Share], samples: int) -> float:
        """Train for `seconds`, with what it has. `samples` is the aggregate batch; 0: its own choice.

        Returns the seconds that it trained: all of them, unless it finished before.
        """
        ...

    @property
    def steady(self) -> bool:
        """Whether `time_left_s` always tells the end, and `speed` never changes.

        Such a run is moved on when what it has changes and when it ends; others at every decision.
        """
        ...

    def speed(self) -> Speed | None:
        """What is known of its speed now, from what it has run so far: never the hidden truth."""
        ...

    def remaining_work(self) -> float | None:
        """What it reports to be left, in the unit of `speed`; None where it reports no progress."""
        ...

    @property
    def source(self) -> Source:
        """Where `remaining_work` comes from."""
        ...


class Training(Protocol):
    """The truth about one job."""

    def begin(self) -> Run:
        """A run from the start."""
        ...
