"""The world of controller_world.py, in which a second job may use a GPU that another job holds.

The node `c1` has CPUs only, for the bases of opportunistic jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from controller_world import ADA, FakeCluster, FakeLeader, FakeLeaders, World, slurm_job
from flat_records import change_job

from flexo.clusters.base import ClusterState
from flexo.config import ControllerSettings, Settings
from flexo.model.nodes import Partition
from flexo.model.queue import ElasticRequest, JobState, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo.model.sharing import GpuUse, number_of, shared_gpu, shared_gpus_in
from flexo.sharing.settings import SharingSettings
from flexo_protos.resources import Resources

HELD = "JobHeldAdmin"


class SharingCluster(FakeCluster):
    """FakeCluster with a second resource on each GPU, and with the indices of the GPUs that jobs hold."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"t1": 2, "t2": 2}
        self.indices: dict[int, frozenset[tuple[str, int]]] = {}
        self.released: list[int] = []
        self.asked: list[str] = []

    def observe(self) -> ClusterState:
        state = super().observe()
        used = self.spares_used()
        nodes = tuple(
            replace(
                node,
                capacity=replace(node.capacity, devices=tuple(map(shared_gpu, range(self.sizes[node.name])))),
                allocated=replace(
                    node.allocated, devices=tuple(shared_gpu(gpu) for name, gpu in used if name == node.name)
                ),
                partitions=node.partitions | {"shared"},
            )
            for node in state.nodes
        )
        names = frozenset(self.sizes)
        return replace(state, nodes=nodes, partitions=(*state.partitions, Partition("shared", 1, names)))

    def spares_used(self) -> list[tuple[str, int]]:
        """The GPUs that second jobs use: their node and number."""
        return [
            (job.nodes[0], number_of(device))
            for job in self.queue.values()
            if job.state is JobState.RUNNING
            for device in shared_gpus_in(job.resources.devices)
        ]

    def gpus_of(self, job: str, nodes: Collection[str]) -> frozenset[tuple[str, int]]:
        self.asked.append(job)
        return frozenset(gpu for gpu in self.indices.get(int(job), ()) if gpu[0] in nodes)

    def release(self, job: str) -> None:
        self.released.append(int(job))
        self.queue[int(job)] = replace(self.queue[int(job)], reason="None", wait=WaitReason.RESOURCES)

    def pass_time(self, seconds: float) -> None:
        held = {job_id: job for job_id, job in self.queue.items() if job.reason == HELD}
        for job_id in held:
            del self.queue[job_id]
        super().pass_time(seconds)
        self.queue |= held

    def submit_shared(self, base, owner, grant, partition="shared") -> int:
        self.last_id += 1
        job = slurm_job(
            self.last_id,
            owner,
            partitions=(partition,),
            state=JobState.PENDING,
            reason=HELD,
            submitted_at=self.now,
            started_at=None,
            time_limit_s=grant.time_limit_s,
            required_nodes=frozenset({grant.node}),
            gpus=0,
            cpus=grant.workers,
            devices=grant.shared_gpus,
            satellite=SatelliteTag(base, grant.grant_id, grant.workers),
        )
        self.add(job)
        return self.last_id


class SharingLeader(FakeLeader):
    """FakeLeader that submits satellites for shared GPUs as well."""

    def hear(self, orders) -> None:
        self.shared = {grant.grant_id: grant for grant in orders.grants if grant.shared_gpus}
        for grant_id in self.own.keys() - {grant.grant_id for grant in orders.grants}:
            self.cluster.queue.pop(self.own.pop(grant_id), None)
        for grant_id in self.shared.keys() - self.own.keys():
            self.own[grant_id] = self.cluster.submit_shared(self.key, self.owner, self.shared[grant_id])
        super().hear(orders)


class SharingWorld(World):
    """A World whose site shares GPUs."""

    def __init__(self, directory, sharing=None, **controller) -> None:
        self.directory = directory
        self.cluster = SharingCluster()
        self.leaders = FakeLeaders()
        rules = {"min_resize_interval_s": 4.0, "time_limit_s": 300} | controller
        self.settings = Settings(
            controller=ControllerSettings(**rules),
            sharing=SharingSettings(**({"partition": "shared"} | (sharing or {}))),
        )
        self.restart()

    def host(self, job_id: int, node: str, gpu: int, busy: float = 0.5, **changes) -> SharingLeader:
        """Add a guarantee job of one worker that lets others use its GPU."""
        said = {"cohost": True, "account": "physics", "owner": ADA} | changes
        elastic = ElasticRequest(Range(1, 1), cohost=said.pop("cohost"))
        base = change_job(slurm_job(job_id, said.pop("owner")), nodes=(node,), elastic=elastic, **said)
        self.cluster.add(base)
        self.cluster.indices[job_id] = frozenset({(node, gpu)})
        return self._attach(base, gpu_uses=(GpuUse(node, gpu, busy, steady=True),))

    def opportunist(self, job_id: int, workers: str, *, auto: bool = False, **changes) -> SharingLeader:
        """Add an opportunistic job whose base runs on a node without GPUs."""
        elastic = ElasticRequest(Range.parse(workers), opportunistic=True, auto=auto)
        plain = slurm_job(job_id, nodes=("c1",), gpus=0, cpus=1, elastic=elastic, account="physics")
        base = change_job(plain, **({"started_at": self.cluster.now} | changes))
        self.cluster.add(base)
        return self._attach(base, scalable=False, training_workers=0)

    def _attach(self, base: QueuedJob, **says) -> SharingLeader:
        leader = SharingLeader(self.cluster, base)
        leader.says, leader.shape = says, Resources(1, 1)
        self.leaders.attached[leader.key] = leader
        return leader

    def end(self, job_id: int) -> None:
        """End a job and its leader."""
        job = self.cluster.queue.pop(job_id)
        self.leaders.attached.pop(job.key, None)
        self.cluster.indices.pop(job_id, None)

    def used_by(self, job_id: int) -> Counter[tuple[str, int | None]]:
        """The GPUs of a job's satellites that have started: (node, number), or (node, None) for its own."""
        found: Counter[tuple[str, int | None]] = Counter()
        for job in self.cluster.queue.values():
            if job.satellite is None or job.satellite.base.job_id != job_id or not job.nodes:
                continue
            for device in shared_gpus_in(job.resources.devices):
                found[job.nodes[0], number_of(device)] += 1
            if job.resources.gpus:
                found[job.nodes[0], None] += int(job.resources.gpus)
        return found

    def why(self, job_id: int) -> str:
        return "\n".join(self.controller.explain(job_id))
