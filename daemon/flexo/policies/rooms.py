"""What is free on each node while a plan is being made: the one place where a policy does its sums.

Every GPU, CPU and MiB stands in one of three piles of its node: idle (nobody holds it and no grant has been
said for it), coming (held by a satellite or job that is on its way out), or held. Planning moves them about;
nothing is counted twice, so nothing can be granted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node, WorkerShape
from flexo.model.plans import Snapshot
from flexo.model.queue import JobState, QueuedJob

_UNBOUNDED = 1 << 30

NOT_ALLOCATED = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})
"""In these states the cluster does not count a grant's resources as taken yet."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of what a node has."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0

    @classmethod
    def of_workers(cls, shape: WorkerShape, workers: int) -> Resources:
        """What `workers` workers of `shape` take."""
        return cls(shape.gpus * workers, max(1, shape.cpus) * workers, shape.memory_mib * workers)

    @classmethod
    def of_node(cls, node: Node) -> Resources:
        """All that it has."""
        return cls(node.gpus, node.cpus, node.memory_mib)

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.gpus + other.gpus, self.cpus + other.cpus, self.memory_mib + other.memory_mib)

    def minus(self, other: Resources) -> Resources:
        """What is left; never below zero, because what somebody else has taken meanwhile is simply gone."""
        return Resources(
            max(0, self.gpus - other.gpus),
            max(0, self.cpus - other.cpus),
            max(0, self.memory_mib - other.memory_mib),
        )

    def times(self, unit: Resources) -> int:
        """How many of `unit` fit into this."""
        pairs = (
            (self.gpus, unit.gpus),
            (self.cpus, unit.cpus),
            (self.memory_mib, unit.memory_mib),
        )
        return min((have // need for have, need in pairs if need), default=_UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Standing:
    """A grant that stands, with what it keeps from others."""

    grant: Grant
    job: ElasticJob
    resources: Resources
    started_at: float

    @property
    def workers_lost(self) -> int:
        """Workers whose training would end; none while the satellite has not started."""
        return 0 if self.grant.state in NOT_ALLOCATED else self.grant.workers


@dataclass(slots=True)
class Room:
    """One node's piles."""

    node: Node
    usable: bool
    """Whether jobs start here, now or in a moment."""
    idle: Resources = field(default_factory=Resources)
    coming: Resources = field(default_factory=Resources)
    standing: list[Standing] = field(default_factory=list)

    def copy(self) -> Room:
        """The same piles, to try something on."""
        return Room(self.node, self.usable, self.idle, self.coming, list(self.standing))

    def arrive(self) -> None:
        """What was coming is idle now."""
        self.idle, self.coming = self.idle + self.coming, Resources()

    def take(self, amount: Resources) -> None:
        """Set `amount` aside: idle first, the rest from what is coming."""
        before = self.idle
        self.idle = before.minus(amount)
        self.coming = self.coming.minus(amount.minus(before))

    def take_back(self, standing: Standing) -> None:
        """A grant is withdrawn; what it kept is coming."""
        self.standing.remove(standing)
        self.leave(standing.resources)

    def leave(self, amount: Resources) -> None:
        """`amount` is on its way out of here."""
        if self.usable:
            self.coming += amount

    def fits(self, shape: WorkerShape, amount: Resources) -> int:
        """Workers of `shape` that `amount` of this node holds."""
        if shape.gpu_type and shape.gpu_type != self.node.gpu_type:
            return 0
        return amount.times(Resources.of_workers(shape, 1))


def build_rooms(snapshot: Snapshot) -> dict[str, Room]:
    """The piles as the snapshot shows them, by node name in order."""
    rooms = {node.name: _room(node) for node in sorted(snapshot.nodes, key=lambda node: node.name)}
    satellites = {job.job_id: job for job in snapshot.jobs if job.satellite is not None}
    granted: set[int] = set()
    for job in snapshot.elastic:
        for grant in job.grants:
            granted.add(grant.satellite_job_id)
            if grant.node in rooms:
                _put(rooms[grant.node], grant, job, satellites.get(grant.satellite_job_id))
    for satellite in satellites.values():
        # belongs to no running base any more: its cluster or the controller ends it
        if satellite.job_id not in granted and satellite.state is JobState.RUNNING:
            for name in rooms.keys() & set(satellite.nodes):
                rooms[name].leave(Resources(satellite.gpus, satellite.cpus, satellite.memory_mib))
    return rooms


def _room(node: Node) -> Room:
    free = Resources(
        max(0, node.gpus - node.gpus_allocated),
        max(0, node.cpus - node.cpus_allocated),
        max(0, node.memory_mib - node.memory_allocated_mib),
    )
    if not node.unusable:
        return Room(node, usable=True, idle=free)
    if node.soon_free:
        return Room(node, usable=True, coming=free)
    return Room(node, usable=False)


def _put(room: Room, grant: Grant, job: ElasticJob, satellite: QueuedJob | None) -> None:
    amount = Resources.of_workers(job.shape, grant.workers)
    started_at = grant.since_at
    if satellite is not None and satellite.nodes:
        amount = Resources(satellite.gpus, satellite.cpus, satellite.memory_mib)
        started_at = satellite.started_at or grant.since_at
    if grant.state is SatelliteState.LEAVING:
        # the resources of a completing job count as free already
        if satellite is None or satellite.state is not JobState.COMPLETING:
            room.leave(amount)
        return
    if grant.state in NOT_ALLOCATED:
        room.take(amount)
    room.standing.append(Standing(grant, job, amount, started_at))


def satellite_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Names of the nodes that satellites may be submitted to, servers on loan among them."""
    return _nodes_of(snapshot, snapshot.satellite_partition) | lent_nodes(snapshot)


def lent_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Servers on loan that nobody wants back: lent by the book, and by the cluster."""
    if not snapshot.loans:
        return frozenset()
    lent = frozenset(loan.node for loan in snapshot.loans if not loan.closed)
    return lent & _nodes_of(snapshot, snapshot.borrowed_partition)


def satellite_partition(snapshot: Snapshot, node: str) -> str:
    """Where a satellite on `node` is submitted."""
    lent = snapshot.loans and node in lent_nodes(snapshot)
    return snapshot.borrowed_partition if lent else snapshot.satellite_partition


def _nodes_of(snapshot: Snapshot, name: str) -> frozenset[str]:
    return frozenset().union(
        *(partition.nodes for partition in snapshot.partitions if partition.up and partition.name == name)
    )
