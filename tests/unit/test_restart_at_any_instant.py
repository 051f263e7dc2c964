"""flexod is killed at every instant of a story, and started again: nothing is granted twice or forgotten."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import structlog
from mortal_world import MortalWorld

from flexo.model.queue import JobState

WRITES_AND_ORDERS = {
    "event_store.record",
    "event_store.set_loans",
    "event_store.set_priorities",
    "event_store.add_demand",
    "leaders.tell",
    "slurm.extend",
    "slurm.cancel",
    "slurm.requeue",
    "slurm.lend",
    "slurm.prioritize",
}
"""The calls that change something outside of flexod."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Hundreds of lives are not logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def lived(folder: Path, back_after_s: dict[int, float], dies_at: int | None = None) -> MortalWorld:
    folder.mkdir()
    world = MortalWorld(folder, back_after_s, dies_at)
    world.story()
    return world


def ending(world: MortalWorld) -> tuple[object, ...]:
    """What has come of it all."""
    satellites = [job for job in world.cluster.queue.values() if job.satellite]
    known = {grant.satellite_job_id for view in world.controller.jobs() for grant in view.job.grants}
    return (
        sum(workers for _, workers in world.cluster.satellites()),
        known == {job.job_id for job in satellites},
        {job.state for job in satellites},
        world.loans.keys() == world.cluster.borrowed,
        world.cluster.requeued,
        world.expired,
        world.forgotten(),
        {event.kind for event in world.event_store.events(None, 1000)} & {"failure", "trouble"},
        # a loan that was written down, and flexod killed before it edited the partition, has no length
        sorted(
            (loan.node, loan.since_at)
            for loan in world.event_store.past_loans(100)
            if loan.ended_at > loan.since_at
        ),
        sorted((loan.node, loan.since_at) for loan in world.event_store.loans()),
        world.controller.status().trouble,
    )


@pytest.mark.parametrize(
    ("back_after_s", "before"),
    [
        pytest.param({1: 30.0, 2: 0.0}, "", id="everywhere", marks=pytest.mark.thorough),
        pytest.param({1: 0.0, 2: 20.0}, "leaders.tell", id="between two leaders, the other way round"),
    ],
)
def test_wherever_flexod_is_killed_the_story_ends_as_if_it_had_not_been(
    tmp_path: Path, back_after_s: dict[int, float], before: str
) -> None:
    undisturbed = lived(tmp_path / "undisturbed", back_after_s)
    expected = ending(undisturbed)
    assert expected[1:8] == (True, {JobState.RUNNING}, True, [7], [], {}, set())
    assert set(undisturbed.instants) >= WRITES_AND_ORDERS
    outside = undisturbed.outside
    # dying before a call is the same as dying before the one before it, if that changed nothing outside
    different = [n for n in range(1, len(outside)) if outside[n] != outside[n - 1]]
    different = [n for n in different if undisturbed.instants[n].startswith(before)]
    problems = []
    for number in different:
        name = f"{number + 1}, before {undisturbed.instants[number]}"
        try:
            world = lived(tmp_path / str(number), back_after_s, dies_at=number + 1)
        except AssertionError as error:
            problems.append(f"{name}: {error}")
            continue
        assert world.lives == 2, name
        if (end := ending(world)) != expected:
            problems.append(f"{name}: {end}")
        world.event_store.close()
    assert not problems, "\n".join([f"{len(problems)} of {len(different)}", str(expected), *problems])
