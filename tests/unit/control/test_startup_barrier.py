"""A flexod that has just begun hears the jobs that run before it grants anything new."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import KEY, World
from says import says

from flexo.control.safeguards import STARTUP_BARRIER_S


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A flexod that has just been started again, while a job runs."""
    made = World(tmp_path)
    made.job(1, "1-4")
    made.go(20)
    made.restart()
    return made


def test_nothing_is_granted_before_all_leaders_of_running_jobs_are_back(world: World) -> None:
    away = world.leaders.attached.pop(KEY)
    second = world.job(2, "1-4", "t3")
    world.go(20)
    assert second.own == {}
    why = " ".join(world.controller.explain(2))
    assert says(why, "not granted yet", "flexod", "one leader")
    world.leaders.attached[KEY] = away
    world.go(4)
    assert second.own


def test_a_leader_that_does_not_come_back_is_waited_for_only_so_long(world: World) -> None:
    world.leaders.attached.clear()
    second = world.job(2, "1-4", "t3")
    world.go(STARTUP_BARRIER_S - 5)
    assert second.own == {}
    world.go(15)
    assert second.own


def test_nobody_waits_for_a_job_of_one_size_which_was_never_granted_anything(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.base(1, "2-2")
    second = world.job(2, "1-4", "t3")
    world.go(4)
    assert second.own


def test_nobody_waits_for_a_job_that_has_ended(world: World) -> None:
    world.leaders.attached.clear()
    second = world.job(2, "1-4", "t3")
    world.go(4)
    assert second.own == {}
    del world.cluster.queue[1]
    world.go(4)
    assert second.own


def test_what_has_to_be_given_back_is_given_back_all_the_same(world: World) -> None:
    world.job(2, "1-4", "t3")
    world.leaders.attached.popitem()
    world.rigid(50, gpus=4)
    world.go(10)
    assert world.kinds().count("shrink") == 1


def test_a_job_that_starts_later_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.go(4)
    first = world.job(1, "1-4")
    world.cluster.base(2, "1-4", "t3")
    world.go(4)
    assert first.own
