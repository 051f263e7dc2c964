"""Small clusters to plan on: what a test does not say is the plainest there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flat_records import change_job, change_node, make_job, make_node
from slurm_says import job_as_slurm_says, node_as_slurm_says

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node, Partition
from flexo.model.plans import Grow, Plan, Shrink, Snapshot
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo.model.training import NodeShare
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement
from flexo_protos.resources import Resources

NOW = 10_000.0
ONE_GPU = Resources(gpus=1, cpus=1)


@dataclass(frozen=True)
class Wishing(Policy):
    """A policy that wants fixed numbers of workers, by the job's number, and remembers what it was shown."""

    wanted: Mapping[int, int]
    shown: list[tuple[Jobs, Placement]] = field(default_factory=list)
    name: ClassVar[str] = "wishing"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        self.shown.append((jobs, placement))
        targets = []
        for job_id, wanted in self.wanted.items():
            workers = placement.put(JobKey(job_id), (NodeShare("n1", wanted),))
            targets.append(Target(JobKey(job_id), workers, f"{workers} it is", samples=workers * 10))
        return Targets(tuple(targets))


def node(name: str, gpus: int = 4, used: int = 0, **changes) -> Node:
    """A node with two CPUs a GPU; `used` GPUs, and as many CPUs, are taken."""
    plain = make_node(
        name=name,
        gpus=gpus,
        gpus_allocated=used,
        cpus=2 * gpus,
        cpus_allocated=used,
        memory_mib=16_000,
        memory_allocated_mib=0,
        partitions=frozenset({"train", "flex"}),
    )
    return node_as_slurm_says(change_node(plain, **changes))


def elastic(job_id: int, workers: str = "1-8", *, base: str = "t1", **changes) -> ElasticJob:
    """An elastic job that runs on its minimum and may be resized at once."""
    size = Range.parse(workers)
    plain = ElasticJob(
        key=JobKey(job_id),
        user="ada",
        workers=size,
        shape=ONE_GPU,
        base_nodes=(base,),
        base_workers=size.min,
        scalable=True,
    )
    return replace(plain, **changes)


def granted(
    job: ElasticJob, node: str, workers: int, state: str = "training", since: float = 100.0
) -> ElasticJob:
    """`job` with one grant more, whose satellite is job_id * 100 + its number (0 where there is none yet)."""
    number = len(job.grants) + 1
    grant = Grant(
        grant_id=f"g{job.key.job_id}-{number}",
        job=job.key,
        node=node,
        workers=workers,
        partition="flex",
        since_at=since,
        state=SatelliteState(state),
        satellite_job_id=0 if state == "granted" else job.key.job_id * 100 + number,
    )
    return replace(job, grants=(*job.grants, grant))


def pending(job_id: int, gpus_per_node: int = 1, nodes: int = 1, **changes) -> QueuedJob:
    """Bob's ordinary job, which waits for GPUs in partition train."""
    gpus = gpus_per_node * nodes
    plain = make_job(
        job_id=job_id,
        owner=Principal("2000"),
        user="bob",
        partitions=("train",),
        state=JobState.PENDING,
        wait=WaitReason.NONE,
        reason="Resources",
        priority=100,
        submitted_at=NOW - 1,
        started_at=None,
        time_limit_s=3600,
        nodes=(),
        num_nodes=nodes,
        cpus=gpus,
        gpus=gpus,
        memory_mib=0,
        gpus_per_node=gpus_per_node,
    )
    return job_as_slurm_says(change_job(plain, **changes))


def satellites_of(job: ElasticJob) -> tuple[QueuedJob, ...]:
    """The Slurm jobs behind the grants of `job` that have any."""
    return tuple(
        change_job(
            pending(grant.satellite_job_id),
            user="ada",
            partitions=("flex",),
            state=JobState.PENDING if grant.state is SatelliteState.PENDING else JobState.RUNNING,
            started_at=grant.since_at,
            nodes=() if grant.state is SatelliteState.PENDING else (grant.node,),
            cpus=grant.workers * job.shape.cpus,
            gpus=grant.workers * job.shape.gpus,
            satellite=SatelliteTag(job.key, grant.grant_id, grant.workers),
        )
        for grant in job.grants
        if grant.satellite_job_id
    )


def snapshot(
    nodes: list[Node], jobs: list[ElasticJob], waiting: list[QueuedJob] | None = None, **changes
) -> Snapshot:
    """A cluster whose nodes are all in train (tier 10) and flex (tier 1)."""
    names = frozenset(each.name for each in nodes)
    plain = Snapshot(
        at=NOW,
        nodes=tuple(nodes),
        partitions=(Partition("train", 10, names), Partition("flex", 1, names)),
        jobs=(*(waiting or []), *(satellite for job in jobs for satellite in satellites_of(job))),
        elastic=tuple(jobs),
        satellite_partition="flex",
    )
    return replace(plain, **changes)


def grown(plan: Plan) -> list[tuple[int, str, int]]:
    """(job id, node, workers) of every growth, in order."""
    return sorted(
        (action.job.job_id, action.node, action.workers)
        for action in plan.actions
        if isinstance(action, Grow)
    )


def shrunk(plan: Plan) -> list[str]:
    """Grant ids that are taken back, in order."""
    return sorted(action.grant_id for action in plan.actions if isinstance(action, Shrink))


def sentence(plan: Plan, job_id: int) -> str:
    """Why the job has what it has."""
    return "; ".join(note.text for note in plan.notes if note.job.job_id == job_id)
