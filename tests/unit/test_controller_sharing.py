"""Opportunistic jobs under the controller: on shared GPUs, on GPUs of their own, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from controller_world import BOB, slurm_job
from flat_records import change_job
from shared_gpus_world import SharingWorld

from flexo.control.shared_gpus import ASKED_AT_ONCE
from flexo.metrics.present import Present
from flexo.model.queue import JobState, SatelliteTag
from flexo.model.sharing import GpuUse, shared_gpu


@pytest.fixture
def world(tmp_path) -> Iterator[SharingWorld]:
    yield SharingWorld(tmp_path)
    assert not list(tmp_path.glob("*.damaged*")), "flexod took its own event store for a damaged one"


def full(world: SharingWorld) -> None:
    """All GPUs are held by jobs that share them; t1 is busier."""
    for job_id, node, gpu, busy in (
        (1, "t1", 0, 0.8),
        (2, "t1", 1, 0.7),
        (3, "t2", 0, 0.3),
        (4, "t2", 1, 0.5),
    ):
        world.host(job_id, node, gpu, busy)


def test_an_opportunistic_job_goes_to_the_least_busy_shared_gpus(world):
    full(world)
    world.opportunist(10, "2-2")
    world.go(10)
    assert world.used_by(10) == {("t2", 0): 1, ("t2", 1): 1}


def test_a_satellite_on_shared_gpus_starts_only_after_flexod_has_released_it(world):
    full(world)
    leader = world.opportunist(10, "1-1")
    world.controller.cycle()
    (satellite,) = leader.own.values()
    world.cluster.pass_time(2.0)
    assert world.cluster.queue[satellite].state is JobState.PENDING
    world.go(4)
    assert world.cluster.released == [satellite]
    assert world.cluster.queue[satellite].state is JobState.RUNNING


def test_a_forged_satellite_stays_held(world):
    full(world)
    leader = world.opportunist(10, "1-1")
    forged = slurm_job(
        99,
        partitions=("shared",),
        state=JobState.PENDING,
        reason="JobHeldAdmin",
        required_nodes=frozenset({"t1"}),
        gpus=0,
        devices=(shared_gpu(0),),
        time_limit_s=300,
        started_at=None,
        satellite=SatelliteTag(leader.key, "g00000000", 1),
    )
    world.cluster.add(forged)
    world.go(10)
    assert 99 not in world.cluster.released


def test_a_satellite_that_asks_for_another_gpu_than_the_granted_one_stays_held(world):
    full(world)
    leader = world.opportunist(10, "1-1")
    world.controller.cycle()
    (satellite,) = leader.own.values()
    job = world.cluster.queue[satellite]
    world.cluster.queue[satellite] = change_job(job, devices=(shared_gpu(1),))
    world.go(6)
    assert world.cluster.released == []


def test_satellites_that_are_several_jobs_in_one_record_stay_held(world):
    full(world)
    leader = world.opportunist(10, "1-1")
    world.controller.cycle()
    (satellite,) = leader.own.values()
    world.cluster.queue[satellite] = replace(world.cluster.queue[satellite], is_whole=False)
    world.go(10)
    assert satellite not in world.cluster.released


def test_nothing_is_granted_before_the_leader_is_there(world):
    full(world)
    leader = world.opportunist(10, "1-1")
    del world.leaders.attached[leader.key]
    world.go(10)
    assert "grow" not in world.kinds(10)
    world.leaders.attached[leader.key] = leader
    world.go(10)
    assert world.used_by(10) == {("t2", 0): 1}


def test_one_gpu_serves_one_opportunistic_job(world):
    world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    for job_id in (10, 11, 12):
        world.opportunist(job_id, "1-1", submitted_at=900.0 + job_id)
    world.go(20)
    assert world.used_by(10) == {("t1", 0): 1}
    assert not world.used_by(11)
    assert not world.used_by(12)
    world.end(10)
    for grant in [job_id for job_id, job in world.cluster.queue.items() if job.satellite]:
        del world.cluster.queue[grant]
    world.go(20)
    assert world.used_by(11) == {("t1", 0): 1}


def test_a_job_that_did_not_agree_is_left_alone(world):
    world.host(1, "t1", 0, cohost=False)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    assert not world.used_by(10)


@pytest.mark.parametrize("across", [False, True])
def test_jobs_of_other_accounts_share_only_where_the_site_says_so(tmp_path, across):
    world = SharingWorld(tmp_path, {"across_accounts": across})
    world.host(1, "t1", 0, account="biology", owner=BOB)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    assert bool(world.used_by(10)) is across


def test_what_a_leader_says_of_a_gpu_that_its_job_does_not_hold_is_worth_nothing(world):
    leader = world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    leader.says["gpu_uses"] = (GpuUse("t2", 1, 0.1, steady=True),)
    world.opportunist(10, "1-1")
    world.go(10)
    assert not world.used_by(10)


def test_indices_that_do_not_agree_with_the_jobs_record_are_worth_nothing(world):
    world.host(1, "t1", 0)
    world.cluster.indices[1] = frozenset({("t1", 0), ("t1", 1)})  # as a forged name of the job has it
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    assert not world.used_by(10)


def test_jobs_whose_indices_do_not_agree_cost_few_commands(world):
    world.cluster.sizes = {f"t{number}": 2 for number in range(1, 31)}
    for number in range(1, 31):
        world.host(number, f"t{number}", 0)
        world.cluster.indices[number] = frozenset({(f"t{number}", 0), (f"t{number}", 1)})
    world.opportunist(100, "1-1")
    asked = []
    for _ in range(10):
        world.controller.cycle()
        asked.append(len(world.cluster.asked))
        world.cluster.pass_time(2.0)
    assert asked[:3] == [ASKED_AT_ONCE, 2 * ASKED_AT_ONCE, 30]
    assert asked[-1] == 30
    world.cluster.indices[1] = frozenset({("t1", 0)})
    for _ in range(2):
        world.cluster.pass_time(300.0)
        for _ in range(5):
            world.controller.cycle()
    assert Counter(world.cluster.asked) == {str(number): 3 for number in range(2, 31)} | {"1": 2}


def test_nobody_comes_before_the_guarantee_job_is_steady(world):
    leader = world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    leader.says["gpu_uses"] = (GpuUse("t1", 0, 0.5, steady=False),)
    world.opportunist(10, "1-1")
    world.go(10)
    assert not world.used_by(10)
    leader.says["gpu_uses"] = (GpuUse("t1", 0, 0.5, steady=True),)
    world.go(6)
    assert world.used_by(10) == {("t1", 0): 1}


def test_the_minimum_comes_at_once_or_not_at_all(world):
    world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "2-4")
    world.go(20)
    assert not world.used_by(10)
    assert "needs 1 more" in world.why(10)


def test_the_satellite_leaves_when_the_guarantee_job_has_ended(world):
    world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    world.end(1)
    world.rigid(7, 1, "t1")
    world.go(6)
    assert not world.used_by(10)


def test_a_job_moves_to_gpus_of_its_own_when_all_of_its_workers_fit(world):
    full(world)
    world.opportunist(10, "2-2")
    world.go(10)
    assert ("t2", 0) in world.used_by(10)
    world.end(1)
    world.go(20)
    assert ("t2", 0) in world.used_by(10)  # one idle GPU is not enough
    world.end(2)
    world.go(20)
    assert world.used_by(10) == {("t1", None): 2}
    assert "of its own" in world.why(10)


def test_without_auto_shared_gpus_come_first(world):
    world.host(1, "t1", 0)
    world.opportunist(10, "1-1")
    world.controller.cycle()
    assert next(iter(world.leaders.attached[(10, 0)].own))
    (grant,) = world.leaders.attached[(10, 0)].told[-1]
    assert grant.shared_gpus == (shared_gpu(0),)


def test_with_auto_gpus_of_its_own_come_first_and_shared_ones_after_the_wait(tmp_path):
    world = SharingWorld(tmp_path, {"wait_s": 30.0})
    full(world)
    world.opportunist(10, "1-1", auto=True)
    world.go(20)
    assert not world.used_by(10)
    assert "more for GPUs of its own" in world.why(10)
    world.go(20)
    assert world.used_by(10) == {("t2", 0): 1}


def test_with_auto_idle_gpus_are_used_at_once(world):
    world.host(1, "t1", 0)
    world.opportunist(10, "1-1", auto=True)
    world.go(10)
    assert list(world.used_by(10).values()) == [1]
    assert ("t1", 0) not in world.used_by(10)


def test_grants_on_shared_gpus_outlive_flexod(world):
    full(world)
    world.opportunist(10, "1-1")
    world.go(10)
    before = world.used_by(10)
    world.restart()
    world.go(20)
    assert world.used_by(10) == before
    assert world.cluster.cancelled == []


def test_too_few_satellites_are_given_back_after_a_while(tmp_path):
    world = SharingWorld(tmp_path, {"wait_s": 10.0})
    full(world)
    world.opportunist(10, "2-2")
    world.go(10)
    world.end(3)
    world.rigid(7, 1, "t2")
    world.host(8, "t2", 0, cohost=False)
    del world.cluster.queue[8], world.leaders.attached[(8, 0)]
    for job_id in (1, 2):
        world.leaders.attached[(job_id, 0)].says["gpu_uses"] = ()
    world.go(40)
    assert not world.used_by(10)


def test_a_cohosting_job_that_grows_to_two_workers_shares_no_more(world):
    leader = world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    assert world.used_by(10)
    base = world.cluster.queue[1]
    world.cluster.queue[1] = replace(
        base, elastic=replace(base.elastic, workers=type(base.elastic.workers)(2, 2))
    )
    assert leader
    world.go(6)
    assert not world.used_by(10)


def test_without_auto_idle_gpus_are_used_where_none_can_be_shared(world):
    world.rigid(5, 1, "t1")
    world.opportunist(10, "2-2")
    world.go(10)
    assert world.used_by(10) == {("t2", None): 2}


def test_why_and_metrics_name_both_jobs_of_a_gpu_and_what_the_sharing_costs(world):
    leader = world.host(1, "t1", 0)
    world.rigid(5, 1, "t1")
    world.rigid(6, 2, "t2")
    world.opportunist(10, "1-1")
    world.go(10)
    leader.says["gpu_uses"] = (GpuUse("t1", 0, 0.5, slowdown=0.01, opportunistic_share=0.4, steady=True),)
    world.go(4)
    for job_id, other in ((1, "job 10"), (10, "job 1 ")):
        assert other in world.why(job_id)
        assert all(figure in world.why(job_id) for figure in ("50%", "40%", "1.0%", "GPU 0 of t1"))
    gauges = {
        sample.name: (sample.labels, sample.value)
        for family in Present(world.controller, world.event_store).collect()
        for sample in family.samples
        if sample.name.startswith("flexo_shared_gpu")
    }
    labels = {"node": "t1", "gpu": "0", "job": "1", "guest": "10"}
    assert gauges == {
        "flexo_shared_gpu_utilization": (labels, 0.5),
        "flexo_shared_gpu_slowdown": (labels, 0.01),
        "flexo_shared_gpu_guest_time": (labels, 0.4),
    }
