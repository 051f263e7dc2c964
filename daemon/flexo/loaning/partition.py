"""Demand by the inference partition's own queue: servers in use, and servers for which jobs wait.

Servers are lent whole, so they are counted whole: jobs that share a server count as one. Waiting jobs are
packed onto empty servers, because a job that fits beside others would run already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flexo.loaning.demand import DemandMissing, DemandSource
from flexo.model.loans import Demand
from flexo.model.nodes import Node
from flexo.model.queue import JobState, QueuedJob


class PartitionDemand(DemandSource):
    """Counts the jobs of one partition. The waiting part of a job array is one job, as in the queue."""

    def __init__(self, partition: str) -> None:
        self._partition = partition

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """Count the servers in use and those for which jobs wait (see DemandSource)."""
        servers = [node for node in nodes if self._partition in node.partitions]
        if not servers:
            raise DemandMissing(
                f"the cluster has no partition {self._partition} with nodes: nobody knows its demand"
            )
        own = [job for job in jobs if self._partition in job.partitions and job.satellite is None]
        in_use = {node for job in own if job.state is not JobState.PENDING for node in job.nodes}
        waiting = _servers_for([job for job in own if waits_for_servers(job)], servers)
        return Demand(now, float(len(in_use) + waiting), f"partition {self._partition}")


def waits_for_servers(job: QueuedJob) -> bool:
    """Whether `job` is pending for nothing but servers."""
    return job.state is JobState.PENDING and job.wait.more_nodes_may_help


def _servers_for(jobs: Iterable[QueuedJob], servers: Sequence[Node]) -> int:
    """The number of empty servers that hold all of `jobs`: first fit, the largest first, no job twice on one
    server.

    Jobs that no server of the partition can hold are not counted: they wait in vain.
    """
    kinds = {node.capacity: node for node in servers}.values()
    parts = [(share, job) for job in jobs if (share := _share(job, kinds)) is not None]
    free: list[float] = []
    for share, job in sorted(parts, key=lambda part: (-part[0], part[1].job_id)):
        missing = max(1, job.num_nodes)
        for at, room in enumerate(free):
            if missing and room >= share:
                free[at] -= share
                missing -= 1
        free += [1.0 - share] * missing
    return len(free)


def _share(job: QueuedJob, servers: Iterable[Node]) -> float | None:
    """The part, 0 to 1, that `job` takes of each of its servers, on the smallest kind of server that holds
    it.

    None: no kind holds it.
    """
    shares = [_share_of(job, server) for server in servers]
    possible = [share for share in shares if share <= 1]
    if not possible:
        return None
    # Multiples of a power of two, rounded up: jobs that fit must not fail for the last bit of a sum.
    return 1.0 if job.exclusive else math.ceil(max(possible) * 2**20) / 2**20


def _share_of(job: QueuedJob, server: Node) -> float:
    """The part of `server` that `job` takes on each node: the largest of its parts of GPUs, CPUs and memory.

    Infinite: the job does not fit there at all.
    """
    each, has = job.resources.share(job.num_nodes), server.capacity
    if not has.holds(each):
        return math.inf
    asked = ((each.gpus, has.gpus), (each.cpus, has.cpus), (each.memory_mib, has.memory_mib))
    return max((float(part / whole) for part, whole in asked if part), default=0.0)
