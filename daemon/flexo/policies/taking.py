"""Takes flexible workers back so that a base can start: the cheapest first, no more than the base needs
(Lyra)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.flexible import Demand, RunningTimes, count, cut
from flexo.policies.servers import Servers, Shares
from flexo_protos.resources import Amount, total

_Types = tuple[str, ...]


class Taking:
    """The flexible workers of one plan, by the cost of taking them. Mutable."""

    def __init__(self, servers: Servers, demands: Sequence[Demand], times: RunningTimes) -> None:
        self._servers = servers
        self._demands = demands
        self._times = times
        self._index = {demand.job.key: index for index, demand in enumerate(demands)}
        self._queues: dict[_Types, list[tuple[float, int]]] = {}
        """Per set of GPU types: the worth of a job's last worker, and the job's index. An entry that is out
        of date is skipped: the caller that changes a demand enters it anew."""
        self._gpus: defaultdict[str, Amount] = defaultdict(int)
        """GPUs that flexible workers hold, by type."""
        for demand in demands:
            self._count(demand, demand.flexible, 1)

    @property
    def total(self) -> Amount:
        """GPUs of flexible workers in all."""
        return total(self._gpus.values())

    def gpus_on(self, gpu_type: str) -> Amount:
        """GPUs of flexible workers on one type."""
        return self._gpus[gpu_type]

    def make_room(self, job: TrainingJob, gpu_types: _Types) -> Shares | None:
        """Take flexible workers so that the base of `job` fits on these types. Returns its nodes; None: it
        does not fit even so.

        The taken GPUs are free in the servers from then on. The base itself is not placed yet.
        """
        lacks = job.workers.min * job.shape.gpus - total(map(self._servers.free, gpu_types))
        if lacks > total(self._gpus[each] for each in gpu_types):
            return None
        enough = (
            self._anywhere(job, lacks, gpu_types)
            if job.shape.gpus <= 1
            else self._reclaim_nodes(job, gpu_types)
        )
        return self._servers.place_base(job, gpu_types) if enough else None

    def _anywhere(self, job: TrainingJob, lacks: Amount, gpu_types: _Types) -> bool:
        """Take `lacks` GPUs wherever they are: the base's workers fit on any."""
        while lacks > 0:
            victim = self._cheapest(gpu_types)
            lacks -= self._take(job, victim, lacks, lambda share: self._is_on(share, gpu_types))
        return True

    def _reclaim_nodes(self, job: TrainingJob, gpu_types: _Types) -> bool:
        """Take workers from nodes where a worker of several GPUs then fits, first where that takes the fewest
        GPUs."""
        each = job.shape.gpus
        lacks = job.workers.min - sum(self._servers.room(job.shape, gpu_type) for gpu_type in gpu_types)
        places: list[tuple[float, str, int]] = []
        for node, flexible in self._flexible_by_node(gpu_types):
            idle = self._servers.of_node(node)
            gained = (idle + flexible) // each - idle // each
            if gained:
                places.append((float(_to_take(idle, each, gained)) / gained, node, gained))
        if sum(gained for _, _, gained in places) < lacks:
            return False
        for _, node, gained in sorted(places):
            part = min(lacks, gained)
            if part <= 0:
                break
            self._reclaim_node(job, node, _to_take(self._servers.of_node(node), each, part))
            lacks -= part
        return True

    def _reclaim_node(self, job: TrainingJob, node: str, gpus: Amount) -> None:
        """Take `gpus` GPUs on `node` from the flexible workers there."""
        there = [demand for demand in self._demands if any(share.node == node for share in demand.flexible)]
        for victim in sorted(there, key=self._times.last_saves_s):
            if gpus > 0:
                gpus -= self._take(job, victim, gpus, lambda share: share.node == node)

    def _flexible_by_node(self, gpu_types: _Types) -> Iterator[tuple[str, Amount]]:
        gpus: defaultdict[str, Amount] = defaultdict(int)
        for demand in self._demands:
            for share in demand.flexible:
                if self._is_on(share, gpu_types):
                    gpus[share.node] += share.workers * demand.job.shape.gpus
        return iter(gpus.items())

    def _take(
        self, job: TrainingJob, victim: Demand, gpus: Amount, where: Callable[[NodeShare], bool]
    ) -> Amount:
        """Take `gpus` GPUs from `victim`, or all that it has `where` that is allowed. Returns how many were
        taken."""
        each = victim.job.shape.gpus or 1
        removed = cut(victim.flexible, -(-gpus // each), where)
        self._servers.give(victim.job.shape, removed)
        self._count(victim, removed, -1)
        victim.gave_to = job.key
        for gpu_types, queue in self._queues.items():
            if self._has_any(victim, gpu_types):
                heappush(queue, (self._times.last_saves_s(victim), self._index[victim.job.key]))
        return count(removed) * victim.job.shape.gpus

    def _cheapest(self, gpu_types: _Types) -> Demand:
        """The job whose last worker saves the least running time per GPU. There must be such a job."""
        if gpu_types not in self._queues:
            entries = [
                (self._times.last_saves_s(demand), index)
                for index, demand in enumerate(self._demands)
                if self._has_any(demand, gpu_types)
            ]
            heapify(entries)
            self._queues[gpu_types] = entries
        queue = self._queues[gpu_types]
        while True:
            saved, index = heappop(queue)
            demand = self._demands[index]
            if self._has_any(demand, gpu_types) and saved == self._times.last_saves_s(demand):
                return demand

    def _has_any(self, demand: Demand, gpu_types: _Types) -> bool:
        return any(self._is_on(share, gpu_types) for share in demand.flexible)

    def _is_on(self, share: NodeShare, gpu_types: _Types) -> bool:
        return self._servers.gpu_type_of(share) in gpu_types

    def _count(self, demand: Demand, shares: Sequence[NodeShare], sign: int) -> None:
        for share in shares:
            gpu_type = self._servers.gpu_type_of(share)
            if gpu_type is not None:
                self._gpus[gpu_type] += sign * share.workers * demand.job.shape.gpus


def _to_take(idle: Amount, each: Amount, workers: int) -> Amount:
    """GPUs to take so that `workers` more workers of `each` GPUs fit, beside those that fit into `idle`."""
    return (idle // each + workers) * each - idle
