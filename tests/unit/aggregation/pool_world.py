"""A pool and its jobs for tests of pMaster: jobs follow their assignments, iterate, and use CPU time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from flexo.aggregation.master import PoolDecisions, PoolEvent, PoolMaster
from flexo.aggregation.pooled_job import PoolClient
from flexo.aggregation.settings import AggregationSettings
from flexo.model.aggregation import AggregationUse, JobSums, PoolAggregator, UsedAggregator
from flexo.model.queue import JobKey

MB = 1_000_000
GB = 1_000 * MB


@dataclass
class Trainer:
    """A job. `alone_s`: its iteration where nobody disturbs it. `cpu_s`: of its sums, in one iteration."""

    number: int
    user: str = "ada"
    account: str = ""
    alone_s: float = 0.2
    cpu_s: float = 0.04
    size: int = 20 * MB
    nodes: int = 2
    reserves: int = 2
    wants_pool: bool = True
    attached: bool = True
    obeys: bool = True
    """Whether it takes assignments over."""
    greedy_cpu_s: float = 0.0
    """CPU time beyond `cpu_s`, from the time on when it shares with others."""
    link_s: float = 0.0
    """The time that its sums take more on a pool's Aggregator, whose link is slow."""
    version: int = 0
    used: tuple[UsedAggregator, ...] = ()
    iterations: float = 0.0
    warm_up_s: int = 0
    """The time after an assignment in which its iterations take four times as long."""
    takes_s: int = 0
    """The time until it takes an assignment over."""
    now_s: float = 0.0
    measured: list[float] = field(default_factory=list)
    """The duration of an iteration in each tick since the last assignment."""
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> JobKey:
        return JobKey(self.number)

    @property
    def median_s(self) -> float:
        """The duration as its leader reports it: the median of the latest 40 iterations."""
        made, ticks = 0.0, len(self.measured)
        while ticks and made < 40:
            ticks -= 1
            made += 1.0 / self.measured[ticks]
        return statistics.median(self.measured[ticks:]) if self.measured else 0.0

    def client(self) -> PoolClient:
        use = AggregationUse(
            self.wants_pool,
            self.size,
            self.median_s,
            self.nodes,
            self.version,
            int(self.iterations),
            self.reserves,
            self.used,
        )
        return PoolClient(self.key, self.user, self.account, use, self.nodes)


class PoolWorld:
    """Ticks of one second. An Aggregator with more work than time slows all of its jobs down."""

    def __init__(self, aggregators: int = 0, **settings: object) -> None:
        self.settings = AggregationSettings(**{"enabled": True, **settings})  # type: ignore[arg-type]
        self.now = 1_000.0
        self.master = PoolMaster(self.settings, self.now)
        self.jobs: dict[int, Trainer] = {}
        self.pool: dict[str, PoolAggregator] = {}
        self.drained: list[str] = []
        self.others: dict[str, int] = {}
        """Per Aggregator whose link is measured: the bytes a second that other programs send there."""
        self._sent: dict[str, tuple[float, float]] = {}
        self.strangers: tuple[JobSums, ...] = ()
        self.events: list[PoolEvent] = []
        self.decided = PoolDecisions()
        self.added = 0
        self._told_at: dict[tuple[int, int], float] = {}
        for _ in range(aggregators):
            self.add_aggregator()

    def add_aggregator(self, memory: int = 64 * GB, network: int = 10 * GB) -> str:
        self.added += 1
        each = PoolAggregator(f"c{self.added}", 7000, memory, network, bytes([self.added]) * 32)
        self.pool[each.name] = each
        return each.name

    def add(self, number: int, **said: object) -> Trainer:
        self.jobs[number] = Trainer(number, **said)  # type: ignore[arg-type]
        return self.jobs[number]

    def restart_flexod(self) -> None:
        self.master = PoolMaster(self.settings, self.now)

    def run(self, seconds: int) -> list[PoolEvent]:
        """Let time pass. Returns the events of this time."""
        first = len(self.events)
        for _ in range(seconds):
            self.tick()
        return self.events[first:]

    def tick(self) -> PoolDecisions:
        self.now += 1.0
        for job in self.jobs.values():
            self._train(job)
        for name, each in self.pool.items():
            jobs = tuple(
                JobSums(str(job.key), job.size, int(job.iterations), job.spent.get(name, 0.0), 0.0)
                for job in self.jobs.values()
                if any(used.name == name for used in job.used)
            )
            self.pool[name] = replace(each, jobs=(*jobs, *self.strangers), **self._traffic(name))
        clients = [job.client() for job in self.jobs.values() if job.attached]
        running = [job.key for job in self.jobs.values()]
        self.decided = self.master.tick(self.now, self.pool.values(), clients, running)
        self.events += self.decided.events
        self.drained += self.decided.drains
        self._check_moves()
        self._follow()
        return self.decided

    def _traffic(self, name: str) -> dict[str, int]:
        """The byte counts of an Aggregator's status: all that its interface has sent, and its jobs' part."""
        if name not in self.others:
            return {}
        own, everybody = self._sent.get(name, (0.0, 0.0))
        own += (now := self.needs(name) / self.slowdown(name))
        everybody += now + self.others[name]
        self._sent[name] = own, everybody
        return {"interface_sent": int(everybody), "interface_received": int(own) + 1, "moved": 2 * int(own)}

    def needs(self, name: str) -> float:
        """Bytes a second that the jobs of an Aggregator would push there."""
        return sum(
            job.nodes * job.size * used.share / sum(each.share for each in job.used) / job.alone_s
            for job in self.jobs.values()
            for used in job.used
            if used.name == name
        )

    def slowdown(self, name: str) -> float:
        """How many times longer the pushes to an Aggregator take, because others use its link."""
        left = max(1.0, self.pool[name].network - self.others.get(name, 0)) if name in self.pool else 1e18
        return max(1.0, self.needs(name) / left)

    def load(self, name: str) -> float:
        """The part of its time that an Aggregator would need."""
        return sum(
            self._cpu(job) * used.share / sum(each.share for each in job.used) / job.alone_s
            for job in self.jobs.values()
            for used in job.used
            if used.name == name
        )

    def aggregators_in_use(self) -> set[str]:
        return {used.name for job in self.jobs.values() for used in job.used}

    def _cpu(self, job: Trainer) -> float:
        names = {used.name for used in job.used}
        shares = any(
            used.name in names for other in self.jobs.values() if other is not job for used in other.used
        )
        return job.cpu_s + (job.greedy_cpu_s if shares else 0.0)

    def _train(self, job: Trainer) -> None:
        slowed = max((max(self.load(used.name), self.slowdown(used.name)) for used in job.used), default=0.0)
        slowed = max(1.0, slowed) * (4 if len(job.measured) < job.warm_up_s else 1)
        job.now_s = job.alone_s * slowed + (job.link_s if job.used else 0.0)
        job.measured.append(job.now_s)
        done = 1.0 / job.now_s
        job.iterations += done
        total = sum(used.share for used in job.used)
        for used in job.used:
            job.spent[used.name] = job.spent.get(used.name, 0.0) + done * self._cpu(job) * used.share / total

    def _check_moves(self) -> None:
        """A job that is moved for the sake of fewer Aggregators has stayed long enough."""
        for event in self.decided.events:
            if "fewer Aggregators" in event.text and event.job is not None:
                stayed = self.jobs[event.job.job_id].iterations
                assert stayed >= self.settings.undo_iterations, f"{event.job} moves after {stayed} iterations"

    def _follow(self) -> None:
        for each in self.decided.assignments:
            job = self.jobs[each.job.job_id]
            if each.version == job.version or not job.obeys:
                continue
            told_at = self._told_at.setdefault((job.number, each.version), self.now)
            if self.now >= told_at + job.takes_s:
                job.version, job.used, job.iterations, job.measured = each.version, each.shares, 0.0, []
