"""Small workloads, policies that do as the test says, and simulations of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement
from flexo_protos.resources import Resources
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.records import JobRecord
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

ONE_GPU = Resources(gpus=1, cpus=1)
NODE = "n1"
"""The one node of `on_one_node`."""


def trace_job(
    number: int, seconds: float = 100.0, workers: str | int = 1, at: float = 0.0, **changes
) -> TraceJob:
    """A job that takes `seconds` with as many workers as it can have."""
    size = Range(workers, workers) if isinstance(workers, int) else Range.parse(workers)
    values = {
        "requested_workers": size.max,
        "shape": ONE_GPU,
        "training": LinearTraining(seconds * size.max),
        "user": "ada",
    }
    return TraceJob(job_id=number, submitted_at=at, workers=size, **(values | changes))


What = Callable[[Jobs, Placement], Sequence[Allocate | Drop]]


@dataclass(frozen=True)
class Doing(Policy):
    """A policy that does what a function says of the jobs and nodes."""

    what: What
    name: ClassVar[str] = "doing"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        return said(self.what(jobs, placement), placement)


def said(words: Sequence[Allocate | Drop], placement: Placement) -> Targets:
    """The targets that put jobs exactly where the words say."""
    targets = tuple(
        Target(word.job, placement.put(word.job, word.shares), word.why, word.samples, word.guaranteed)
        for word in words
        if isinstance(word, Allocate)
    )
    return Targets(targets, drops=tuple(word for word in words if isinstance(word, Drop)))


@dataclass
class Script:
    """What jobs are to have from given instants on: {at: {job: workers}}, on one node. It takes notes."""

    words: Mapping[float, Mapping[int, int]]
    said: set[float] = field(default_factory=set)
    seen: list[Jobs] = field(default_factory=list)

    def __call__(self, jobs: Jobs, placement: Placement) -> list[Allocate]:
        self.seen.append(jobs)
        due = [at for at in self.words if at <= jobs.at and at not in self.said]
        self.said.update(due)
        return [allocate(number, workers) for at in sorted(due) for number, workers in self.words[at].items()]

    def looks(self, number: int) -> list[TrainingJob]:
        """The job in all looks at it."""
        return [job for one in self.seen for job in one.training if job.key.job_id == number]


def allocate(number: int, workers: int, node: str = NODE) -> Allocate:
    return Allocate(JobKey(number), (NodeShare(node, workers),) if workers else (), "the test says so")


def greedy_fifo(jobs: Jobs, placement: Placement) -> list[Allocate]:
    """Start whoever fits with its maximum on one node, in the order of submission."""
    free = {node.name: node.gpus_idle for node in placement.nodes}
    started = []
    for job in jobs.training:
        workers = job.workers.max
        node = next((name for name, gpus in free.items() if gpus >= workers * job.shape.gpus), None)
        if not job.shares and node is not None:
            free[node] -= workers * job.shape.gpus
            started.append(Allocate(job.key, (NodeShare(node, workers),), "it fits"))
    return started


def on_one_node(
    jobs: Sequence[TraceJob],
    what: What = greedy_fifo,
    gpus: int = 8,
    mode: Mode = Mode.ORACLE,
    **scenario,
) -> SimulatedRun:
    """The outcome on one node."""
    place = Scenario((NodeGroup(1, gpus),), estimates=Estimates(mode), **scenario)
    return simulate(Workload("test", tuple(jobs)), Doing(what), place)


def by_number(outcome: SimulatedRun) -> dict[int, JobRecord]:
    return {record.job.job_id: record for record in outcome.records}
