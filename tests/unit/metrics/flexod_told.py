"""A registry as flexod has it, over a controller that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector

from flexo.clusters.base import ClusterState
from flexo.control.views import ControllerStatus, JobView, LoansView, View
from flexo.loaning.lending_cycle import LendingSettings, Reading
from flexo.metrics.counters import Counters
from flexo.metrics.itself import Itself
from flexo.metrics.present import Present
from flexo.model.aggregation import AggregationView, AggregatorView, PooledJobView, UsedAggregator
from flexo.model.elastic import ElasticJob
from flexo.model.loans import Demand, Loan, LoanState
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo.model.sharing import GpuUse
from flexo_protos.resources import Resources

LENDING = LoansView(
    LendingSettings(),
    (Loan("i1", 10.0, "spare"), Loan("i2", 10.0, "spare", LoanState.ESCALATED, 20.0, 200.0, "demand")),
    Reading(30.0, 8, Demand(30.0, 4.25, "partition infer"), 5.0, "inference needs 4.3"),
)
SHARING = JobView(
    ElasticJob(
        *(JobKey(1), "ada", Range(1, 1), Resources(1, 1), ("n1",), 1), gpu_uses=(GpuUse("n1", 0, 0.5),)
    ),
    Principal("1000"),
    True,
    0,
)
POOL = AggregationView(
    (AggregatorView("c1:7000", (JobKey(1), JobKey(2)), 0.4, 3_000_000, 8_000_000, 12.5, 0.001),),
    (PooledJobView(JobKey(1), "shares", "", (UsedAggregator("c1:7000", 1),), 2, 0.19, 0.2),),
    2,
    3,
)


@dataclass
class Told:
    """What the controller and the event store say."""

    state: ClusterState | None = None
    jobs: tuple[JobView, ...] = ()
    loans: LoansView | None = None
    pool: AggregationView | None = None
    events_lost: int = 0
    failures: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.counters = Counters(self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(Itself(lambda: True))
        self.registry.register(Present(self, self))

    def status(self) -> ControllerStatus:
        return ControllerStatus(
            1.0, "lab", "22.05.8", "Slurm", "lyra", False, 5.0, 2.0, 0.1, (), 0, 0, 0, 0, 0, 0
        )

    def view(self) -> View:
        return View(self.state, self.jobs, loans=self.loans, aggregation=self.pool)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)
