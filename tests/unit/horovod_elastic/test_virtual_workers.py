"""Reproducible mode: where virtual workers run, and that each keeps its rank whatever happens to the job."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_membership_in_a_random_world import EVENTS, Play
from thorough import examples
from world import World

from horovod_elastic import reproducible

BASES = st.sampled_from([({"b1": 1}, 1), ({"b1": 1}, 3), ({"b1": 2}, 5), ({"b1": 2, "b2": 1}, 4)])


def founded(base: dict[str, int], virtual: int) -> World:
    world = World(base, virtual=virtual)
    for agent, slots in base.items():
        world.join(agent, slots)
    return world


def training(base: dict[str, int], virtual: int) -> World:
    world = founded(base, virtual)
    world.quieten()
    return world


def loads(world: World) -> list[int]:
    """How many virtual workers the slots carry that carry any, in descending order."""
    training = world.training().values()
    return sorted(Counter((each.agent, each.slot) for each in training).values(), reverse=True)


def places(world: World) -> dict[int, str]:
    """By rank: the agent where it trains."""
    return {each.part.rank: each.agent for each in world.training().values()}


def test_the_base_carries_all_virtual_workers_in_order_of_rank() -> None:
    world = training({"b1": 1, "b2": 1}, 5)
    assert places(world) == {0: "b1", 1: "b1", 2: "b1", 3: "b2", 4: "b2"}


def test_a_satellite_gets_its_part_of_them_and_rank_0_stays() -> None:
    world = training({"b1": 1}, 4)
    world.join("s1", 1)
    world.quieten()
    assert loads(world) == [2, 2]
    world.join("s2", 2)
    world.quieten()
    assert loads(world) == [1, 1, 1, 1]
    assert places(world)[0] == "b1"
    assert world.members.size == 4


def test_whoever_moves_was_told_its_rank_at_its_start_and_the_other_process_ends() -> None:
    world = training({"b1": 1}, 2)
    (before,) = [w for w, process in world.training().items() if process.part.rank == 1]
    world.join("s1", 1)
    world.quieten()
    assert before in world.told_to_leave
    assert places(world) == {0: "b1", 1: "s1"}


def test_a_satellite_leaves_at_the_next_boundary_as_newcomers_wait_in_the_base() -> None:
    world = training({"b1": 1}, 4)
    world.join("s1", 1)
    world.quieten()
    started = len(world.outlooks)
    world.release("s1")
    world.commit()
    assert loads(world) == [4]
    assert len(world.outlooks) == started, "no process had to be started for that"


def test_a_job_waits_until_a_dead_virtual_worker_has_a_process_again() -> None:
    world = training({"b1": 1}, 3)
    (victim,) = [w for w, process in world.training().items() if process.part.rank == 2]
    generation = world.members.generation
    world.exit(victim, -9)
    world.commit()
    assert world.members.generation == generation
    world.quieten()
    assert loads(world) == [3]
    assert world.members.generation > generation


def test_a_job_ends_if_a_virtual_worker_dies_again_and_again() -> None:
    world = training({"b1": 1}, 2)
    for _ in range(10):
        for worker_id, process in list(world.processes.items()):
            if world.end is None and world.outlooks[worker_id].rank == 1 and process.moment == "training":
                world.exit(worker_id, 3)
        world.quieten()
    assert world.end is not None
    assert world.end.exit_code == 3


def test_a_script_that_ends_while_a_virtual_worker_moves_has_ended_well() -> None:
    """The process that was to take the rank over is in the next generation already, and alone there."""
    world = training({"b1": 1}, 2)
    world.join("s1", 1)
    old = set(world.training())
    for worker_id in set(world.processes) - old:
        world.ready(worker_id)
    while not (moved := set(world.training()) - old):
        world.flush()
        for worker_id in old:
            if not world.processes[worker_id].part.word:
                world.step(worker_id)
    (alone,) = moved
    world.fail(alone)
    world.flush()
    for worker_id in old:
        world.processes[worker_id].part.finish()
        world.stand(worker_id)
    world.flush()
    for worker_id in old:
        world.exit(worker_id, 0)
    world.quieten()
    assert world.end is not None
    assert world.end.exit_code == 0


def test_a_new_leader_moves_nobody() -> None:
    world = training({"b1": 2}, 4)
    world.join("s1", 1)
    world.quieten()
    before, generation = places(world), world.members.generation
    world.new_leader()
    world.quieten()
    assert places(world) == before
    assert world.members.generation == generation


@settings(max_examples=examples(200))
@given(job=BASES, events=EVENTS)
def test_each_virtual_worker_trains_whatever_has_happened(
    job: tuple[dict[str, int], int], events: list[tuple[str, int, int]]
) -> None:
    base, virtual = job
    world = Play(founded(base, virtual)).run(events)
    world.obey(world.members.limit(None, world.now))
    world.quieten()
    if world.end is None:
        assert sorted(places(world)) == list(range(virtual))
        assert max(loads(world)) - min(loads(world)) < 2
        waiting = {process.agent: process.moment for process in world.processes.values()}
        waiting = {agent: moment for agent, moment in waiting.items() if moment != "training"}
        assert set(waiting.values()) <= {"ready"}, "newcomers wait in the base"
        assert waiting.keys() <= base.keys()
        world.finish()
        world.quieten()
    assert world.end is not None
    assert not world.processes


@pytest.mark.parametrize(
    ("value", "words"), [("0", "=0"), ("many", "=many"), ("-2", "=-2"), ("", "=:"), ("3", "at least 8")]
)
def test_a_number_of_virtual_workers_that_cannot_be_is_refused(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reproducible.settled(reproducible.asked(value, given=True), 8)


def test_without_a_number_there_are_as_many_as_the_jobs_maximum() -> None:
    assert reproducible.settled(reproducible.asked("", given=False), 8) == "8"
    assert reproducible.settled(reproducible.asked("12", given=True), 8) == "12"
