"""A Slurm in virtual time: its queue, the GPUs that jobs hold, and its decisions to start and preempt jobs.

Bases and ordinary jobs are in one partition, satellites in another of a lower tier, on the same nodes. A
waiting base may take satellites' GPUs. This module decides; `world` sets the times at which decisions take
effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.clusters.base import ClusterState, ClusterTraits, Priority, StartBounds
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
from flexo_protos.resources import Amount, Resources, rounded_up
from flexo_simulation.on_slurm.timeline import Ask, Release, Timeline
from flexo_simulation.workload import TraceJob

TRAIN, FLEX = "train", "flex"
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

    def __init__(self, nodes: Sequence[Node], backfill_s: float) -> None:
        self.now = 0.0
        """The present time, set by the world."""
        self._nodes = tuple(replace(node, partitions=frozenset({TRAIN, FLEX})) for node in nodes)
        names = frozenset(node.name for node in nodes)
        self._partitions = (Partition(TRAIN, 10, names), Partition(FLEX, 1, names))
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
            for node in self._nodes
        )
        jobs = tuple(entry.job for entry in self._queue.values())
        return ClusterState(self.now, nodes, self._partitions, jobs, 0.0)

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

    # Events in the cluster.

    def submit(self, job: TraceJob, name: str) -> None:
        """Queue a job: the base of an elastic job, or all workers of another."""
        elastic = job.workers.max > job.workers.min
        workers = job.workers.min if elastic else job.requested_workers
        asked = ElasticRequest(job.workers, job.fungible, job.batch, job.heterogeneous)
        request = asked if elastic else None
        queued = _queued(job.job_id, job.user or name, TRAIN, workers, job.shape, self.now)
        queued = replace(queued, time_limit_s=job.time_limit_s, elastic=request)
        self._queue[job.job_id] = Entry(queued, job.shape, workers)

    def submit_satellite(
        self, job_id: int, base: JobKey, grant_id: str, node: str, workers: int, time_limit_s: int
    ) -> None:
        """Queue a satellite of a running base; it waits for its node."""
        owner = self._queue[base.job_id]
        mixes = owner.job.elastic is not None and owner.job.elastic.heterogeneous
        shape = owner.shape.of_any_type() if mixes else owner.shape
        queued = replace(
            _queued(job_id, owner.job.user, FLEX, workers, shape, self.now, frozenset({node})),
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
        room = {node.name: node.gpus - held[node.name] for node in self._nodes}
        if not entry.shares or any(gpus > room[node] for node, gpus in entry.gpus()):
            return False
        nodes = tuple(share.node for share in entry.shares)
        entry.job = replace(
            entry.job,
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
        timeline, found = self._timeline(), []
        for entry in self._waiting():
            ask = _ask(entry)
            window = timeline.first_window(ask)
            if window is None:
                continue
            at, shares = window
            if at <= self.now:
                # a place where no satellite has to leave, if there is one
                shares = timeline.place_now(ask, self._of_satellites()) or shares
                entry.shares = shares
                found.append(Chosen(entry.job.job_id, tuple(self._in_the_way(entry))))
            timeline.take(ask, at, shares)
        return tuple(found)

    def may_start(self, satellite_job_id: int) -> bool:
        """Whether a waiting satellite's node has idle GPUs, which no waiting job is to have meanwhile."""
        entry = self._queue[satellite_job_id]
        ((node, gpus),) = entry.gpus()
        timeline = self._timeline()
        for waiting in self._waiting():
            window = timeline.first_window(_ask(waiting))
            if window is not None:
                timeline.take(_ask(waiting), *window)
        return timeline.free(node, _ask(entry).limit_s) - self._of_satellites().get(node, 0) >= gpus

    def waits(self) -> bool:
        """Whether any job waits."""
        return any(not entry.runs for entry in self._queue.values())

    def _waiting(self) -> list[Entry]:
        """Jobs without a place, in the order in which they start."""
        waiting = [entry for entry in self._queue.values() if not entry.shares]
        waiting.sort(key=lambda entry: (-entry.job.priority, entry.job.submitted_at, entry.job.job_id))
        return waiting[:_LOOKED_AT]

    def _held(self) -> dict[str, Amount]:
        """GPUs of each node that jobs hold."""
        held: dict[str, Amount] = dict.fromkeys((node.name for node in self._nodes), 0)
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

    def _timeline(self) -> Timeline:
        """The timeline of all jobs that have a place, as if there were no satellites: these give way."""
        free = {node.name: node.gpus for node in self._nodes}
        releases = []
        for entry in self._queue.values():
            if entry.job.satellite is not None:
                continue
            for node, gpus in entry.gpus():
                free[node] -= gpus
                if (ends_at := entry.ends_at()) < math.inf and entry.runs:
                    releases.append(Release(ends_at, node, gpus))
        return Timeline(self._nodes, free, releases, self.now)

    def _in_the_way(self, entry: Entry) -> Iterator[int]:
        """Satellites that have to leave for a job with a place, the oldest first, as Slurm takes them."""
        for node, gpus in entry.gpus():
            there = [each for each in self._queue.values() if each is not entry and node in dict(each.gpus())]
            whole = next(each.gpus for each in self._nodes if each.name == node)
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
