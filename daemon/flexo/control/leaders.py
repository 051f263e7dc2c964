"""What the controller needs of the service: leaders' last words, and a way to answer them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey


@dataclass(frozen=True, slots=True)
class GrantOffer:
    """A grant as its leader is told it."""

    grant_id: str
    node: str
    workers: int
    partition: str
    lease_s: int
    """The time limit to submit the satellite with."""
    start_within_s: int
    """A satellite that has not started by then is cancelled by its leader, and the grant returned."""
    qos: str = ""
    """"": the user's own default."""
    signature: bytes = b""
    """flexod's, for its leader to show to another flexod."""


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """How fast a node's GPUs are beside those of others; only ratios count."""

    node: str
    speed: float


@dataclass(frozen=True, slots=True)
class Orders:
    """All that a leader is told of what its job may have."""

    grants: tuple[GrantOffer, ...]
    """All that stand."""
    batch: int = 0
    """The aggregate batch from the next generation on; 0: as the script says."""
    speeds: tuple[NodeSpeed, ...] = ()
    """Of all nodes of a heterogeneous job; empty: all are alike."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What came of a checkpoint that a leader was asked for."""

    job: JobKey
    text: str


class Leaders(Protocol):
    """All of it may be called from the controller's thread and never blocks."""

    @property
    def wake(self) -> threading.Event:
        """Set by the service when a leader attached, reported a change, failed a grant or left.

        The loop then looks soon, but never sooner than the cost of reading allows.
        """
        ...

    def reports(self) -> tuple[LeaderReport, ...]:
        """The last report of each leader that is attached now."""
        ...

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants given back since this was last asked."""
        ...

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """The GPUs that leaders have found slow since this was last asked."""
        ...

    def tell(self, key: JobKey, orders: Orders) -> None:
        """What `key` may have now. Called every cycle for each attached leader, changed or not.

        A leader must hear no orders before the first call for it since it attached: until then flexod
        may not know yet which satellites the job has, and an empty list would send them away. A leader
        that has gone meanwhile is no error.
        """
        ...

    def save(self, key: JobKey, path: str) -> None:
        """Have `key` write a checkpoint to `path`. Whatever comes of it, `take_saved` tells."""
        ...

    def take_saved(self) -> tuple[Saved, ...]:
        """What came of such checkpoints since this was last asked."""
        ...
