"""Asks a policy for the sizes of running elastic jobs, on a cluster where jobs grow by satellites.

There a base starts, stays and ends as the cluster decides. The policy decides how many workers each job has
beyond its base. So it is asked about the elastic jobs that run, with their bases where they are. It may place
workers on the nodes for satellites, where pending jobs leave capacity. The nodes that it chooses do not
count: `satellites` finds the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flexo.model.elastic import ElasticJob
from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.fitting import fitted
from flexo.policies.node_capacity import NodeCapacity
from flexo.policies.placement import Placement
from flexo.policies.satellite_plan import PlanInMaking
from flexo_protos.resources import Amount, Resources

_PLENTY = 1 << 20
"""CPUs and MiB of each node that the policy sees. Only GPUs count: those without CPUs or memory for a worker
are left out before."""


def targets_of(
    policy: Policy, snapshot: Snapshot, rooms: Mapping[str, NodeCapacity], jobs: Sequence[ElasticJob]
) -> Targets:
    """The sizes that `policy` decides for `jobs`; a job that it does not name keeps its size.

    `rooms`: the capacity left on each node that satellites may use. `jobs`: the jobs after the departures of
    this plan. `snapshot.training` has all other facts about the jobs.
    """
    known = {job.key: job for job in snapshot.training}
    shown = [_shown(job, known[job.key]) for job in jobs if job.key in known and job.shape.gpus]
    # satellites take several cycles to carry out a plan, so no policy may wait since the last change
    seen = replace(Jobs.of(snapshot), training=tuple(shown), decided_at=0.0)
    types = {node.name: node.gpu_type for node in snapshot.nodes}
    placement = Placement(_nodes(rooms, shown, jobs, types))
    said = policy.targets(seen, placement)
    if not said.evenly:  # the planner of satellites shares evenly itself, by CPUs and memory too
        said = fitted(said, seen, placement)
    kept = {
        job.key: Target(
            job.key, job.allocated, samples=policy.samples_of(job, job.allocated, len(job.shares))
        )
        for job in shown
    }
    return replace(said, jobs=tuple((kept | {target.job: target for target in said.jobs}).values()))


def in_whole_units(plan: PlanInMaking, targets: Iterable[Target]) -> dict[JobKey, int]:
    """Sizes in whole units, of the jobs whose targets are not in whole units.

    A policy counts worker by worker. What rounding leaves over becomes a unit of a job that lost it: of one
    that has this unit already, else of the one that lost most.
    """
    sizes: dict[JobKey, int] = {}
    lost: dict[JobKey, int] = {}
    left_over: Counter[Resources] = Counter()
    for target in targets:
        if planned := plan.jobs.get(target.job):
            size = whole(planned.job, target).workers
            if (rest := min(target.workers, planned.job.ceiling) - size) > 0:
                sizes[target.job], lost[target.job] = size, rest
                left_over[planned.job.shape] += rest

    def rank(key: JobKey) -> tuple[bool, int, JobKey]:
        has_it = plan.jobs[key].workers >= sizes[key] + plan.jobs[key].job.unit
        return not has_it, -lost[key], key

    for key in sorted(lost, key=rank):
        job = plan.jobs[key].job
        if left_over[job.shape] >= job.unit:
            left_over[job.shape] -= job.unit
            sizes[key] += job.unit
    return sizes


def whole(job: ElasticJob, target: Target, size: int | None = None) -> Target:
    """The target in whole units of its job and at most its ceiling; or with this `size`."""
    workers = job.whole(min(target.workers, job.ceiling)) if size is None else size
    if workers == target.workers or job.unit == 1:
        return replace(target, workers=workers)
    why = f"{workers} workers are due to it, in whole units of {job.unit}"
    return replace(target, workers=workers, why=why)


def _shown(job: ElasticJob, known: TrainingJob) -> TrainingJob:
    """`known`, with its placement after departing grants are gone."""
    base = _spread(job.base_workers, job.base_nodes)
    shares = [*base, *(NodeShare(grant.node, grant.workers) for grant in job.grants)]
    merged: dict[str, int] = {}
    for share in shares:
        merged[share.node] = merged.get(share.node, 0) + share.workers
    return replace(
        known,
        workers=replace(job.workers, max=max(job.ceiling, job.base_workers)),
        shape=job.shape,
        shares=tuple(NodeShare(node, workers) for node, workers in merged.items()),
        base=base,
        preemptible=False,
    )


def _spread(workers: int, nodes: Sequence[str]) -> tuple[NodeShare, ...]:
    """Spread a base's workers over its nodes, as evenly as a cluster spreads its tasks."""
    each, more = divmod(workers, max(1, len(nodes)))
    counts = [(node, each + (index < more)) for index, node in enumerate(nodes)]
    return tuple(NodeShare(node, count) for node, count in counts if count)


def _nodes(
    rooms: Mapping[str, NodeCapacity],
    shown: Sequence[TrainingJob],
    jobs: Sequence[ElasticJob],
    types: Mapping[str, str],
) -> tuple[Node, ...]:
    """The nodes that the policy sees: their free GPUs and those of the shown jobs, and nothing else.

    `types`: the GPU type of each node of the cluster, also of bases that are on none of `rooms`.
    """
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
                capacity=Resources(mine + free, _PLENTY, _PLENTY, gpu_type=types.get(name, "")),
                allocated=Resources(mine),
                partitions=room.node.partitions if room else frozenset(),
            )
        )
    return tuple(nodes)


def _free_gpus(room: NodeCapacity, shapes: Iterable[Resources]) -> Amount:
    """Idle or coming GPUs that at least one of these workers could use, with the CPUs and the memory that it
    needs.

    `shapes`: the shapes of the jobs that may still grow.
    """
    free = room.idle + room.coming
    return max((free.holds(shape) * shape.gpus for shape in shapes), default=0)
