"""The base of an opportunistic job has no workers and no GPUs. Its job gets no idle GPUs as others do."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import KEY, FakeLeader, World
from flat_records import change_job
from says import says

from flexo.model.queue import ElasticRequest
from flexo.model.ranges import Range
from flexo.policies import registry

OPPORTUNISTIC = ElasticRequest(Range(1, 4), opportunistic=True, auto=True)


def with_opportunistic_base(world: World, **changes: object) -> FakeLeader:
    """A base of one task with two CPUs on t1, and its leader, which is connected."""
    base = world.cluster.base(1, "1-4", "t1", elastic=OPPORTUNISTIC, gpus=0, cpus=2, **changes)
    leader = world.leaders.attached[base.key] = FakeLeader(world.cluster, base)
    leader.says = {"training_workers": 0}
    return leader


@pytest.mark.parametrize("policy", registry.names())
def test_every_policy_leaves_it_alone_and_treats_others_as_ever(policy: str, tmp_path: Path) -> None:
    world = World(tmp_path, policy=policy)
    leader = with_opportunistic_base(world)
    world.job(2, "1-8", "t3")
    world.go(60)
    assert (leader.own, {offers for offers in leader.told if offers}) == ({}, set())
    assert world.controller.status().trouble == ""


def test_it_is_shown_with_no_worker_in_its_base(tmp_path: Path) -> None:
    world = World(tmp_path)
    with_opportunistic_base(world)
    world.go(10)
    (view,) = world.controller.jobs()
    assert (view.job.base_workers, view.job.granted_workers, view.job.ceiling) == (0, 0, 4)
    assert view.job.shape.gpus == 0
    assert view.job.shape.cpus == 2
    told = world.controller.explain(KEY.job_id)
    assert says(told[0], "job 1", "1-4 workers", "0 in its base", "t1")
    assert says(told[-1], "opportunistic")


def test_a_consenting_job_that_is_not_elastic_is_one_of_one_size(tmp_path: Path) -> None:
    world = World(tmp_path)
    base = world.cluster.base(1, "2-2", "t1")
    world.cluster.add(change_job(base, elastic=ElasticRequest(Range(2, 2), cohost=True)))
    world.go(10)
    (view,) = world.controller.jobs()
    assert (view.attached, view.job.base_workers, view.job.ceiling) == (False, 2, 2)
    assert world.controller.status().trouble == ""
