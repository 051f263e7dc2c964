"""The controller's interface to the service: leaders' last reports, and a way to answer them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from flexo.model.elastic import GrantFailure, LeaderReport
from flexo.model.measured import FailedWorkers, SlowGpuReport
from flexo.model.queue import JobKey
from flexo_protos.resources import Devices


@dataclass(frozen=True, slots=True)
class GrantOffer:
    """A grant in the form in which its leader receives it."""

    grant_id: str
    node: str
    workers: int
    partition: str
    time_limit_s: int
    """The time limit with which the leader submits the satellite."""
    start_within_s: int
    """The leader cancels a satellite that has not started within this time, and returns the grant."""
    qos: str = ""
    """The satellite's QOS; "": that of the base."""
    signature: bytes = b""
    """flexod's signature, which the leader can show to another flexod."""
    shared_gpus: tuple[Devices, ...] = ()
    """The GPUs of its workers that other jobs hold; the satellite then requests no GPUs of its own."""


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """The speed of a node's GPUs, relative to other nodes. Only ratios count."""

    node: str
    speed: float


@dataclass(frozen=True, slots=True)
class Orders:
    """flexod's complete orders for the leader of one job."""

    grants: tuple[GrantOffer, ...]
    """All grants that stand."""
    batch: int = 0
    """The aggregate batch from the next generation on; 0: the script decides."""
    speeds: tuple[NodeSpeed, ...] = ()
    """The speeds of all nodes of a heterogeneous job; empty: all nodes are alike."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of a checkpoint that a leader was asked for."""

    job: JobKey
    text: str


class Leaders(Protocol):
    """The attached leaders. Every method may be called from the controller's thread and never blocks."""

    @property
    def wake(self) -> threading.Event:
        """Set by the service when a leader attached, reported a change, failed a grant or left.

        The loop then polls the cluster soon, but never sooner than the cost of reading allows.
        """
        ...

    def reports(self) -> tuple[LeaderReport, ...]:
        """The last report of each leader that is attached now."""
        ...

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants that leaders have given back since the last call."""
        ...

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """The GPUs that leaders have found slow since the last call."""
        ...

    def take_failed_workers(self) -> tuple[FailedWorkers, ...]:
        """The workers that have failed and were started again since the last call."""
        ...

    def tell(self, key: JobKey, orders: Orders) -> None:
        """Send `orders` to the leader of `key`. Called every cycle for each attached leader, changed or not.

        A leader must hear no orders between its attachment and the first call for it after that. Until then
        flexod may not know yet which satellites the job has, and an empty list would send them away. A leader
        that has gone meanwhile is no error.
        """
        ...

    def save(self, key: JobKey, path: str) -> None:
        """Have the leader of `key` write a checkpoint to `path`. `take_saved` returns the result, good or
        bad."""
        ...

    def take_saved(self) -> tuple[Saved, ...]:
        """The results of these checkpoints since the last call."""
        ...
