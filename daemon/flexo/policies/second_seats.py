"""Finds free second seats on GPUs, where the owners of the GPUs leave most of the time idle (AntMan).

Only simulated clusters have second seats. On real ones, `flexo.sharing` grants shared GPUs one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.placement import FreeGpus, Placement
from flexo_protos.resources import Resources, rounded_up

_ONE: Final = Resources(gpus=1)


class Seated(NamedTuple):
    """A job and where it sits: perhaps elsewhere than the snapshot says, because a plan is being made."""

    job: TrainingJob
    shares: tuple[NodeShare, ...]
    second: bool
    """Whether it sits in second seats."""


class SecondSeats:
    """The free second seats of usable nodes. Mutable: belongs to one decision.

    A GPU is as busy as its owner keeps it: without an owner it is idle. On each node the jobs in second seats
    are on the least busy GPUs, as the simulator matches them.
    """

    def __init__(self, placement: Placement, seated: Iterable[Seated], below: float) -> None:
        """`below`: only GPUs that are busy for less than this part of the time count (M in AntMan)."""
        self._below = below
        owners: dict[str, list[float]] = {node.name: [] for node in placement.nodes}
        guests: dict[str, int] = dict.fromkeys(owners, 0)
        for job, shares, second in seated:
            for share in shares:
                gpus = rounded_up(share.workers * job.shape.gpus, 1)
                if share.node not in owners:
                    continue  # a node that the cluster does not have any more
                if second:
                    guests[share.node] += gpus
                else:
                    owners[share.node] += [job.utilization] * gpus
        busy = {
            node.name: _left(int(node.gpus), sorted(owners[node.name]), guests[node.name])
            for node in placement.nodes
        }
        levels = sorted({load for loads in busy.values() for load in loads if load < below})
        self._levels = [_at_most(placement, busy, level) for level in levels]
        """Free seats on GPUs that are at most so busy, for each level from the least on."""

    def place(self, shape: Resources, workers: int) -> tuple[NodeShare, ...] | None:
        """Seats for all workers on the least busy GPUs, on the nodes with most of them; None: there are too
        few. Takes nothing."""
        for seats in self._levels:
            shares = seats.place_widest(shape, workers)
            if shares is not None:
                return shares
        return None

    def take(self, shape: Resources, shares: Sequence[NodeShare]) -> None:
        """Remove these seats: on each node those on the least busy GPUs."""
        for share in shares:
            gpus = rounded_up(share.workers * shape.gpus, 1)
            for seats in self._levels:
                seats.take(_ONE, (NodeShare(share.node, min(gpus, int(seats.of_node(share.node)))),))


def _left(gpus: int, owners: list[float], guests: int) -> list[float]:
    """How busy the GPUs of a node are that have a free second seat, the least busy first."""
    return [*[0.0] * (gpus - len(owners)), *owners][guests:]


def _at_most(placement: Placement, busy: dict[str, list[float]], level: float) -> FreeGpus:
    free = placement.free()
    for name, loads in busy.items():
        seats = sum(1 for load in loads if load <= level)
        free.take(_ONE, (NodeShare(name, int(free.of_node(name)) - seats),))
    return free
