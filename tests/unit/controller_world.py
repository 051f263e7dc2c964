"""A controller with a fake cluster and fake leaders, on a clock that the test moves.

FakeCluster keeps nodes and a queue, and starts pending satellites. FakeLeaders submit a satellite for each
grant, report it, and end it when the grant is gone. Policy, GrantLedger and event store are the real ones.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flat_records import change_job, make_job, make_node
from slurm_says import job_as_slurm_says

from flexo.clusters.base import (
    ActionRefused,
    ClusterState,
    ClusterTraits,
    ClusterUnreachable,
    Priority,
    StartBounds,
    UserShares,
)
from flexo.clusters.slurm.priorities import BAND
from flexo.config import ControllerSettings, Settings
from flexo.control.leaders import NodeSpeed, Saved
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.grant_signatures import GrantSigner
from flexo.model.elastic import FailureReason, GrantFailure, LeaderReport, SatelliteReport, SatelliteState
from flexo.model.measured import FailedWorkers, SlowGpuReport
from flexo.model.nodes import Partition
from flexo.model.queue import ElasticRequest, JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo_protos.resources import Resources

TIME_LIMIT_S = 300
STEP_S = 2.0
KEY = JobKey(1)
SIGNER = GrantSigner(b"k" * 32)
"""The signer of every flexod here: all flexods of a cluster have the same key."""
ADA, BOB = Principal("1000"), Principal("2000")


def slurm_job(job_id: int, owner: Principal = ADA, **changes) -> QueuedJob:
    plain = make_job(
        job_id=job_id,
        owner=owner,
        user={ADA: "ada", BOB: "bob"}[owner],
        partitions=("train",),
        state=JobState.RUNNING,
        wait=WaitReason.NONE,
        reason="None",
        priority=100,
        submitted_at=900.0,
        started_at=950.0,
        time_limit_s=None,
        nodes=(),
        num_nodes=1,
        cpus=1,
        gpus=1,
        memory_mib=0,
    )
    return change_job(plain, **changes)


class FakeCluster:
    """Slurm, as far as the controller sees it: three nodes of four GPUs, and a queue."""

    software = "Slurm"
    satellite_qos = ""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sizes = {"t1": 4, "t2": 4, "t3": 4}
        self.queue: dict[int, QueuedJob] = {}
        self.last_id = 1000
        self.starts = True
        """True if pending satellites start."""
        self.unreachable = ""
        self.refuses = ""
        self.read_cost_s = 0.0
        self.looks: list[float] = []
        self.asked_for_traits = 0
        self.starts_in_a_turn: int | None = None
        self.backfill_interval_s = 30.0
        self.extended: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.prioritized: list[tuple[Priority, ...]] = []
        self.shares = UserShares((), 0.0)

    def clock(self) -> float:
        return self.now

    def traits(self) -> ClusterTraits:
        if self.unreachable:
            raise ClusterUnreachable(self.unreachable)
        self.asked_for_traits += 1
        starts = StartBounds(self.backfill_interval_s, self.starts_in_a_turn, "bf_max_job_part")
        return ClusterTraits(
            "lab", "22.05.8", starts, self.software, "flex", self.satellite_qos, "scontrol resume"
        )

    def observe(self) -> ClusterState:
        self.looks.append(time.monotonic())
        if self.unreachable:
            raise ClusterUnreachable(self.unreachable)
        names, held = frozenset(self.sizes), self._held()
        nodes = tuple(
            make_node(name, gpus, held[name], 2 * gpus, held[name], 8000, 0, frozenset({"train", "flex"}))
            for name, gpus in self.sizes.items()
        )
        partitions = (Partition("train", 10, names), Partition("flex", 1, names))
        return ClusterState(self.now, nodes, partitions, tuple(self.queue.values()), self.read_cost_s)

    def held(self, node: str) -> int:
        return self._held()[node]

    def _held(self) -> Counter[str]:
        """GPUs in use per node."""
        held: Counter[str] = Counter()
        for job in self.queue.values():
            if job.state in (JobState.RUNNING, JobState.SUSPENDED):
                for node in job.nodes:
                    held[node] += job.resources.gpus
        return held

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        if self.refuses:
            raise ActionRefused(self.refuses)
        for job_id in map(int, time_limits):
            self.extended.append((job_id, seconds_from_now))
            job = self.queue[job_id]
            limit = int(self.now - (job.started_at or 0)) + seconds_from_now
            self.queue[job_id] = replace(job, time_limit_s=limit)

    def cancel(self, job: str) -> None:
        if self.refuses:
            raise ActionRefused(self.refuses)
        self.cancelled.append(int(job))
        self.queue.pop(int(job), None)

    def in_band(self, priority: int) -> bool:
        return priority in BAND

    def arrange(self, now: Sequence[int]) -> list[int]:
        return BAND.arrange(now)

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        if self.refuses:
            raise ActionRefused(self.refuses)
        self.prioritized.append(tuple(priorities))
        for each in priorities:
            self.queue[int(each.job)] = replace(self.queue[int(each.job)], priority=each.priority)

    def user_shares(self) -> UserShares:
        if self.refuses:
            raise ActionRefused(self.refuses)
        return self.shares

    # Changes that others than flexod make to the cluster.

    def add(self, job: QueuedJob) -> QueuedJob:
        self.queue[job.job_id] = job_as_slurm_says(job)
        return self.queue[job.job_id]

    def base(self, job_id: int = 1, workers: str = "1-4", node: str = "t1", **changes) -> QueuedJob:
        size = Range.parse(workers)
        plain = slurm_job(job_id, nodes=(node,), gpus=size.min, cpus=size.min, elastic=ElasticRequest(size))
        return self.add(change_job(plain, **changes))

    def submit(
        self, base: JobKey, owner: Principal, grant_id: str, node: str, workers: int, time_limit_s: int
    ) -> int:
        self.last_id += 1
        self.add(
            slurm_job(
                self.last_id,
                owner,
                partitions=("flex",),
                state=JobState.PENDING,
                reason="None",
                submitted_at=self.now,
                started_at=None,
                time_limit_s=time_limit_s,
                required_nodes=frozenset({node}),
                gpus=workers,
                cpus=max(1, workers),
                satellite=SatelliteTag(base, grant_id, workers),
            )
        )
        return self.last_id

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        held = self._held()
        for job in list(self.queue.values()):
            if job.satellite is None:
                continue
            node = next(iter(job.nodes or job.required_nodes))
            room = self.sizes[node] - held[node]
            may_start = self.starts and job.reason != "JobHeldUser"
            if job.state is JobState.PENDING and may_start and room >= job.resources.gpus:
                held[node] += job.resources.gpus
                self.queue[job.job_id] = replace(
                    job, state=JobState.RUNNING, nodes=(node,), started_at=self.now
                )
            elif job.state is JobState.RUNNING and self._ends_at(job) < self.now:
                held[node] -= job.resources.gpus
                del self.queue[job.job_id]

    @staticmethod
    def _ends_at(job: QueuedJob) -> float:
        return (job.started_at or 0.0) + (job.time_limit_s or 0)

    def satellites(self) -> list[tuple[str, int]]:
        return sorted(
            (next(iter(job.nodes or job.required_nodes)), job.satellite.workers)
            for job in self.queue.values()
            if job.satellite is not None
        )


class FakeLeader:
    """A fake leader that carries out orders at once."""

    def __init__(self, cluster: FakeCluster, base: QueuedJob) -> None:
        self.cluster = cluster
        self.key = base.key
        self.owner = base.owner
        self.range = base.elastic.workers
        self.nodes = base.nodes
        self.scalable = True
        self.submits = True
        self.told: list[tuple] = []
        self.batch = 0
        self.speeds: tuple[NodeSpeed, ...] = ()
        self.own: dict[str, int] = {}
        self.signatures: dict[str, bytes] = {}
        self.shape = Resources(1, 1)
        self.says: dict[str, object] = {}
        """Fields of the report that a test overrides."""

    def hear(self, orders) -> None:
        grants, self.batch, self.speeds = orders.grants, orders.batch, orders.speeds
        self.signatures |= {grant.grant_id: grant.signature for grant in grants}
        self.told.append(grants)
        if not self.submits:
            return
        standing = {grant.grant_id for grant in grants}
        for grant_id in self.own.keys() - standing:
            self.cluster.queue.pop(self.own.pop(grant_id), None)
        for grant in grants:
            if grant.grant_id not in self.own:
                self.own[grant.grant_id] = self.cluster.submit(
                    self.key, self.owner, grant.grant_id, grant.node, grant.workers, grant.time_limit_s
                )

    def report(self) -> LeaderReport:
        satellites = tuple(
            SatelliteReport(
                job_id,
                grant_id,
                next(iter(job.nodes or job.required_nodes)),
                job.satellite.workers,
                SatelliteState.PENDING if job.state is JobState.PENDING else SatelliteState.TRAINING,
                self.signatures.get(grant_id, b""),
            )
            for grant_id, job_id in self.own.items()
            if (job := self.cluster.queue.get(job_id)) is not None
        )
        training = self.range.min + sum(
            told.workers for told in satellites if told.state is SatelliteState.TRAINING
        )
        plain = LeaderReport(
            key=self.key,
            owner=self.owner,
            workers=self.range,
            shape=self.shape,
            base_nodes=self.nodes,
            training_workers=training,
            generation=1,
            batches_committed=17,
            scalable=self.scalable,
            satellites=satellites,
        )
        return replace(plain, **self.says)


class FakeLeaders:
    """A fake of the service's LeaderRegistry."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.attached: dict[JobKey, FakeLeader] = {}
        self.failures: list[GrantFailure] = []
        self.slow: list[SlowGpuReport] = []
        self.failed_workers: list[FailedWorkers] = []
        self.asked_to_save: list[tuple[JobKey, str]] = []
        self.saved: list[Saved] = []

    def reports(self):
        return tuple(leader.report() for leader in self.attached.values())

    def take_failures(self):
        failures, self.failures = tuple(self.failures), []
        return failures

    def take_failed_workers(self):
        failed, self.failed_workers = tuple(self.failed_workers), []
        return failed

    def take_slow_gpus(self):
        slow, self.slow = tuple(self.slow), []
        return slow

    def tell(self, key, orders):
        if key in self.attached:
            self.attached[key].hear(orders)

    def save(self, key, path):
        self.asked_to_save.append((key, path))

    def take_saved(self):
        saved, self.saved = tuple(self.saved), []
        return saved


class World:
    """A cluster, its leaders, and a flexod that can be restarted."""

    keep_days = 30.0
    """The value of [event_store] keep_days."""

    def __init__(self, directory, **controller) -> None:
        self.directory = directory
        self.cluster = FakeCluster()
        self.leaders = FakeLeaders()
        rules = {"min_resize_interval_s": 10.0, "time_limit_s": TIME_LIMIT_S} | controller
        self.settings = Settings(controller=ControllerSettings(**rules))
        self.restart()

    def restart(self) -> None:
        self.event_store = EventStore(self.directory / "journal.sqlite", self.keep_days)
        self.controller = self.new_controller()

    def new_controller(self, **more: Any) -> Controller:
        """Make a controller. `more`: further arguments from a subclass."""
        clock = self.cluster.clock
        return Controller(
            self.settings, self.cluster, self.leaders, self.event_store, clock=clock, signer=SIGNER, **more
        )

    def job(self, job_id: int = 1, workers: str = "1-4", node: str = "t1", **changes) -> FakeLeader:
        leader = FakeLeader(self.cluster, self.cluster.base(job_id, workers, node, **changes))
        self.leaders.attached[leader.key] = leader
        return leader

    def rigid(self, job_id: int, gpus: int, node: str = "", **changes) -> None:
        """Add an ordinary job of Bob's: pending, or running on `node`."""
        plain = slurm_job(
            job_id,
            BOB,
            state=JobState.RUNNING if node else JobState.PENDING,
            reason="None" if node else "Resources",
            nodes=(node,) if node else (),
            gpus=gpus,
            cpus=gpus,
            gpus_per_node=gpus,
        )
        self.cluster.add(change_job(plain, **changes))

    def go(self, seconds: float = STEP_S) -> None:
        """Run a cycle every two seconds, and check that no node has more GPUs in use than it has."""
        end = self.cluster.now + seconds
        while self.cluster.now < end:
            self.controller.cycle()
            self.cluster.pass_time(STEP_S)
            for node, gpus in self.cluster.sizes.items():
                assert self.cluster.held(node) <= gpus

    def kinds(self, job_id: int | None = 1) -> list[str]:
        """The kinds of events, without the reasons why jobs wait or have no more."""
        events = reversed(self.event_store.events(job_id, 1000))
        return [event.kind for event in events if event.kind != "wait"]

    def last(self, kind: str) -> str:
        return next(event.text for event in self.event_store.events(None, 1000) if event.kind == kind)

    def fail(self, reason: FailureReason, grant_id: str) -> None:
        leader = self.leaders.attached[KEY]
        self.cluster.queue.pop(leader.own.pop(grant_id, 0), None)
        self.leaders.failures.append(GrantFailure(KEY, grant_id, reason, "as the test says"))
