"""The seats of jobs on the GPUs of each node, and the speed that a job has beside the others (AntMan).

Each GPU has its owner's seat and a second one. Jobs in second seats are matched anew with the owners of their
node at each change: the job that came first gets the GPU that is busy for the least part of the time. So the
simulation counts seats by node, and takes for granted that a second job can change the GPU on its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flexo.model.nodes import Node
from flexo.model.training import NodeShare
from flexo_protos.resources import Amount, rounded_up
from flexo_simulation.pairs import Control, speeds_of


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """What a simulation assumes of two jobs on one GPU."""

    control: Control = Control.GATED
    utilization: float = 0.5
    """The share of the time in which a job keeps its GPUs busy if its model is not known: ours."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a job has of the others on its GPUs. The slowest of its workers sets the speed of all."""

    speed: float = 1.0
    """Its speed, relative to having the GPUs alone."""
    shares: bool = False
    """Whether another job is on one of its GPUs."""

    def worst(self, other: Beside) -> Beside:
        """Both at once, on different GPUs."""
        return Beside(min(self.speed, other.speed), self.shares or other.shares)


ALONE: Final = Beside()


@dataclass(frozen=True, slots=True)
class Seated:
    """A job that has seats."""

    shares: tuple[NodeShare, ...]
    gpus: Amount
    """GPUs of one worker."""
    second: bool
    """Whether its seats are second ones."""
    utilization: float


_NOWHERE: Final = Seated((), 0, second=False, utilization=0.0)


@dataclass(slots=True)
class _NodeSeats:
    """The jobs on one node, by number, in the order in which they came. Mutable."""

    gpus: int
    owners: dict[int, int] = field(default_factory=dict)
    """Per job: the number of its GPUs here."""
    guests: dict[int, int] = field(default_factory=dict)
    beside: Mapping[int, Beside] = field(default_factory=dict)
    """What was found when the seats last changed; jobs that are alone are left out."""


class Seats:
    """Who has seats where. Mutable: belongs to one simulation."""

    def __init__(self, nodes: Sequence[Node], sharing: GpuSharing) -> None:
        self._nodes = {node.name: _NodeSeats(int(node.gpus)) for node in nodes}
        self._control = sharing.control
        self._jobs: dict[int, Seated] = {}
        self._beside: dict[int, Beside] = {}
        """Jobs that are not alone."""

    def of(self, number: int) -> Beside:
        """What the job has of the others."""
        return self._beside.get(number, ALONE)

    def sit(self, number: int, seated: Seated) -> tuple[int, ...]:
        """Give a job exactly these seats. Returns the other jobs for which something changes."""
        before = self._jobs.get(number, _NOWHERE)
        if before == seated:
            return ()
        self._jobs.pop(number, None)
        touched: dict[str, None] = {}
        """Nodes where jobs share GPUs, or did."""
        for share in before.shares:
            node = self._nodes[share.node]
            (node.guests if before.second else node.owners).pop(number, None)
            if node.guests or node.beside:
                touched[share.node] = None
        for share in seated.shares:
            node = self._nodes[share.node]
            seats = node.guests if seated.second else node.owners
            seats[number] = rounded_up(share.workers * seated.gpus, 1)
            if node.guests:
                touched[share.node] = None
        if seated.shares:
            self._jobs[number] = seated
        return self._match(number, touched) if touched else ()

    def leave(self, number: int) -> tuple[int, ...]:
        """Take all seats of a job. Returns the other jobs for which something changes."""
        return self.sit(number, _NOWHERE)

    def _match(self, number: int, touched: Mapping[str, None]) -> tuple[int, ...]:
        affected: dict[int, None] = {number: None}
        for name in touched:
            node = self._nodes[name]
            affected.update(dict.fromkeys(node.beside))
            node.beside = self._matched(node)
            affected.update(dict.fromkeys(node.beside))
        return tuple(each for each in affected if self._renew(each) and each != number)

    def _matched(self, node: _NodeSeats) -> Mapping[int, Beside]:
        """All jobs of a node that are not alone, and what that means to them."""
        found: dict[int, Beside] = {}
        owners = self._by_utilization(node)
        for guest, gpus in node.guests.items():
            for _ in range(gpus):
                owner = next(owners, None)
                if owner is None:
                    continue
                speeds = speeds_of(
                    self._jobs[owner].utilization, self._jobs[guest].utilization, self._control
                )
                for job, speed in ((owner, speeds.owner), (guest, speeds.guest)):
                    found[job] = found.get(job, ALONE).worst(Beside(speed, shares=True))
        return found

    def _by_utilization(self, node: _NodeSeats) -> Iterator[int | None]:
        """The owner of each GPU of a node, None for GPUs without one: the least busy GPUs first."""
        yield from (None for _ in range(node.gpus - sum(node.owners.values())))
        for number in sorted(node.owners, key=lambda each: (self._jobs[each].utilization, each)):
            yield from (number for _ in range(node.owners[number]))

    def _renew(self, number: int) -> bool:
        """Note what a job has of the others now. Returns whether that has changed."""
        seated, now = self._jobs.get(number), ALONE
        for share in seated.shares if seated else ():
            now = now.worst(self._nodes[share.node].beside.get(number, ALONE))
        changed = now != self._beside.get(number, ALONE)
        if now == ALONE:
            self._beside.pop(number, None)
        else:
            self._beside[number] = now
        return changed
