"""Small inference clusters for tests of demand: what a test does not say is the plainest there is."""

from __future__ import annotations

from flat_records import change_job, change_node, make_job, make_node
from slurm_says import job_as_slurm_says

from flexo.model.loans import Loan
from flexo.model.nodes import Node
from flexo.model.queue import JobState, Principal, QueuedJob, WaitReason

NOW = 1_700_000_000.0


def server(name: str, **changes) -> Node:
    """A server of the partition `infer` with four GPUs."""
    plain = make_node(name, 4, 0, 16, 0, 64_000, 0, frozenset({"infer"}))
    return change_node(plain, **changes)


SERVERS = tuple(server(f"i{number}") for number in range(1, 7))


def job(job_id: int, *nodes: str, gpus: int = 4, **changes) -> QueuedJob:
    """An inference job: running on `nodes`, or pending where none is named."""
    plain = make_job(
        job_id=job_id,
        owner=Principal("1000"),
        user="serve",
        partitions=("infer",),
        state=JobState.RUNNING if nodes else JobState.PENDING,
        wait=WaitReason.NONE,
        reason="None" if nodes else "Resources",
        priority=1,
        submitted_at=NOW - 60,
        started_at=None,
        time_limit_s=None,
        nodes=nodes,
        num_nodes=max(1, len(nodes)),
        cpus=1,
        gpus=gpus,
        memory_mib=0,
    )
    return job_as_slurm_says(change_job(plain, **changes))


def loans(*nodes: str) -> tuple[Loan, ...]:
    return tuple(Loan(node, NOW - 600, "idle") for node in nodes)
