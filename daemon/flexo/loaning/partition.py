"""Demand by the inference partition's own queue: servers in use, and servers for which jobs wait.

Servers are lent whole, so they are counted whole: jobs that share a server count as one. Waiting jobs are
packed onto empty servers, because a job that fits beside others would run already.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flexo.loaning.demand import DemandMissing, DemandSource
from flexo.model.loans import Demand
from flexo.model.nodes import Node
from flexo.model.queue import JobState, QueuedJob
from flexo_protos.resources import Resources


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
    server unless its pieces are separate.

    Jobs that no server of the partition can hold are not counted: they wait in vain.
    """
    kinds = {node.capacity: node for node in servers}.values()
    whole = 0
    pieces: list[_Piece] = []
    for job in jobs:
        for each in _pieces(job, kinds):
            full, piece = each.filling()
            whole += full
            pieces += piece
    return whole + _first_fit(sorted(pieces, key=lambda piece: (-piece.share, piece.job_id)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a job asks for on `servers` servers; or `copies` separate pieces, which may share a server."""

    job_id: int
    share: float
    """The part, 0 to 1, that it takes of each of its servers."""
    servers: int = 1
    copies: int = 1

    def filling(self) -> tuple[int, list[_Piece]]:
        """The servers that copies of it fill, and the pieces that are left."""
        if self.copies == 1:
            return 0, [self]
        each = max(1, int(1 / self.share)) if self.share else self.copies
        return self.copies // each, [replace(self, copies=1)] * (self.copies % each)


def _pieces(job: QueuedJob, kinds: Collection[Node]) -> list[_Piece]:
    """The pieces of a job that some kind of server can hold."""
    if job.requests and all(each.divisible for each in job.requests):
        shares = [(_share(each.unit, kinds), each.units) for each in job.requests]
        return [_Piece(job.job_id, share, copies=units) for share, units in shares if share is not None]
    share = _share(job.resources.share(job.num_nodes), kinds)
    if share is None:
        return []
    return [_Piece(job.job_id, 1.0 if job.exclusive else share, max(1, job.num_nodes))]


def _first_fit(pieces: Iterable[_Piece]) -> int:
    free: list[float] = []
    for piece in pieces:
        missing = piece.servers
        for at, room in enumerate(free):
            if missing and room >= piece.share:
                free[at] -= piece.share
                missing -= 1
        free += [1.0 - piece.share] * missing
    return len(free)


def _share(each: Resources, servers: Iterable[Node]) -> float | None:
    """The part, 0 to 1, that `each` is of the smallest kind of server that holds it.

    None: no kind holds it.
    """
    possible = [share for server in servers if (share := _share_of(each, server)) <= 1]
    # Multiples of a power of two, rounded up: jobs that fit must not fail for the last bit of a sum.
    return math.ceil(max(possible) * 2**20) / 2**20 if possible else None


def _share_of(each: Resources, server: Node) -> float:
    """The part of `server` that `each` is: the largest of its parts of GPUs, CPUs and memory.

    Infinite: it does not fit there at all.
    """
    has = server.capacity
    if not has.holds(each):
        return math.inf
    asked = ((each.gpus, has.gpus), (each.cpus, has.cpus), (each.memory_mib, has.memory_mib))
    return max((float(part / whole) for part, whole in asked if part), default=0.0)
