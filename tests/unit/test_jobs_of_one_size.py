"""Jobs with a range of one size: their leaders are connected like others, and no worker comes or goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import KEY, World
from says import says

from flexo.control.scale_overrides import BadScale, NotSteered
from flexo.model.queue import ElasticRequest, JobKey
from flexo.model.ranges import Range
from flexo.policies import registry

GROWING = ("greedy", "lyra", "throughput", "elastic-tiresias", "goodput")
"""Policies by which the other job has satellites here."""


def trained(folder: Path, policy: str, *, connected: bool) -> World:
    """Two minutes of one such job, whose leader is connected or not, beside one that grows."""
    folder.mkdir()
    world = World(folder, policy=policy)
    fixed, other = world.job(1, "2-2", "t1"), world.job(2, "1-8", "t3")
    if not connected:
        del world.leaders.attached[fixed.key]
    world.go(60)
    world.rigid(50, gpus=4)
    world.go(60)
    assert (fixed.own, {offers for offers in fixed.told if offers}) == ({}, set())
    assert world.kinds(1) == []
    assert other.own or policy not in GROWING
    return world


@pytest.mark.parametrize("policy", registry.names())
def test_by_every_policy_it_is_given_nothing_and_others_get_what_they_would_get_anyway(
    policy: str, tmp_path: Path
) -> None:
    one = trained(tmp_path / "connected", policy, connected=True)
    other = trained(tmp_path / "away", policy, connected=False)
    assert one.cluster.satellites() == other.cluster.satellites()


def test_what_is_said_of_it_is_that_it_has_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job(1, "2-2", "t1")
    world.go(10)
    told = world.controller.explain(1)
    assert says(told[0], "job 1", "ada", "2-2 workers", "2 in its base", "t1")
    assert told[-1] == "2 of 2 workers: all that it can use"


def test_to_resize_or_profile_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job(1, "2-2", "t1")
    world.go(10)
    for change in (
        lambda: world.controller.scale_out(KEY, 1),
        lambda: world.controller.scale_in(KEY, 1),
        lambda: world.controller.resizable(KEY),  # what a profile asks first
    ):
        with pytest.raises(NotSteered, match=r"^job 1 .*2 workers.*2-2"):
            change()
    with pytest.raises(BadScale, match=r"\b2-2 workers\b.*\b3\b"):
        world.controller.scale(KEY, 3)
    assert world.event_store.caps() == {}


def test_its_batch_may_change_where_it_accepts_several(tmp_path: Path) -> None:
    world = World(tmp_path)
    several = world.job(1, "2-2", "t1", elastic=ElasticRequest(Range(2, 2), batch=Range(64, 256)))
    one = world.job(2, "2-2", "t2")
    world.go(10)
    assert 64 <= several.batch <= 256
    assert one.batch == 0
    assert {shown.job.key: shown.batch for shown in world.controller.jobs()} == {
        KEY: several.batch,
        JobKey(2): 0,
    }
