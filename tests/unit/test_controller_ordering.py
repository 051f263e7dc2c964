"""The loop where flexod says in which order pending jobs start, and whose jobs grow first."""

from __future__ import annotations

from controller_world import BOB, World
from says import says

from flexo.clusters.base import UserShare, UserShares
from flexo.model.queue import JobState


def queued(world: World, **limits: int) -> None:
    """Bob's pending jobs, by their numbers and hours."""
    for name, hours in limits.items():
        world.rigid(int(name.removeprefix("job")), gpus=4, time_limit_s=hours * 3600)


def priorities(world: World) -> dict[int, int]:
    return {job.job_id: job.priority for job in world.cluster.queue.values()}


def by_priority(world: World) -> list[int]:
    seen = priorities(world)
    waiting = [job.job_id for job in world.cluster.queue.values() if job.state is JobState.PENDING]
    return sorted(waiting, key=lambda job_id: -seen[job_id])


def full(tmp_path, **controller) -> World:
    world = World(tmp_path, **controller)
    for job_id, node in enumerate(("t1", "t2", "t3"), start=90):
        world.rigid(job_id, gpus=4, node=node, time_limit_s=86_400)
    return world


def test_pending_jobs_start_in_the_policy_s_order_elastic_or_not(tmp_path):
    world = full(tmp_path, order="policy")
    queued(world, job50=8, job51=2)
    world.cluster.base(52, "1-4", nodes=(), state=JobState.PENDING, reason="Priority", time_limit_s=3600)
    world.go(6)
    assert by_priority(world) == [52, 51, 50]
    queued(world, job53=4)
    world.go(6)
    assert by_priority(world) == [52, 51, 53, 50]
    assert any(says(text, "order", "1 of 4") for text in world.controller.explain(52))
    assert says(world.last("order"), "priority", 53)
    assert world.controller.interval_s == 2.0  # without any elastic job that runs


def test_an_order_that_is_left_to_slurm_is_left_alone(tmp_path):
    world = full(tmp_path)
    queued(world, job50=8, job51=2)
    before = priorities(world)
    world.go(6)
    assert priorities(world) == before
    assert world.cluster.prioritized == []


def test_inference_jobs_and_jobs_without_gpus_are_left_alone(tmp_path):
    world = full(tmp_path, order="policy")
    queued(world, job50=8)
    world.rigid(60, gpus=1, partitions=("infer",))
    world.rigid(62, gpus=0, reason="Resources")
    world.go(4)
    assert {int(each.job) for sent in world.cluster.prioritized for each in sent} == {50}


def test_a_dry_run_sets_no_priority(tmp_path):
    world = full(tmp_path, order="policy", dry_run=True)
    queued(world, job50=8, job51=2)
    before = priorities(world)
    world.go(10)
    assert priorities(world) == before
    assert world.kinds(None).count("order") == 1
    assert world.last("order").startswith("would set")


def test_a_refused_priority_is_trouble_that_is_shown(tmp_path):
    world = full(tmp_path, order="policy")
    queued(world, job50=8)
    world.cluster.refuses = "scontrol: Access/permission denied for job 50"
    world.go(10)
    assert "permission denied" in world.controller.status().trouble
    assert world.kinds(None).count("trouble") == 1


def test_a_user_who_has_had_far_more_than_is_due_gets_less_of_what_is_idle(tmp_path):
    world = World(tmp_path, fairshare_weight=1.0)
    world.cluster.shares = UserShares((UserShare("ada", 0.1), UserShare("bob", 1.0)), 0.0)
    heavy = world.job(1, "1-12", "t1", time_limit_s=7200)
    light = world.job(2, "1-12", "t1", time_limit_s=7200, owner=BOB, user="bob")
    world.go(200)
    had = {leader.key.job_id: leader.report().training_workers for leader in (heavy, light)}
    assert had[2] >= 2 * had[1]
    assert sum(had.values()) == 12


def test_a_user_who_has_had_far_too_much_still_has_what_nobody_else_wants(tmp_path):
    world = World(tmp_path, fairshare_weight=1.0)
    world.cluster.shares = UserShares((UserShare("ada", 0.0),), 0.0)
    leader = world.job(1, "1-12", "t1")
    world.go(60)
    assert leader.report().training_workers == 12


def test_what_reading_shares_costs_makes_looks_rarer(tmp_path):
    world = World(tmp_path, fairshare_weight=1.0)
    world.cluster.shares = UserShares((UserShare("ada", 0.5),), 1.0)
    world.job()
    world.go(2)
    assert world.controller.interval_s > 40.0
    world.go(20)
    assert world.controller.interval_s == 2.0
