"""An administrator's limit of satellites: flexod keeps to it, and tells who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import World
from says import says

from flexo.control.views import Unheeded

NODES, GPUS, JOBS = 3, 4, 9


def world_of(directory: Path, policy: str, most: int | None) -> World:
    """Nine jobs, on nodes that they fill, and three idle nodes."""
    made = World(directory, policy=policy, max_satellites=most)
    full = {f"t{number}": JOBS // NODES for number in range(1, NODES + 1)}
    made.cluster.sizes = full | {f"t{number}": GPUS for number in range(NODES + 1, 2 * NODES + 1)}
    for number in range(1, JOBS + 1):
        made.job(number, "1-5", f"t{1 + number % NODES}")
    return made


def workers_of_satellites(world: World) -> list[int]:
    return [workers for _, workers in world.cluster.satellites()]


@pytest.mark.parametrize("policy", ["lyra", "greedy"])
def test_fewer_jobs_have_larger_satellites_and_the_same_gpus_are_in_use(tmp_path: Path, policy: str) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    without, limited = world_of(tmp_path / "without", policy, None), world_of(tmp_path / "with", policy, 3)
    for world in (without, limited):
        world.go(120)
    few = workers_of_satellites(limited)
    assert len(few) == 3 < len(workers_of_satellites(without))
    assert sum(few) == sum(workers_of_satellites(without))


def test_why_tells_who_waits_for_it_and_what_the_limit_is(tmp_path: Path) -> None:
    world = world_of(tmp_path, "lyra", 2)
    world.go(120)
    told = [" ".join(world.controller.explain(number)) for number in range(1, JOBS + 1)]
    assert sum(says(text, 2, "max_satellites") for text in told) >= JOBS - 3


def test_a_lower_limit_takes_nothing_back_but_grants_no_more(tmp_path: Path) -> None:
    world = world_of(tmp_path, "lyra", None)
    world.go(60)
    before = world.cluster.satellites()
    rules = world.settings.controller.model_copy(update={"max_satellites": 1})
    world.controller.reconfigure(world.settings.model_copy(update={"controller": rules}), "", Unheeded())
    world.go(120)
    assert world.cluster.satellites() == before
