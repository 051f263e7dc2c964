"""The metrics of the present state, taken from the controller whenever Prometheus asks.

Objects that each cycle makes anew are counted once a cycle, however often Prometheus asks.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from flexo.control.views import ControllerStatus, JobView, LoansView, View
from flexo.model.aggregation import AggregationView, AggregatorView
from flexo.model.elastic import SatelliteState
from flexo.model.loans import LoanState
from flexo.model.nodes import Node
from flexo.model.queue import JobState
from flexo.model.sharing import GpuUse
from flexo.sharing.pairs import Pair
from flexo_protos.resources import Amount, total

_JOB_STATES: Final = (
    "pending",
    "suspended",
    "no leader",
    "starting",
    "errand",
    "paused",
    "resizing",
    "training",
)


class Watched(Protocol):
    """The metrics' interface to `flexo.controller.Controller`."""

    def status(self) -> ControllerStatus:
        """The state of the loop, and of the cluster as of the last poll."""
        ...

    def view(self) -> View:
        """The view of the last cycle as a whole."""
        ...


class Losing(Protocol):
    """The metrics' interface to `flexo.event_store.EventStore`."""

    @property
    def events_lost(self) -> int:
        """The number of events that could not be written."""
        ...

    @property
    def failures(self) -> int:
        """The number of times that the disk refused."""
        ...


class Present(Collector):
    """The gauges of the present state. Usable from any thread."""

    def __init__(self, controller: Watched, event_store: Losing) -> None:
        self._controller = controller
        self._event_store = event_store
        self._last: tuple[weakref.ref[View], tuple[Metric, ...]] | None = None
        """The last counts and, as a weak reference, their view: no view of thousands of nodes is kept for
        this."""

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now."""
        yield from _daemon(self._controller.status())
        yield from _event_store(self._event_store)
        yield from self._of(self._controller.view())

    def _of(self, view: View) -> tuple[Metric, ...]:
        last = self._last
        if last is not None and last[0]() is view:
            return last[1]
        loans = () if view.loans is None else _loans(view.loans)
        pool = () if view.aggregation is None else _aggregation(view.aggregation)
        families = (*_cluster(view), *_jobs(view), *_shared_gpus(view.pairs), *loans, *pool)
        self._last = weakref.ref(view), families
        return families


def _daemon(status: ControllerStatus) -> Iterator[Metric]:
    seen = {"cluster": status.cluster, "slurm_version": status.version}
    yield InfoMetricFamily("flexo_cluster", "Which cluster it looks after; empty while that is away.", seen)
    rules = {"policy": status.policy, "dry_run": str(status.dry_run).lower()}
    yield InfoMetricFamily("flexo_policy", "How it shares idle GPUs, and whether it changes anything.", rules)
    yield _gauge(
        "flexo_last_cycle_time_seconds",
        "When it last saw the cluster, since the epoch; 0: not yet.",
        status.last_cycle_at,
    )
    yield _gauge("flexo_cycle_interval_seconds", "From one turn of the loop to the next.", status.interval_s)
    yield _gauge("flexo_last_read_seconds", "What the last look at the cluster took.", status.read_cost_s)
    wrong = bool(status.troubles or status.needs_restart)
    yield _gauge("flexo_trouble", "1 while flexo status names a trouble, or what needs a restart.", wrong)
    yield _gauge("flexo_leaders_attached", "Leaders of jobs that are connected.", status.leaders)
    yield _gauge("flexo_slow_gpus", "Slow GPUs whose nodes get no satellites.", len(status.slow_gpus))


def _event_store(event_store: Losing) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "flexo_journal_write_failures", "How often the disk refused the event store.", event_store.failures
    )
    yield CounterMetricFamily(
        "flexo_journal_events_lost",
        "Events that could not be written to the event store.",
        event_store.events_lost,
    )


def _cluster(view: View) -> Iterator[Metric]:
    nodes = view.state.nodes if view.state else ()
    yield _by(
        "flexo_nodes",
        "The cluster's nodes, by what is to be had there: GPUs, no GPU, or nothing may be placed there.",
        dict.fromkeys(("idle", "full", "unusable"), 0) | Counter(map(_node_state, nodes)),
    )
    yield _by("flexo_gpus", "GPUs of the cluster, by who holds them.", _gpus(nodes, view.gpus_in_satellites))
    queue: Counter[str] = Counter(job.state.value.lower() for job in (view.state.jobs if view.state else ()))
    states = {each.value.lower(): 0 for each in JobState}
    yield _by("flexo_slurm_jobs", "Jobs in Slurm's queue, satellites among them.", states | queue)


def _node_state(node: Node) -> str:
    if node.unusable:
        return "unusable"
    return "idle" if node.gpus_idle else "full"


def _gpus(nodes: Sequence[Node], in_satellites: Amount) -> Mapping[str, float]:
    """The GPUs by holder. GPUs in use count as in use on unusable nodes, too."""
    used = float(total(node.allocated.gpus for node in nodes))
    idle = float(total(node.gpus_idle for node in nodes))
    satellites = min(used, float(in_satellites))
    return {
        "idle": idle,
        "satellites": satellites,
        "other jobs": used - satellites,
        "unusable": float(total(node.gpus for node in nodes)) - used - idle,
    }


def _jobs(view: View) -> Iterator[Metric]:
    queue = view.state.jobs if view.state else ()
    pending = sum(job.elastic is not None and job.state is JobState.PENDING for job in queue)
    states = Counter(_job_state(shown, view) for shown in view.jobs)
    yield _by(
        "flexo_jobs",
        "Elastic jobs, by what they do.",
        dict.fromkeys(_JOB_STATES, 0) | states | {"pending": pending},
    )
    jobs = [shown.job for shown in view.jobs]
    yield _gauge(
        "flexo_workers_training",
        "Workers that train, as leaders say.",
        sum(job.training_workers for job in jobs),
    )
    yield _gauge(
        "flexo_workers_granted",
        "Workers that jobs may have now: bases and grants.",
        sum(job.granted_workers for job in jobs),
    )
    yield _gauge("flexo_workers_base", "Workers of bases.", sum(job.base_workers for job in jobs))
    yield _gauge(
        "flexo_workers_most",
        "Workers that jobs could have at most, by their ranges and caps.",
        sum(job.ceiling for job in jobs),
    )
    grants = Counter(grant.state.value for job in jobs for grant in job.all_grants)
    yield _by(
        "flexo_satellites",
        "Satellites, by where they are on their way to training and back.",
        {each.value: 0 for each in SatelliteState} | grants,
    )


def _shared_gpus(pairs: Sequence[Pair]) -> Iterator[Metric]:
    """Three gauges for each GPU that two jobs may use, with the jobs as labels."""
    gauges: tuple[tuple[str, str, Callable[[GpuUse], float]], ...] = (
        ("utilization", "Part of the time in which its holder keeps a shared GPU busy.", _utilization),
        ("slowdown", "How much longer the steps of a shared GPU's holder take; 0: no longer.", _slowdown),
        ("guest_time", "Part of the time in which the opportunistic job works on a shared GPU.", _guest_time),
    )
    for name, text, value in gauges:
        family = GaugeMetricFamily(f"flexo_shared_gpu_{name}", text, labels=("node", "gpu", "job", "guest"))
        for pair in pairs:
            guest = str(pair.guest.job_id) if pair.guest else ""
            where = (pair.use.node, str(pair.use.gpu), str(pair.holder.job_id), guest)
            family.add_metric(where, value(pair.use))
        yield family


def _utilization(use: GpuUse) -> float:
    return use.utilization


def _slowdown(use: GpuUse) -> float:
    return use.slowdown


def _guest_time(use: GpuUse) -> float:
    return use.opportunistic_share


def _job_state(shown: JobView, view: View) -> str:
    """The state, as commands and pages show it (flexo_cli/job_words.py)."""
    job = shown.job
    if job.suspended:
        return "suspended"
    if not shown.attached:
        return "starting" if view.state and shown.begins(view.state.at) else "no leader"
    if job.pending_command:
        return "errand"
    if job.paused:
        return "paused"
    if not job.scalable:
        return "starting"
    return "resizing" if any(grant.moving for grant in job.grants) else "training"


def _loans(view: LoansView) -> Iterator[Metric]:
    reading = view.reading
    states = Counter(loan.state.value for loan in view.loans)
    yield _by(
        "flexo_loans",
        "Servers of the inference cluster on loan, by where they are on their way back.",
        {each.value: 0 for each in LoanState} | states,
    )
    yield _gauge(
        "flexo_inference_servers", "Usable servers of the inference cluster, on loan or not.", reading.size
    )
    yield _gauge(
        "flexo_inference_demand_servers",
        "Servers that inference needs now; absent while that is not known.",
        None if reading.demand is None else reading.demand.servers,
    )
    yield _gauge(
        "flexo_inference_peak_servers",
        "The most that is expected until what is lent could be back; absent while that is not known.",
        reading.peak,
    )
    yield _gauge(
        "flexo_lending_trouble", "1 while a trouble keeps servers from being lent.", bool(reading.trouble)
    )


def _aggregation(view: AggregationView) -> Iterator[Metric]:
    yield _gauge("flexo_pool_aggregators", "Attached pool Aggregators.", len(view.aggregators))
    yield _gauge("flexo_pool_aggregators_wanted", "Pool Aggregators that all jobs need.", view.wanted)
    gauges: tuple[tuple[str, str, Callable[[AggregatorView], float]], ...] = (
        ("jobs", "Jobs that are assigned to a pool Aggregator.", lambda each: len(each.jobs)),
        (
            "use",
            "Part of the time that a pool Aggregator works, by profiles.",
            lambda each: each.planned_use,
        ),
        ("buffer_bytes", "Buffers that the jobs of a pool Aggregator need.", lambda each: each.memory),
    )
    for name, text, value in gauges:
        family = GaugeMetricFamily(f"flexo_pool_aggregator_{name}", text, labels=("aggregator",))
        for each in view.aggregators:
            family.add_metric((each.name,), value(each))
        yield family
    spent = CounterMetricFamily(
        "flexo_pool_aggregator_cpu_seconds", "CPU time of a pool Aggregator.", labels=("aggregator",)
    )
    for each in view.aggregators:
        spent.add_metric((each.name,), each.cpu_s)
    yield spent
    loss = GaugeMetricFamily(
        "flexo_pool_job_loss", "Part of its speed that a job loses by sharing.", labels=("job",)
    )
    for job in view.jobs:
        loss.add_metric((str(job.job.job_id),), job.loss)
    yield loss
    yield CounterMetricFamily(
        "flexo_pool_reverts", "Changes that were undone because a job lost too much.", view.reverts
    )


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """A gauge of one value; None: the family without a value."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric((), value)
    return family


def _by(name: str, text: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    """A gauge of values by state, which add up to all that there are."""
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, value in counts.items():
        family.add_metric([state], value)
    return family
