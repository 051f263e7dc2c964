"""Asks a policy how many workers running elastic jobs shall have where they grow by satellites.

There a base starts, stays and ends as the cluster decides; what a policy decides is how many workers beyond
it each job has. So the policy is asked about the elastic jobs that run, with their bases where they are, and
may place on what pending jobs leave over on the nodes that satellites may use. Where it puts workers does
not count: `satellites` finds the places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flexo.model.elastic import ElasticJob
from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.training import Share, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.fitting import fitted
from flexo.policies.placement import Placement
from flexo.policies.rooms import Room
from flexo_protos.resources import Amount, Resources

_PLENTY = 1 << 20
"""Only GPUs are counted here: those without CPUs or memory for a worker are left out before."""


def targets_of(
    policy: Policy, snapshot: Snapshot, rooms: Mapping[str, Room], jobs: Sequence[ElasticJob]
) -> Targets:
    """What `policy` wants `jobs` to have; those that it does not name keep what they have.

    `rooms`: what is left on each node that satellites may use; `jobs`: as they will be once what was taken
    back in this plan has left; `snapshot.training` says what else is known of them.
    """
    known = {job.key: job for job in snapshot.training}
    shown = [_shown(job, known[job.key]) for job in jobs if job.key in known and job.shape.gpus]
    # a plan takes satellites several cycles, so that nobody may hold off deciding since the last change
    seen = replace(Jobs.of(snapshot), training=tuple(shown), decided_at=0.0)
    placement = Placement(_nodes(rooms, shown, jobs))
    said = policy.targets(seen, placement)
    if not said.evenly:  # the planner of satellites shares evenly itself, by CPUs and memory too
        said = fitted(said, seen, placement)
    kept = {job.key: Target(job.key, job.allocated, samples=job.samples) for job in shown}
    return replace(said, jobs=tuple((kept | {target.job: target for target in said.jobs}).values()))


def _shown(job: ElasticJob, known: TrainingJob) -> TrainingJob:
    """`known`, with its placement after departing grants are gone."""
    base = _spread(job.base_workers, job.base_nodes)
    shares = [*base, *(Share(grant.node, grant.workers) for grant in job.grants)]
    merged: dict[str, int] = {}
    for share in shares:
        merged[share.node] = merged.get(share.node, 0) + share.workers
    return replace(
        known,
        workers=replace(job.workers, max=max(job.ceiling, job.base_workers)),
        shape=job.shape,
        shares=tuple(Share(node, workers) for node, workers in merged.items()),
        base=base,
        preemptible=False,
    )


def _spread(workers: int, nodes: Sequence[str]) -> tuple[Share, ...]:
    """A base's workers over its nodes, as evenly as a cluster spreads its tasks."""
    each, more = divmod(workers, max(1, len(nodes)))
    counts = [(node, each + (index < more)) for index, node in enumerate(nodes)]
    return tuple(Share(node, count) for node, count in counts if count)


def _nodes(
    rooms: Mapping[str, Room], shown: Sequence[TrainingJob], jobs: Sequence[ElasticJob]
) -> tuple[Node, ...]:
    """What is free and what the shown jobs hold, on each node; nothing else is there to plan with."""
    shapes = {job.shape for job in jobs if job.shape.gpus and job.granted_workers < job.ceiling}
    held: dict[str, Amount] = {}
    for job in shown:
        for share in job.shares:
            held[share.node] = held.get(share.node, 0) + share.workers * job.shape.gpus
    nodes = []
    for name in sorted(rooms.keys() | held.keys()):
        room, mine = rooms.get(name), held.get(name, 0)
        free = _free_gpus(room, shapes) if room is not None and room.usable else 0
        nodes.append(
            Node(
                name=name,
                capacity=Resources(
                    *(mine + free, _PLENTY, _PLENTY), gpu_type=room.node.gpu_type if room else ""
                ),
                allocated=Resources(mine),
                partitions=room.node.partitions if room else frozenset(),
            )
        )
    return tuple(nodes)


def _free_gpus(room: Room, shapes: Iterable[Resources]) -> Amount:
    """GPUs idle or coming that one of these workers at least could use: with CPUs and memory for it.

    `shapes`: of the jobs that may still grow.
    """
    free = room.idle + room.coming
    return max((free.holds(shape) * shape.gpus for shape in shapes), default=0)
