"""Two jobs on one simulated GPU, against cases calculated by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_simulations import NODE, by_number, trace_job
from thorough import examples

from flexo.clusters.base import ImpossiblePlan
from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import NodeShare, Quota
from flexo.policies.antman import AntMan
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement
from flexo_simulation.costs import Costs
from flexo_simulation.engine import simulate
from flexo_simulation.pairs import Control, speeds_of
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.seats import GpuSharing
from flexo_simulation.workload import TraceJob, Workload

Given = tuple[int, int, bool]
"""A job's number, its workers on the one node, and whether they sit in second seats."""


@dataclass(frozen=True)
class Seating(Policy):
    """A policy that gives the seats of each instant, as long as the jobs are there."""

    seats: tuple[tuple[float, tuple[Given, ...]], ...]
    name: ClassVar[str] = "seating"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        there = {job.key.job_id: job for job in jobs.training}
        found = []
        for number, workers, second in next(
            seats for at, seats in reversed(self.seats) if at <= jobs.at + 1e-6
        ):
            job = there.get(number)
            if job is not None and (job.allocated, job.shared) != (workers, second):
                placement.put(job.key, (NodeShare(NODE, workers),) if workers else ())
                found.append(Target(job.key, workers, "the test says so", shared=second))
        again = [at for at, _ in self.seats if at > jobs.at + 1e-6]
        return Targets(tuple(found), again_at=again[0] if again else None)


def seated(jobs: Sequence[TraceJob], seats: dict[float, list[Given]], gpus: int = 1, **more) -> SimulatedRun:
    place = Scenario((NodeGroup(1, gpus),), **more)
    words = tuple((at, tuple(each)) for at, each in seats.items())
    return simulate(Workload("test", tuple(jobs)), Seating(words), place)


ESPNET = 1 / (1 + 0.0673 * (1 - 0.483))
"""ESPnet's speed beside ResNet-50."""
RESNET = (1 - 0.483) / 0.908
"""ResNet-50's speed beside ESPnet."""


def test_two_jobs_on_one_gpu_train_at_the_speeds_of_the_pair_until_one_ends():
    jobs = [trace_job(1, 1000.0, model="ESPnet"), trace_job(2, 1000.0, model="ResNet-50")]
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 1, True)]}))
    owner_s = 1000.0 / ESPNET
    assert found[1].ended_at == pytest.approx(owner_s)
    # the other has done a part of its work by then, and has the GPU alone from then on
    assert found[2].ended_at == pytest.approx(owner_s + 1000.0 - owner_s * RESNET)


def test_a_second_job_that_comes_later_slows_the_owner_from_then_on_only():
    jobs = [trace_job(1, 1000.0, model="ESPnet"), trace_job(2, 200.0, at=400.0, model="ResNet-50")]
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 1, True)]}))
    together_s = 200.0 / RESNET
    assert found[2].ended_at == pytest.approx(400.0 + together_s)
    assert found[1].ended_at == pytest.approx(1000.0 + together_s * (1 - ESPNET))


def test_the_record_tells_how_much_longer_the_owners_steps_took():
    jobs = [trace_job(1, 1000.0, model="ESPnet"), trace_job(2, 5000.0, model="ResNet-50")]
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 1, True)]}))
    assert found[1].slowdown == pytest.approx(1 / ESPNET - 1)
    assert found[1].beside_s == pytest.approx(1000.0 / ESPNET)
    assert found[2].slowdown is None


def test_in_a_second_seat_beside_nobody_a_job_is_as_fast_as_alone():
    found = by_number(seated([trace_job(1, 100.0, model="ResNet-50")], {0.0: [(1, 1, True)]}))
    assert found[1].ended_at == pytest.approx(100.0)
    assert found[1].slowdown is None


def test_second_jobs_get_the_gpus_that_are_busy_for_the_least_time():
    """Of three GPUs one has no owner, one is ESPnet's, one ResNet-50's: the second job has the first."""
    jobs = [
        trace_job(number, 1000.0, model=model) for number, model in enumerate(("ESPnet", "Bert", "Bert"), 1)
    ]
    alone = {0.0: [(1, 1, False), (2, 1, False), (3, 1, True)]}
    assert by_number(seated(jobs, alone, gpus=3))[3].ended_at == pytest.approx(1000.0)
    beside = by_number(seated(jobs, alone, gpus=2))
    assert beside[1].slowdown is not None
    assert beside[2].slowdown is None


def test_the_slowest_worker_sets_the_speed_of_a_job():
    jobs = [trace_job(1, 1000.0, model="ESPnet"), trace_job(2, 100.0, 2, model="ResNet-50")]
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 2, True)]}, gpus=2))
    assert found[2].ended_at == pytest.approx(100.0 / RESNET)


def test_from_a_second_seat_to_the_owners_seat_a_job_goes_on_at_once():
    jobs = [trace_job(1, 50.0, model="ESPnet"), trace_job(2, 100.0, model="ResNet-50")]
    ended = 50.0 / ESPNET
    seats = {0.0: [(1, 1, False), (2, 1, True)], 60.0: [(2, 1, False)]}
    record = by_number(seated(jobs, seats, costs=Costs(resize_s=30.0)))[2]
    assert record.ended_at == pytest.approx(ended + 100.0 - ended * RESNET)
    assert (record.resizes, record.preemptions) == (0, 0)


def test_an_owner_that_gives_up_a_gpu_stays_as_fast_as_the_second_job_lets_it():
    """Two second jobs are beside it, then one: the other one is alone."""
    jobs = [
        trace_job(1, 1000.0, "1-2", model="ESPnet"),
        *(trace_job(n, 9000.0, model="Bert") for n in (2, 3)),
    ]
    here = [(2, 1, True), (3, 1, True)]
    seats = {0.0: [(1, 2, False), *here], 100.0: [(1, 1, False), *here]}
    speed = speeds_of(0.483, 0.9, Control.GATED).owner
    found = by_number(seated(jobs, seats, gpus=2))
    assert found[1].ended_at == pytest.approx(100.0 + (2000.0 - 2 * 100.0 * speed) / speed)


def test_a_job_on_several_nodes_shares_if_one_of_them_has_a_second_job():
    class Two(Seating):
        def targets(self, jobs: Jobs, placement: Placement) -> Targets:
            owner, guest = (NodeShare("n1", 1), NodeShare("n2", 1)), (NodeShare("n1", 1),)
            found = [
                Target(
                    job.key,
                    placement.put(job.key, owner if job.key.job_id == 1 else guest),
                    "so",
                    shared=job.key.job_id > 1,
                )
                for job in jobs.waiting()
            ]
            return Targets(tuple(found))

    jobs = [trace_job(1, 1000.0, 2, model="ESPnet"), trace_job(2, 9000.0, model="ResNet-50")]
    outcome = simulate(Workload("test", tuple(jobs)), Two(()), Scenario((NodeGroup(2, 1),)))
    assert by_number(outcome)[1].ended_at == pytest.approx(1000.0 / ESPNET)
    assert by_number(outcome)[1].slowdown == pytest.approx(1 / ESPNET - 1)


def test_packed_jobs_compete():
    jobs = [trace_job(1, 201.0, model="ESPnet"), trace_job(2, 5000.0, model="ResNet-50")]
    sharing = GpuSharing(Control.PACKED)
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 1, True)]}, sharing=sharing))
    assert found[1].ended_at == pytest.approx(1052.0, rel=0.01)


def test_jobs_of_unknown_models_use_their_gpus_as_the_scenario_says():
    jobs = [trace_job(1, 1000.0), trace_job(2, 300.0)]
    found = by_number(seated(jobs, {0.0: [(1, 1, False), (2, 1, True)]}, sharing=GpuSharing(utilization=0.6)))
    assert found[2].ended_at == pytest.approx(300.0 / (0.4 / 0.6))


def test_policies_see_how_busy_a_job_keeps_its_gpus_and_how_fast_it_is_beside_others():
    seen: list[Jobs] = []

    @dataclass(frozen=True)
    class Watching(Seating):
        def targets(self, jobs: Jobs, placement: Placement) -> Targets:
            seen.append(jobs)
            return Seating.targets(self, jobs, placement)

    jobs = [trace_job(1, 1000.0, model="ESPnet"), trace_job(2, 10.0, at=100.0, model="ResNet-50")]
    words = ((0.0, ((1, 1, False), (2, 1, True))), (105.0, ((1, 1, False), (2, 1, True))))
    simulate(Workload("test", tuple(jobs)), Watching(words), Scenario((NodeGroup(1, 1),)))
    paces = {each.at: [(job.pace, job.utilization, job.shared) for job in each.training] for each in seen}
    assert paces[105.0] == [(ESPNET, 0.483, False), (RESNET, 0.908, True)]
    alone = [each.training[0] for each in seen if len(each.training) == 1]
    assert [job.pace for job in alone] == [1.0, 1.0]  # before the other came, and after it


def test_a_node_has_no_more_second_seats_than_gpus():
    jobs = [trace_job(number) for number in (1, 2, 3)]
    with pytest.raises(ImpossiblePlan) as refused:
        seated(jobs, {0.0: [(1, 1, False), (2, 1, True), (3, 1, True)]})
    assert all(word in str(refused.value) for word in (NODE, "1 second seats", "2", "job 3"))


def shared(jobs: Sequence[TraceJob], nodes: int = 1, gpus: int = 2, **settings_of) -> SimulatedRun:
    place = Scenario((NodeGroup(nodes, gpus),), quotas=(Quota("a", nodes * gpus),))
    return simulate(Workload("test", tuple(jobs)), AntMan(share_gpus=True, **settings_of), place)


def test_a_guaranteed_job_starts_beside_an_opportunistic_one_and_preempts_nobody():
    jobs = [
        trace_job(1, 1000.0, 2, tenant="b", model="ResNet-50"),
        trace_job(2, 500.0, 2, at=100.0, tenant="a", model="ESPnet"),
    ]
    found = by_number(shared(jobs))
    together_s = 500.0 / ESPNET
    assert found[2].first_start_at == 100.0
    assert found[2].ended_at == pytest.approx(100.0 + together_s)
    assert found[1].ended_at == pytest.approx(1000.0 + together_s * (1 - RESNET))
    assert found[1].preemptions == 0


def test_a_job_that_waits_for_long_starts_when_its_patience_is_over_although_nothing_happens():
    """Job 1 holds the quota and half of the GPU's time. Job 2 waits for its guarantee, and then no longer."""
    jobs = [trace_job(1, 5000.0, tenant="a", model="GCN"), trace_job(2, 100.0, at=7.0, tenant="a")]
    found = by_number(shared(jobs, gpus=1, patience_s=300.0))
    assert found[2].first_start_at == pytest.approx(307.0)


@dataclass(frozen=True)
class Musical(Policy):
    """Gives jobs either kind of seat at random, and takes them again."""

    seed: int
    name: ClassVar[str] = "musical"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        whim = random.Random(f"{self.seed} {jobs.at} {len(jobs.training)}")
        left = {(node.name, second): node.gpus for node in placement.nodes for second in (False, True)}
        for job in jobs.training:
            for share in job.shares:
                left[share.node, job.shared] -= share.workers
        found: list[Target] = []
        running = sum(1 for job in jobs.training if job.shares)
        for job in jobs.training:
            if running and whim.random() < 0.5:
                continue
            for share in job.shares:
                left[share.node, job.shared] += share.workers
            room = [seats for seats, free in left.items() if free >= job.workers.min]
            shares, second = job.shares, job.shared
            if room:
                name, second = whim.choice(room)
                shares = (NodeShare(name, job.workers.min),)
            for share in shares:
                left[share.node, second] -= share.workers
            if (shares, second) != (job.shares, job.shared):
                running += not job.shares
                found.append(Target(job.key, placement.put(job.key, shares), "a whim", shared=second))
        return Targets(tuple(found))


@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_whoever_sits_where_every_job_does_its_work_and_no_job_is_faster_than_alone(
    seed: int, sizes: list[int]
):
    draw = random.Random(seed)
    models = ("ESPnet", "ResNet-50", "GCN", "")
    jobs = [
        trace_job(number, 100.0, size, at=float(10 * number), model=draw.choice(models))
        for number, size in enumerate(sizes, 1)
    ]
    place = Scenario((NodeGroup(2, 3),))
    outcome = simulate(Workload("test", tuple(jobs)), Musical(seed), place)
    slowest = min(
        min(speeds.owner, speeds.guest)
        for a in (0.097, 0.5, 0.908)
        for b in (0.097, 0.5, 0.908)
        for speeds in [speeds_of(a, b, Control.GATED)]
    )
    for record, size in zip(outcome.records, sizes, strict=True):
        assert record.ended_at is not None
        held_s = record.gpu_s / size
        assert 100.0 - 1e-6 <= held_s <= 100.0 / slowest + 1e-6
        assert 0 <= record.lost_s <= record.beside_s <= held_s + 1e-6
