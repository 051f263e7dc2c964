"""A Slurm in virtual time: its queue, the GPUs that jobs hold, and its decisions to start and preempt jobs.

Bases and ordinary jobs are in one partition, satellites in another of a lower tier, on the same nodes. A
waiting base may take satellites' GPUs. Inference servers on loan are in two more partitions of that kind;
bases of fungible jobs may start there if there is no place for them on training nodes. This module decides;
`world` sets the times at which decisions take effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.clusters.base import ClusterState, ClusterTraits, Priority, StartBounds
from flexo.clusters.simulated.nodes import BORROWED, INFERENCE
from flexo.clusters.slurm.priorities import BAND
from flexo.model.nodes import Node, Partition
from flexo.model.queue import (
    ElasticRequest,
    JobKey,
    JobState,
    Principal,
    QueuedJob,
    Request,
    SatelliteTag,
    WaitReason,
)
from flexo.model.training import NodeShare
from flexo_protos.resources import Amount, Resources, rounded_up, total
from flexo_simulation.on_slurm.timeline import Ask, Release, Timeline
from flexo_simulation.workload import TraceJob

TRAIN, FLEX = "train", "flex"
BORROWED_FLEX = "borrowed-flex"
"""The partition of satellites on servers on loan."""
NOBODY: Final = Principal("0")
"""The owner of all jobs: a trace's users have no accounts."""
_LOOKED_AT = 100
"""The most waiting jobs for which backfill finds a window. (bf_max_job_test is more, which takes Slurm its
time.)"""


@dataclass(slots=True)
class Entry:
    """One job in the queue: as Slurm shows it, and the shares that it holds or is about to hold."""

    job: QueuedJob
    shape: Resources
    workers: int
    shares: tuple[NodeShare, ...] = ()
    """The shares with which it runs, or will run as soon as satellites have left."""
    leaving: bool = False
    """Whether a satellite's GPUs are being given back."""

    @property
    def runs(self) -> bool:
        """Whether the job holds its GPUs."""
        return self.job.state is not JobState.PENDING

    def ends_at(self) -> float:
        """The end by the time limit; infinite: there is none."""
        limit_s = self.job.time_limit_s
        return math.inf if limit_s is None else (self.job.started_at or 0.0) + limit_s

    def gpus(self) -> Iterator[tuple[str, Amount]]:
        """The GPUs of the job on each node."""
        return ((share.node, share.workers * self.shape.gpus) for share in self.shares)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job that is to start, and the satellites that have to leave for it."""

    job_id: int
    preempted: tuple[int, ...]


class SimulatedSlurm:
    """A Cluster that prioritizes, and starts jobs itself. Mutable."""

    software = "Slurm"

    def __init__(
        self,
        nodes: Sequence[Node],
        backfill_s: float,
        servers: Sequence[Node] = (),
        requeued: Callable[[int], None] = lambda job_id: None,
    ) -> None:
        """`servers`: the inference servers, which may be lent. `requeued` is called with the number of each
        running base that flexod requeues."""
        self.now = 0.0
        """The present time, set by the world."""
        self._nodes = tuple(replace(node, partitions=frozenset({TRAIN, FLEX})) for node in nodes)
        self._servers = tuple(servers)
        self._requeued = requeued
        self._lent: frozenset[str] = frozenset()
        names = frozenset(node.name for node in nodes)
        self._partitions = (Partition(TRAIN, 10, names), Partition(FLEX, 1, names))
        self.lend(frozenset())
        self._backfill_s = backfill_s
        self._queue: dict[int, Entry] = {}

    # The calls of flexod.

    def traits(self) -> ClusterTraits:
        """The traits of a cluster that starts jobs itself."""
        return ClusterTraits(
            "simulated Slurm", "", StartBounds(self._backfill_s), self.software, satellite_partition=FLEX
        )

    def observe(self) -> ClusterState:
        """The state: the queue, and the nodes with the GPUs that jobs hold."""
        held = self._held()
        nodes = tuple(
            replace(node, allocated=Resources(held[node.name], rounded_up(held[node.name], 1)))
            for node in (*self._nodes, *self._servers)
        )
        jobs = tuple(entry.job for entry in self._queue.values())
        return ClusterState(self.now, nodes, (*self._partitions, *self._of_loans), jobs, 0.0)

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Extend time limits under grants that stand."""
        for limit in time_limits:
            entry = self._queue.get(int(limit))
            if entry is not None and entry.job.started_at is not None:
                limit_s = int(self.now - entry.job.started_at) + seconds_from_now
                entry.job = replace(entry.job, time_limit_s=limit_s)

    def cancel(self, job: str) -> None:
        """Do nothing: satellites whose job has ended are leaving anyway."""

    def in_band(self, priority: int) -> bool:
        """Whether a priority is in flexod's band, as on a real Slurm."""
        return priority in BAND

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The priorities that put jobs in order, as on a real Slurm."""
        return BAND.arrange(now)

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set the priorities of waiting jobs: the job with the highest one is considered first."""
        for each in priorities:
            entry = self._queue.get(int(each.job))
            if entry is not None and not entry.runs:
                entry.job = replace(entry.job, priority=each.priority)

    def lend(self, nodes: frozenset[str]) -> None:
        """Put exactly these servers into the partitions of servers on loan."""
        self._lent = nodes
        names = frozenset(server.name for server in self._servers)
        own, both = frozenset({INFERENCE}), frozenset({INFERENCE, BORROWED, BORROWED_FLEX})
        self._servers = tuple(
            replace(server, partitions=both if server.name in nodes else own) for server in self._servers
        )
        loans = (
            Partition(INFERENCE, 20, names),
            Partition(BORROWED, 2, nodes),
            Partition(BORROWED_FLEX, 1, nodes),
        )
        self._of_loans = loans if self._servers else ()

    def requeue(self, job: str) -> None:
        """Preempt a running base."""
        if (entry := self._queue.get(int(job))) is not None and entry.job.state is JobState.RUNNING:
            self._requeued(entry.job.job_id)

    # Events in the cluster.

    def submit(self, job: TraceJob, name: str) -> None:
        """Queue a job: the base of an elastic job, or all workers of another."""
        elastic = job.workers.max > job.workers.min
        workers = job.workers.min if elastic else job.requested_workers
        asked = ElasticRequest(job.workers, job.fungible, job.batch, job.heterogeneous)
        request = asked if elastic or job.fungible else None
        queued = _queued(job.job_id, job.user or name, TRAIN, workers, job.shape, self.now)
        if job.fungible and self._servers:
            queued = replace(queued, partitions=(TRAIN, BORROWED))
        queued = replace(queued, time_limit_s=job.time_limit_s, elastic=request)
        self._queue[job.job_id] = Entry(queued, job.shape, workers)

    def submit_inference(self, job_id: int) -> None:
        """Queue a job of the inference cluster, which needs a whole server."""
        shape = replace(self._servers[0].capacity, cpus=0, memory_mib=0)
        self._queue[job_id] = Entry(_queued(job_id, INFERENCE, INFERENCE, 1, shape, self.now), shape, 1)

    def start_inference(self) -> tuple[str, ...]:
        """Start waiting inference jobs on empty servers.

        Returns the servers that the others wait for: those with satellites only come first, as Slurm
        preempts lower tiers first.
        """
        held, wanted = self._held(), []
        for entry in self._queue.values():
            if entry.job.partitions != (INFERENCE,) or entry.runs:
                continue
            server = next((each.name for each in self._servers if not held[each.name]), None)
            if server is None:
                wanted.append(entry)
                continue
            entry.shares = (NodeShare(server, 1),)
            held[server] = 1
            self.begin(entry.job.job_id)
        return tuple(sorted(self.residents, key=self._bases_on)[: len(wanted)])

    @property
    def residents(self) -> tuple[str, ...]:
        """The servers on which jobs other than inference hold GPUs."""
        on = {node for entry in self._training() for node, _ in entry.gpus()}
        return tuple(server.name for server in self._servers if server.name in on)

    def jobs_on(self, server: str) -> tuple[int, ...]:
        """The jobs other than inference that hold GPUs of a server."""
        return tuple(each.job.job_id for each in self._training() if server in dict(each.gpus()))

    @property
    def gpus_on_loan(self) -> Amount:
        """GPUs of servers that jobs other than inference hold."""
        names = {server.name for server in self._servers}
        return total(gpus for each in self._training() for node, gpus in each.gpus() if node in names)

    @property
    def lent(self) -> frozenset[str]:
        """The servers in the partitions of servers on loan."""
        return self._lent

    @property
    def inference_jobs(self) -> int:
        """Servers on which inference runs."""
        return sum(each.runs for each in self._queue.values() if each.job.partitions == (INFERENCE,))

    def _training(self) -> Iterator[Entry]:
        return (each for each in self._queue.values() if each.runs and each.job.partitions != (INFERENCE,))

    def _bases_on(self, server: str) -> tuple[int, str]:
        bases = sum(self._queue[job].job.satellite is None for job in self.jobs_on(server))
        return bases, server

    def wait_again(self, job_id: int) -> None:
        """Put a base that was requeued into the queue again. It does not start before `let_start`."""
        entry = self._queue[job_id]
        entry.shares = ()
        partitions = (TRAIN, BORROWED) if self._servers else (TRAIN,)
        entry.job = replace(
            entry.job,
            partitions=partitions,
            state=JobState.PENDING,
            wait=WaitReason.START_TIME,
            reason="BeginTime",
            started_at=None,
            nodes=(),
            restart_count=entry.job.restart_count + 1,
        )

    def let_start(self, job_id: int) -> None:
        """Let a base that was requeued start."""
        entry = self._queue[job_id]
        entry.job = replace(entry.job, wait=WaitReason.RESOURCES, reason="Resources")

    def submit_satellite(
        self, job_id: int, base: JobKey, grant_id: str, node: str, workers: int, time_limit_s: int
    ) -> None:
        """Queue a satellite of a running base; it waits for its node."""
        owner = self._queue[base.job_id]
        mixes = owner.job.elastic is not None and owner.job.elastic.heterogeneous
        shape = owner.shape.of_any_type() if mixes else owner.shape
        partition = FLEX if any(each.name == node for each in self._nodes) else BORROWED_FLEX
        queued = replace(
            _queued(job_id, owner.job.user, partition, workers, shape, self.now, frozenset({node})),
            time_limit_s=time_limit_s,
            satellite=SatelliteTag(base, grant_id, workers),
        )
        self._queue[job_id] = Entry(queued, shape, workers, (NodeShare(node, workers),))

    def entry(self, job_id: int) -> Entry | None:
        """A job that waits or runs; None: there is no such job."""
        return self._queue.get(job_id)

    def remove(self, job_id: int) -> None:
        """Remove a job that is over; its GPUs become free."""
        self._queue.pop(job_id, None)

    def complete(self, job_id: int) -> None:
        """Mark a job as completing: its script has ended, and Slurm is still clearing up."""
        entry = self._queue[job_id]
        entry.job = replace(entry.job, state=JobState.COMPLETING)

    def let_go(self, satellite_job_id: int) -> None:
        """Mark a running satellite as leaving."""
        self._queue[satellite_job_id].leaving = True

    def begin(self, job_id: int) -> bool:
        """Start a job that has its place. False: its GPUs are not free yet."""
        entry = self._queue[job_id]
        held = self._held()
        room = {node.name: node.gpus - held[node.name] for node in (*self._nodes, *self._servers)}
        if not entry.shares or any(gpus > room[node] for node, gpus in entry.gpus()):
            return False
        nodes = tuple(share.node for share in entry.shares)
        partitions = entry.job.partitions
        if len(partitions) > 1:
            partitions = (TRAIN,) if any(each.name == nodes[0] for each in self._nodes) else (BORROWED,)
        entry.job = replace(
            entry.job,
            partitions=partitions,
            state=JobState.RUNNING,
            wait=WaitReason.NONE,
            reason="None",
            started_at=self.now,
            nodes=nodes,
        )
        return True

    def chosen(self) -> tuple[Chosen, ...]:
        """Run one pass of Slurm's scheduler: the jobs that are to start now. They have their places from now
        on."""
        found = list(self._chosen(self._nodes, TRAIN))
        if self._lent:
            found += self._chosen(self._open(), BORROWED)
        return tuple(found)

    def _open(self) -> tuple[Node, ...]:
        """The servers on which jobs may start: those on loan on which no inference runs."""
        taken = {
            node
            for each in self._queue.values()
            if each.job.partitions == (INFERENCE,)
            for node, _ in each.gpus()
        }
        return tuple(server for server in self._servers if server.name in self._lent - taken)

    def _chosen(self, nodes: Sequence[Node], partition: str) -> Iterator[Chosen]:
        """The jobs of a partition that are to start now on its nodes."""
        timeline, satellites = self._timeline(nodes), self._of_satellites()
        for entry in self._waiting(partition):
            ask = _ask(entry)
            window = timeline.first_window(ask)
            if window is None:
                continue
            at, shares = window
            if at <= self.now:
                # a place where no satellite has to leave, if there is one
                here = {node.name: satellites.get(node.name, 0) for node in nodes}
                shares = timeline.place_now(ask, here) or shares
                entry.shares = shares
                yield Chosen(entry.job.job_id, tuple(self._in_the_way(entry)))
            timeline.take(ask, at, shares)

    def may_start(self, satellite_job_id: int) -> bool:
        """Whether a waiting satellite's node has idle GPUs, which no waiting job is to have meanwhile."""
        entry = self._queue[satellite_job_id]
        ((node, gpus),) = entry.gpus()
        on_loan = entry.job.partitions == (BORROWED_FLEX,)
        nodes, partition = (self._open(), BORROWED) if on_loan else (self._nodes, TRAIN)
        if all(each.name != node for each in nodes):
            return False
        timeline = self._timeline(nodes)
        for waiting in self._waiting(partition):
            window = timeline.first_window(_ask(waiting))
            if window is not None:
                timeline.take(_ask(waiting), *window)
        return timeline.free(node, _ask(entry).limit_s) - self._of_satellites().get(node, 0) >= gpus

    def waits(self) -> bool:
        """Whether any job waits."""
        return any(not entry.runs for entry in self._queue.values())

    def _waiting(self, partition: str) -> list[Entry]:
        """Jobs of a partition without a place, in the order in which they start."""
        waiting = [
            entry
            for entry in self._queue.values()
            if not entry.shares
            and partition in entry.job.partitions
            and entry.job.wait is not WaitReason.START_TIME
        ]
        waiting.sort(key=lambda entry: (-entry.job.priority, entry.job.submitted_at, entry.job.job_id))
        return waiting[:_LOOKED_AT]

    def _held(self) -> dict[str, Amount]:
        """GPUs of each node that jobs hold."""
        held: dict[str, Amount] = dict.fromkeys((node.name for node in (*self._nodes, *self._servers)), 0)
        for entry in self._queue.values():
            if entry.runs:
                for node, gpus in entry.gpus():
                    held[node] += gpus
        return held

    def _of_satellites(self) -> dict[str, Amount]:
        held: dict[str, Amount] = {}
        for entry in self._queue.values():
            if entry.runs and entry.job.satellite is not None:
                for node, gpus in entry.gpus():
                    held[node] = held.get(node, 0) + gpus
        return held

    def _timeline(self, nodes: Sequence[Node]) -> Timeline:
        """The timeline of all jobs that have a place, as if there were no satellites: these give way."""
        free = {node.name: node.gpus for node in nodes}
        releases = []
        for entry in self._queue.values():
            if entry.job.satellite is not None:
                continue
            for node, gpus in entry.gpus():
                if node not in free:
                    continue
                free[node] -= gpus
                if (ends_at := entry.ends_at()) < math.inf and entry.runs:
                    releases.append(Release(ends_at, node, gpus))
        return Timeline(nodes, free, releases, self.now)

    def _in_the_way(self, entry: Entry) -> Iterator[int]:
        """Satellites that have to leave for a job with a place, the oldest first, as Slurm takes them."""
        for node, gpus in entry.gpus():
            there = [each for each in self._queue.values() if each is not entry and node in dict(each.gpus())]
            whole = next(each.gpus for each in (*self._nodes, *self._servers) if each.name == node)
            lacks = gpus + sum(dict(each.gpus())[node] for each in there if self._counts(each)) - whole
            satellites = [each for each in there if each.runs and each.job.satellite is not None]
            for satellite in sorted(satellites, key=lambda each: each.job.started_at or 0.0):
                if lacks > 0:
                    lacks -= satellite.workers * satellite.shape.gpus
                    if not satellite.leaving:
                        yield satellite.job.job_id

    @staticmethod
    def _counts(entry: Entry) -> bool:
        """Whether the job keeps its GPUs from others: it holds them, or is a base that waits for them."""
        return entry.runs or entry.job.satellite is None


def _queued(
    job_id: int,
    user: str,
    partition: str,
    workers: int,
    shape: Resources,
    now: float,
    required_nodes: frozenset[str] = frozenset(),
) -> QueuedJob:
    """A job that has just been submitted. CPUs are not simulated: one for each GPU."""
    gpus = workers * shape.gpus
    resources = Resources(gpus, max(1, rounded_up(gpus, 1)), gpu_type=shape.gpu_type)
    return QueuedJob(
        job_id=job_id,
        owner=NOBODY,
        user=user,
        partitions=(partition,),
        state=JobState.PENDING,
        wait=WaitReason.RESOURCES,
        reason="Resources",
        priority=1,
        submitted_at=now,
        started_at=None,
        time_limit_s=None,
        nodes=(),
        num_nodes=1,
        resources=resources,
        requests=(Request.in_all(resources, required_nodes=required_nodes),),
    )


def _ask(entry: Entry) -> Ask:
    limit_s = entry.job.time_limit_s
    return Ask(entry.shape, entry.workers, math.inf if limit_s is None else limit_s)
