"""The free resources of each node while a plan is being made. All sums of a plan are calculated here.

Every GPU, CPU and MiB of a node is idle, coming or held. Idle: no job holds it and no grant covers it.
Coming: a satellite or job that is ending holds it. Held: any other. Planning moves resources between these
three. Nothing is counted twice, so nothing can be granted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node
from flexo.model.plans import Grow, Plan, Snapshot
from flexo.model.queue import JobState, QueuedJob
from flexo_protos.resources import Resources

NOT_ALLOCATED = frozenset({SatelliteState.GRANTED, SatelliteState.PENDING})
"""States of a grant in which the cluster does not yet count the grant's resources as taken."""


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A grant that stands, with the resources that it keeps from other jobs."""

    grant: Grant
    job: ElasticJob
    resources: Resources
    started_at: float

    @property
    def workers_lost(self) -> int:
        """Workers whose training would end with the grant; 0 while the satellite has not started."""
        return 0 if self.grant.state in NOT_ALLOCATED else self.grant.workers


@dataclass(slots=True)
class NodeCapacity:
    """The idle and coming resources of one node, and the grants that stand on it."""

    node: Node
    usable: bool
    """Whether jobs start here, now or in a moment."""
    idle: Resources
    coming: Resources
    standing: list[HeldGrant] = field(default_factory=list)

    def copy(self) -> NodeCapacity:
        """A copy, to try changes on."""
        return NodeCapacity(self.node, self.usable, self.idle, self.coming, list(self.standing))

    def arrive(self) -> None:
        """Make the coming resources idle."""
        self.idle, self.coming = self.idle + self.coming, _nothing_of(self.node)

    def take(self, amount: Resources) -> None:
        """Set `amount` aside: idle first, the rest from what is coming."""
        before = self.idle
        self.idle = before.minus(amount)
        self.coming = self.coming.minus(amount.minus(before))

    def take_back(self, standing: HeldGrant) -> None:
        """Withdraw a grant: its resources are coming."""
        self.standing.remove(standing)
        self.leave(standing.resources)

    def leave(self, amount: Resources) -> None:
        """Count `amount` as coming: it is being given up. On a node that is not usable, this changes
        nothing."""
        if self.usable:
            self.coming += amount


def build_rooms(snapshot: Snapshot) -> dict[str, NodeCapacity]:
    """The capacity of each node as the snapshot shows it, by node name in order."""
    rooms = {node.name: room_of(node) for node in sorted(snapshot.nodes, key=lambda node: node.name)}
    satellites = {job.job_id: job for job in snapshot.jobs if job.satellite is not None}
    granted: set[int] = set()
    for job in snapshot.elastic:
        for grant in job.all_grants:
            granted.add(grant.satellite_job_id)
            if grant.node in rooms:
                _put(rooms[grant.node], grant, job, satellites.get(grant.satellite_job_id))
    for satellite in satellites.values():
        # the satellite belongs to no running base any more: the cluster or the controller ends it
        if satellite.job_id not in granted and satellite.state is JobState.RUNNING:
            for name in rooms.keys() & set(satellite.nodes):
                rooms[name].leave(satellite.resources)
    return rooms


def rooms_after(plan: Plan, snapshot: Snapshot) -> dict[str, NodeCapacity]:
    """The capacity of each node after the plan's grants. What the plan takes back is not free yet."""
    rooms = build_rooms(snapshot)
    shapes = {job.key: job.shape for job in snapshot.elastic}
    for action in plan.actions:
        if isinstance(action, Grow) and action.node in rooms:
            rooms[action.node].take(shapes[action.job] * action.workers)
    return rooms


def room_of(node: Node) -> NodeCapacity:
    """The capacity of the node, with nothing of it granted to anybody yet."""
    free, nothing = node.capacity.minus(node.allocated), _nothing_of(node)
    if not node.unusable:
        return NodeCapacity(node, usable=True, idle=free, coming=nothing)
    if node.soon_free:
        return NodeCapacity(node, usable=True, idle=nothing, coming=free)
    return NodeCapacity(node, usable=False, idle=nothing, coming=nothing)


def _nothing_of(node: Node) -> Resources:
    """No resources, but of the node's GPU type."""
    return Resources(gpu_type=node.gpu_type)


def _put(room: NodeCapacity, grant: Grant, job: ElasticJob, satellite: QueuedJob | None) -> None:
    amount = grant.resources(job.shape)
    started_at = grant.since_at
    if satellite is not None and satellite.nodes:
        amount = satellite.resources
        started_at = satellite.started_at or grant.since_at
    if grant.state is SatelliteState.LEAVING:
        # the resources of a completing job count as free already
        if satellite is None or satellite.state is not JobState.COMPLETING:
            room.leave(amount)
        return
    if grant.state in NOT_ALLOCATED:
        room.take(amount)
    if not grant.workers:
        return  # it has no GPU that anybody could use, and the cluster takes its CPU back by itself
    room.standing.append(HeldGrant(grant, job, amount, started_at))


def satellite_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Names of the nodes that satellites may be submitted to, servers on loan among them."""
    return _nodes_of(snapshot, snapshot.satellite_partition) | lent_nodes(snapshot)


def lent_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Servers on loan that are not being reclaimed, and that the cluster has in the borrowed partition."""
    if not snapshot.loans:
        return frozenset()
    lent = frozenset(loan.node for loan in snapshot.loans if not loan.closed)
    return lent & _nodes_of(snapshot, snapshot.borrowed_partition)


def satellite_partition(snapshot: Snapshot, node: str) -> str:
    """The partition to which a satellite on `node` is submitted."""
    lent = snapshot.loans and node in lent_nodes(snapshot)
    return snapshot.borrowed_partition if lent else snapshot.satellite_partition


def _nodes_of(snapshot: Snapshot, name: str) -> frozenset[str]:
    return frozenset().union(
        *(partition.nodes for partition in snapshot.partitions if partition.up and partition.name == name)
    )
