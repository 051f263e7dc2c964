"""Whatever a policy does, no work is lost or made, and no GPU is held twice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_simulations import said, trace_job
from thorough import examples

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.plans import Allocate
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.placement import Placement
from flexo_simulation.costs import Costs
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.records import End, Held, JobRecord
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

NODES, GPUS = 3, 4


@dataclass(frozen=True)
class Whimsical(Policy):
    """Moves, resizes, preempts and starts at random, but starts somebody where nobody runs."""

    seed: int
    name: ClassVar[str] = "whimsical"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        whim = random.Random(f"{self.seed} {jobs.at} {len(jobs.training)}")
        free = {node.name: node.gpus for node in placement.nodes}
        for job in jobs.training:
            for share in job.shares:
                free[share.node] -= share.workers
        allocations: list[Allocate] = []
        running = sum(1 for job in jobs.training if job.shares)
        for job in jobs.training:
            if whim.random() < 0.4 or not running:
                shares = _anywhere(job, free, whim, preempts=running > 1)
                running += bool(shares) - bool(job.shares)
                if shares != job.shares:
                    allocations.append(Allocate(job.key, shares, "a whim"))
        return said(allocations, placement)


def _anywhere(
    job: TrainingJob, free: dict[str, int], whim: random.Random, preempts: bool
) -> tuple[NodeShare, ...]:
    """Other shares for the job, or none, in what is free and what it has; `free` is what is left."""
    for share in job.shares:
        free[share.node] += share.workers
    wanted = whim.randint(job.workers.min, job.workers.max)
    if job.shares and preempts and whim.random() < 0.3:
        return ()
    shares = []
    for name in whim.sample(sorted(free), len(free)):
        workers = min(wanted, free[name])
        if workers:
            shares.append(NodeShare(name, workers))
            wanted -= workers
    if sum(share.workers for share in shares) < job.workers.min:
        shares = list(job.shares)
    for share in shares:
        free[share.node] -= share.workers
    return tuple(shares)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    def one(number: int, at: float) -> TraceJob:
        low = draw(st.integers(1, 6))
        size = f"{low}-{draw(st.integers(low, 12))}"
        seconds = draw(st.floats(0.0, 500.0).filter(lambda value: value == 0 or value > 1e-3))
        return trace_job(number, seconds, size, at=at, user=draw(st.sampled_from("ab")))

    times = sorted(draw(st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=12)))
    return Workload("random", tuple(one(number, at) for number, at in enumerate(times, 1)))


costs = st.builds(Costs, start_s=st.sampled_from([0.0, 30.0]), resize_s=st.sampled_from([0.0, 7.0]))
places = st.builds(
    Scenario,
    nodes=st.just((NodeGroup(NODES, GPUS),)),
    costs=costs,
    interval_s=st.sampled_from([None, 60.0]),
    estimates=st.builds(Estimates, mode=st.sampled_from(Mode)),
)


def trained(record: JobRecord, costs: Costs) -> float:
    """Worker seconds of undisturbed training, from what the record says that it held, and when."""
    assert record.ended_at is not None
    untils = [held.at for held in record.timeline[1:]] + [record.ended_at]
    total, before = 0.0, 0
    for held, until in zip(record.timeline, untils, strict=True):
        cost = costs.resize_s if before else costs.start_s
        total += held.workers * max(0.0, until - held.at - cost)
        before = held.workers
    return total


@given(workload=workloads(), place=places, seed=st.integers(0, 1000))
@settings(max_examples=examples(150), deadline=None)
def test_every_job_does_exactly_its_work_and_no_gpu_is_held_twice(workload, place, seed):
    outcome = simulate(workload, Whimsical(seed), place)
    for record in outcome.records:
        assert record.end is End.FINISHED
        work = record.job.training.work
        assert trained(record, place.costs) == pytest.approx(work, rel=1e-6, abs=1e-3)
        assert record.gpu_s == pytest.approx(_held_gpu_s(record), rel=1e-9, abs=1e-6)
        assert record.first_start_at >= record.job.submitted_at
        assert all(held.workers == 0 or held.workers in _sizes(record.job) for held in record.timeline)
    assert _most_held(outcome.records) <= NODES * GPUS
    assert simulate(workload, Whimsical(seed), place).records == outcome.records


def _sizes(job: TraceJob) -> range:
    return range(job.workers.min, job.workers.max + 1)


def _held_gpu_s(record: JobRecord) -> float:
    untils = [held.at for held in record.timeline[1:]] + [record.ended_at]
    return sum(held.workers * (until - held.at) for held, until in zip(record.timeline, untils, strict=True))


def _most_held(records: tuple[JobRecord, ...]) -> int:
    changes: list[tuple[float, int]] = []
    for record in records:
        before = 0
        for held in (*record.timeline, Held(record.ended_at, 0, 0)):
            changes.append((held.at, held.workers - before))
            before = held.workers
    now, most = 0, 0
    for _, change in sorted(changes):  # at one instant, what is given up comes first
        now += change
        most = max(most, now)
    return most
