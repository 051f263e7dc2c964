"""A little Slurm cluster for tests of lending: servers, a queue, two clocks, and a partition that is edited.

`cycle` asks the Lending under test and carries out what comes back, as the controller and Slurm would: edits
take effect at once, satellites that are scaled in are gone after `leaves_after_s`, bases when preempted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flat_records import change_job, make_job, make_node
from slurm_says import job_as_slurm_says, node_as_slurm_says

from flexo.control.clock_watch import ClockWatch
from flexo.loaning.demand import DemandMissing, DemandSource, ReclaimRequest
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingPlan, LendingSettings, View
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim_steps import Saving
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.loans import Demand, Loan
from flexo.model.nodes import Node, NodeCondition, Partition
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo_protos.resources import Resources

RULES = Rules(headroom_servers=1.0, hysteresis_servers=0.0, most_per_interval=8, interval_s=60.0, rest_s=0.0)
GPUS = 4


class Said(DemandSource):
    """A source that says what a test wants."""

    def __init__(self, servers: float | None = 0.0) -> None:
        self.servers = servers
        self.at: float | None = None
        self.calls: tuple[ReclaimRequest, ...] = ()
        self.heeded: list[tuple[str, ...]] = []

    def read(self, now, nodes, jobs) -> Demand:
        if self.servers is None:
            raise DemandMissing("the last push is 300 s old")
        return Demand(now if self.at is None else self.at, self.servers, "the test")

    def reclaim_requests(self, now) -> tuple[ReclaimRequest, ...]:
        return self.calls

    def heed(self, now, loans) -> None:
        there = tuple(loan.node for loan in loans)
        back = set(self.heeded[-1] if self.heeded else ()) - set(there)
        self.heeded.append(there)
        still = [
            replace(call, nodes=tuple(node for node in call.nodes if node not in back))
            if call.nodes
            else replace(call, servers=call.servers - len(back))
            for call in self.calls
        ]
        self.calls = tuple(call for call in still if call.nodes or call.servers > 0)


@dataclass
class World:
    """Six inference servers i1..i6 and two training nodes t1, t2, unless a test says otherwise."""

    settings: LendingSettings = field(default_factory=lambda: LendingSettings(rules=RULES))
    demand: Said = field(default_factory=Said)
    remembered: tuple[Loan, ...] = ()
    dry_run: bool = False

    def __post_init__(self) -> None:
        self.now = 10_000.0
        self.steady = 0.0
        self.servers = {f"i{index}": "T4" for index in range(1, 7)}
        self.unusable: dict[str, str] = {}
        self.conditions: dict[str, frozenset[NodeCondition]] = {}
        """Where `unusable` does not say them."""
        self.missing: set[str] = set()
        """Partitions that somebody has removed."""
        self.elsewhere: set[str] = set()
        """Servers that have been taken out of the inference partition."""
        self.borrowed: frozenset[str] = frozenset()
        self.jobs: dict[int, QueuedJob] = {}
        self.grants: dict[str, Grant] = {}
        self.satellites_apart = bool(self.settings.satellite_partition)
        self.for_satellites: frozenset[str] = frozenset()
        self.edits: list[tuple[float, frozenset[str]]] = []
        self.refuses_edits = False
        self.up = True
        """Whether the borrowed partition starts jobs."""
        self.leaves_after_s = 2.0
        self.gone_at: dict[int, float] = {}
        self.saving = Saving()
        self.forecast = None
        self.plans: list[LendingPlan] = []
        self.empty: set[str] = set()
        """Servers on loan that nothing ran on when the last turn was made."""
        self.restart()

    def restart(self, remembered: tuple[Loan, ...] | None = None) -> None:
        """flexod restarts, with what its event store says: `remembered`, and of hand edits the last plan."""
        self.lending = Lending(
            self.settings,
            self.demand,
            forecast=self.forecast,
            remembered=self.remembered if remembered is None else remembered,
            left_alone=self.plans[-1].left_alone if self.plans else (),
            dry_run=self.dry_run,
        )
        self.clock_watch = ClockWatch(lambda: self.now, lambda: self.steady)

    # What is there.

    def view(self) -> View:
        names = frozenset(self.servers) - self.elsewhere
        nodes = [
            self._node(name, gpu_type, "infer" if name in names else "other")
            for name, gpu_type in self.servers.items()
        ]
        nodes += [self._node(name, "V100", "train") for name in ("t1", "t2")]
        partitions = (
            Partition("infer", 20, names),
            Partition("train", 10, frozenset({"t1", "t2"})),
            Partition("borrowed", 1, self.borrowed, self.up),
            *([Partition("borrowed-flex", 1, self.for_satellites)] if self.satellites_apart else []),
        )
        return View(
            self.now,
            tuple(nodes),
            tuple(partition for partition in partitions if partition.name not in self.missing),
            tuple(self.jobs.values()),
            self._elastic(),
            saving=self.saving,
        )

    def _node(self, name: str, gpu_type: str, partition: str) -> Node:
        held = sum(job.resources.gpus // len(job.nodes) for job in self.jobs.values() if name in job.nodes)
        partitions = {partition} | ({"borrowed"} if name in self.borrowed else set())
        node = make_node(
            name,
            GPUS,
            held,
            2 * GPUS,
            held,
            8000,
            0,
            frozenset(partitions),
            gpu_type,
            unusable=self.unusable.get(name, ""),
            conditions=self.conditions.get(name, frozenset()),
        )
        return node_as_slurm_says(node)

    def _elastic(self) -> tuple[ElasticJob, ...]:
        keys = {grant.job for grant in self.grants.values()}
        return tuple(
            ElasticJob(
                key,
                "ada",
                Range(1, 8),
                Resources(1, 1),
                ("t1",),
                1,
                grants=tuple(grant for grant in self.grants.values() if grant.job == key),
            )
            for key in sorted(keys)
        )

    def _add(self, job_id: int, **changes) -> QueuedJob:
        plain = make_job(
            job_id=job_id,
            owner=Principal("1000"),
            user="ada",
            partitions=("borrowed",),
            state=JobState.RUNNING,
            wait=WaitReason.NONE,
            reason="None",
            priority=1,
            submitted_at=self.now,
            started_at=self.now,
            time_limit_s=None,
            nodes=(),
            num_nodes=1,
            cpus=1,
            gpus=1,
            memory_mib=0,
        )
        self.jobs[job_id] = job_as_slurm_says(change_job(plain, **changes))
        return self.jobs[job_id]

    def satellite(self, job_id: int, node: str, base: int = 1, workers: int = 2) -> None:
        grant_id = f"g{job_id}"
        tag = SatelliteTag(JobKey(base), grant_id, workers)
        self._add(job_id, nodes=(node,), gpus=workers, satellite=tag)
        self.grants[grant_id] = Grant(
            grant_id, JobKey(base), node, workers, "borrowed", self.now, SatelliteState.TRAINING, job_id
        )

    def base(self, job_id: int, *nodes: str) -> None:
        self._add(job_id, nodes=nodes, num_nodes=len(nodes), gpus=2 * len(nodes))

    def inference(self, job_id: int, node: str = "", gpus: int = GPUS) -> None:
        running = bool(node)
        self._add(
            job_id,
            partitions=("infer",),
            state=JobState.RUNNING if running else JobState.PENDING,
            reason="None" if running else "Resources",
            nodes=(node,) if running else (),
            gpus=gpus,
        )

    # What happens.

    def cycle(self, seconds: float = 0.0) -> LendingPlan:
        self.pass_time(seconds)
        if jump := self.clock_watch.jump():
            self.lending.clock_was_set(jump)
        plan = self.lending.cycle(self.view())
        self.plans.append(plan)
        held = {name for job in self.jobs.values() for name in job.nodes}
        self.empty = self.lent - held
        if plan.borrowed is not None:
            self.edits.append((self.now, plan.borrowed))
            if not self.refuses_edits:
                self.borrowed = self.for_satellites = plan.borrowed
        for order in plan.scale_in:
            if order.grant_id in self.grants:
                grant = self.grants[order.grant_id]
                self.grants[order.grant_id] = replace(grant, state=SatelliteState.LEAVING)
                self.gone_at.setdefault(grant.satellite_job_id, self.now + self.leaves_after_s)
            if order.force:
                self.end(order.satellite_job_id)
        for preempt in plan.preempt:
            self.end(preempt.job.job_id)
        return plan

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds
        for job_id, at in list(self.gone_at.items()):
            if at <= self.now:
                self.end(job_id)

    def end(self, job_id: int) -> None:
        self.jobs.pop(job_id, None)
        self.gone_at.pop(job_id, None)
        self.grants.pop(f"g{job_id}", None)

    def cycles(self, seconds: float, step_s: float = 2.0) -> None:
        """Turns every `step_s`, until `seconds` are over."""
        until = self.now + seconds
        while self.now < until:
            self.cycle(min(step_s, until - self.now))

    # What is asked.

    @property
    def lent(self) -> set[str]:
        """Servers on loan, and not called back."""
        return {loan.node for loan in self.plans[-1].loans if not loan.closed}

    @property
    def closed(self) -> set[str]:
        return {loan.node for loan in self.plans[-1].loans if loan.closed}

    def loan(self, node: str) -> Loan:
        return next(loan for loan in self.plans[-1].loans if loan.node == node)

    def events(self, kind: str = "") -> list[str]:
        """The texts of all events so far."""
        return [event.text for plan in self.plans for event in plan.events if kind in ("", event.kind)]

    @property
    def preempted(self) -> list[int]:
        return [order.job.job_id for plan in self.plans for order in plan.preempt]

    @property
    def past(self):
        return {loan.node: loan for plan in self.plans for loan in plan.ended}
