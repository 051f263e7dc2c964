"""Where backfill looks at few jobs of a partition, no more satellites are granted at once than can start."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import World

STARTS = 2
"""In a turn of backfill; leaders give a satellite up after two turns."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Ten jobs, each of which may have a satellite on a node of its own; no satellite starts yet."""
    made = World(tmp_path)
    made.cluster.sizes = {f"t{number}": 4 for number in range(1, 14)}
    for number in range(1, 11):
        made.job(number, "1-2", f"t{1 + number % 3}")
    made.cluster.starts = False
    return made


def waiting_and_running(world: World) -> tuple[int, int]:
    found = [job for job in world.cluster.queue.values() if job.satellite is not None]
    return sum(not job.nodes for job in found), sum(bool(job.nodes) for job in found)


def test_no_more_satellites_wait_than_start_before_they_are_given_up(world: World) -> None:
    world.cluster.starts_in_a_turn = STARTS
    world.go(10)
    assert waiting_and_running(world) == (2 * STARTS, 0)
    world.go(30)
    assert waiting_and_running(world) == (2 * STARTS, 0)


def test_the_others_are_granted_when_those_have_started(world: World) -> None:
    world.cluster.starts_in_a_turn = STARTS
    world.go(10)
    world.cluster.starts = True
    world.go(60)
    assert waiting_and_running(world) == (0, 10)


def test_why_tells_what_is_waited_for(world: World) -> None:
    world.cluster.starts_in_a_turn = STARTS
    world.go(10)
    told = [" ".join(world.controller.explain(number)) for number in range(1, 11)]
    late = [text for text in told if "is not granted yet: 4 satellites wait in flex already" in text]
    assert len(late) == 10 - 2 * STARTS
    assert all("bf_max_job_part" in text for text in late)


def test_backfill_that_never_rests_starts_as_many_as_in_all_its_turns_of_a_second(world: World) -> None:
    world.cluster.starts_in_a_turn, world.cluster.backfill_interval_s = STARTS, 0.0
    world.go(10)
    assert waiting_and_running(world) == (10, 0)


def test_where_backfill_has_no_such_limit_all_are_granted_at_once(world: World) -> None:
    world.go(10)
    assert waiting_and_running(world) == (10, 0)
