"""A satellite is explained by the job that it belongs to."""

from __future__ import annotations

from pathlib import Path

from controller_world import World
from says import says

from flexo.control.explanations import explain, satellite_of


def test_a_satellite_names_its_job_and_a_base_and_a_rigid_job_are_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.rigid(60, 1, "t3")
    world.job(1, "1-4")
    world.go(60)
    view = world.controller.view()
    queue = view.state.jobs if view.state else ()
    satellite, *_ = (job.job_id for job in queue if job.satellite is not None)
    assert [satellite_of(number, view) for number in (satellite, 1, 60, 999)] == [1, 0, 0, 0]
    assert says(explain(satellite, view)[0], "satellite of job 1")
