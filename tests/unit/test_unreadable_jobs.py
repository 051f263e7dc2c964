"""A job whose record in Slurm's queue flexod cannot read costs nobody else anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import TIME_LIMIT_S, World

from flexo.clusters.slurm.adapter import with_earlier_records
from flexo.clusters.slurm.parse_jobs import unreadable_job
from flexo_protos.resources import Resources


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_other_jobs_are_served_and_status_and_events_name_the_job_once(world: World) -> None:
    leader = world.job()
    why = "'x1' is not a number"
    world.cluster.add(unreadable_job(99, why))
    world.go(2 * TIME_LIMIT_S)
    assert len(leader.own) == 1
    assert "job 99" in world.controller.status().trouble
    told = [event.text for event in world.event_store.events(None, 100) if event.kind == "trouble"]
    assert len(told) == 1
    assert why in told[0]
    del world.cluster.queue[99]
    world.go(4)
    assert world.controller.status().trouble == ""


def test_satellites_of_a_base_that_cannot_be_read_are_no_orphans(world: World) -> None:
    leader = world.job()
    world.go(20)
    assert leader.own
    world.restart()  # so that no earlier record of it is known
    world.cluster.add(unreadable_job(1, "'x1' is not a number"))
    world.go(20)
    assert world.cluster.cancelled == []


def test_a_job_that_was_read_before_stays_as_it_was() -> None:
    world_job = replace(unreadable_job(7, ""), user="ada", resources=Resources(gpus=4))
    (kept,) = with_earlier_records((unreadable_job(7, "why"),), (world_job,))
    assert (kept.user, kept.resources.gpus, kept.unreadable) == ("ada", 4, "why")
    (unknown,) = with_earlier_records((unreadable_job(8, "why"),), (world_job,))
    assert (unknown.job_id, unknown.user) == (8, "")
