"""The default policy where little is known of jobs: plain cases in which nobody may be worse off."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from controller_world import World

from flexo.model.measured import RunningTime
from flexo.model.queue import JobKey, JobState

HOUR_S = 3600


def sizes(world: World) -> dict[int, int]:
    """Workers that train, by job."""
    return {key.job_id: leader.report().training_workers for key, leader in world.leaders.attached.items()}


def idle(world: World) -> int:
    return sum(gpus - world.cluster.held(node) for node, gpus in world.cluster.sizes.items())


def resizes(world: World) -> int:
    return sum(kind in ("grow", "shrink") for kind in world.kinds(None))


def test_the_default_policy_is_lyra(tmp_path):
    assert World(tmp_path).controller.status().policy == "lyra"


@pytest.mark.parametrize("limit_s", [None, HOUR_S, 7 * 24 * HOUR_S])
def test_a_job_alone_grows_into_all_that_is_idle_whatever_is_known_of_it(tmp_path, limit_s):
    world = World(tmp_path)
    world.job(1, "1-16", "t1", time_limit_s=limit_s)
    world.go(60)
    assert (sizes(world), idle(world)) == ({1: 12}, 0)


def test_jobs_of_which_nothing_is_known_share_evenly(tmp_path):
    world = World(tmp_path)
    for job_id, node in ((1, "t1"), (2, "t2"), (3, "t3")):
        world.job(job_id, "1-12", node)
    world.go(300)
    assert idle(world) == 0
    assert max(sizes(world).values()) - min(sizes(world).values()) <= 1


def test_a_job_of_which_nothing_is_known_is_not_left_out_beside_one_with_a_limit(tmp_path):
    world = World(tmp_path)
    world.job(1, "1-12", "t1", time_limit_s=24 * HOUR_S)
    world.job(2, "1-12", "t1")
    world.go(300)
    assert idle(world) == 0
    assert min(sizes(world).values()) >= 4


def test_gpus_come_back_for_pending_jobs_first_and_go_to_others_when_a_job_has_ended(tmp_path):
    world = World(tmp_path)
    world.job(1, "1-12", "t1")
    world.job(2, "1-12", "t1")
    world.go(100)
    world.rigid(50, gpus=4)
    world.go(10)
    assert max(gpus - world.cluster.held(node) for node, gpus in world.cluster.sizes.items()) == 4
    del world.cluster.queue[50]
    world.go(100)
    assert idle(world) == 0
    del world.cluster.queue[1]
    leader = world.leaders.attached.pop(JobKey(1))
    for satellite in leader.own.values():
        world.cluster.queue.pop(satellite, None)
    world.go(200)
    assert sizes(world)[2] >= 10  # a satellite keeps its size: what came free beside one is left


def test_a_job_that_has_outrun_all_of_its_like_keeps_a_share(tmp_path):
    world = World(tmp_path)
    world.event_store.add_running_times([RunningTime("ada", 1, 100.0, 900.0)])
    world.restart()
    world.job(1, "1-12", "t1", started_at=1000.0 - 2 * HOUR_S)
    world.job(2, "1-12", "t1", started_at=1000.0 - 2 * HOUR_S)
    world.go(300)
    assert min(sizes(world).values()) >= 5


def test_a_job_that_is_nearly_over_keeps_its_satellites_while_nobody_needs_them(tmp_path):
    world = World(tmp_path)
    leader = world.job(1, "1-12", "t1", time_limit_s=HOUR_S)
    world.go(60)
    before = dict(leader.own)
    world.cluster.now = 950.0 + HOUR_S - 30.0
    for satellite in before.values():
        world.cluster.queue[satellite] = replace(world.cluster.queue[satellite], time_limit_s=2 * HOUR_S)
    world.go(20)
    assert leader.own == before


@pytest.mark.thorough
def test_progress_that_is_told_unevenly_moves_hardly_anybody(tmp_path):
    world = World(tmp_path)
    dice = random.Random(7)
    leaders = [world.job(1, "1-12", "t1"), world.job(2, "1-12", "t1")]
    for leader in leaders:
        leader.says = {"progress": 0.1}
    world.go(200)
    settled = resizes(world)
    for step in range(60):
        for leader in leaders:
            leader.says = {"progress": 0.1 + 0.002 * step + dice.uniform(-0.003, 0.003)}
        world.go(20)
    assert resizes(world) - settled <= 6


@pytest.mark.parametrize("seed", range(8))
def test_nothing_stays_idle_that_a_job_could_use(tmp_path, seed):
    dice = random.Random(seed)
    world = World(tmp_path)
    world.cluster.sizes = {f"t{number}": dice.choice((2, 4, 8)) for number in range(1, 6)}
    room = dict(world.cluster.sizes)
    for job_id in range(1, dice.randint(2, 5)):
        least = dice.choice((1, 1, 2))
        node = next(name for name, gpus in room.items() if gpus >= least)
        room[node] -= least
        limit_s = dice.choice((None, HOUR_S, 5 * HOUR_S, 100 * HOUR_S))
        world.job(job_id, f"{least}-{dice.choice((4, 8, 16))}", node, time_limit_s=limit_s)
    world.go(400)
    hungry = [view for view in world.controller.jobs() if view.job.granted_workers < view.job.ceiling]
    for view in hungry:
        own = {grant.node for grant in view.job.grants}
        open_nodes = [name for name in world.cluster.sizes if name not in own]
        assert all(world.cluster.held(name) == world.cluster.sizes[name] for name in open_nodes)
    assert all(job.state is JobState.RUNNING for job in world.cluster.queue.values())
