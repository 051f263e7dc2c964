"""A job whose base Slurm has suspended: shown so, granted nothing, and without satellites after a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import KEY, TIME_LIMIT_S, FakeLeader, World
from says import says

from flexo.config import ControllerSettings
from flexo.control.scale_overrides import NotSteered
from flexo.control.views import View
from flexo.metrics.present import _job_state
from flexo.model.queue import JobState
from flexo.service.admin_service import _job
from flexo_cli.job_words import job_state

GRACE_S = 120
"""[controller] suspend_grace_s, by default."""


class SuspendWorld(World):
    def suspend(self, job_id: int = 1) -> None:
        self._be(job_id, JobState.SUSPENDED)

    def resume(self, job_id: int = 1) -> None:
        self._be(job_id, JobState.RUNNING)

    def _be(self, job_id: int, state: JobState) -> None:
        self.cluster.add(replace(self.cluster.queue[job_id], state=state))

    def why(self) -> str:
        return "; ".join(self.controller.explain(1))


@pytest.fixture
def world(tmp_path: Path) -> SuspendWorld:
    return SuspendWorld(tmp_path)


@pytest.fixture
def leader(world: SuspendWorld) -> FakeLeader:
    """Of a job that has grown."""
    made = world.job()
    world.go(20)
    assert world.cluster.satellites() == [("t2", 3)]
    return made


@pytest.mark.parametrize("attached", [True, False])
def test_after_the_grace_period_its_satellites_are_ended_whether_its_leader_still_speaks_or_not(
    world: SuspendWorld, leader: FakeLeader, attached: bool
) -> None:
    (satellite,) = leader.own.values()
    leader.submits = False  # whoever leads does not dismiss anything
    if not attached:
        del world.leaders.attached[KEY]
    world.suspend()
    world.go(GRACE_S - 4)
    assert world.cluster.satellites() == [("t2", 3)]
    assert world.cluster.cancelled == []
    world.go(12)
    assert world.cluster.satellites() == []
    assert world.cluster.cancelled == [satellite]
    assert "suspended for 120 s" in world.last("shrink")
    assert "suspended for 120 s" in world.last("cancel")
    assert "lost" not in world.kinds()


def test_nothing_is_granted_meanwhile_and_after_it_is_resumed_it_grows_again(
    world: SuspendWorld, leader: FakeLeader
) -> None:
    world.suspend()
    world.go(GRACE_S + 20)
    grown = world.kinds().count("grow")
    world.go(TIME_LIMIT_S)
    assert world.kinds().count("grow") == grown
    assert world.cluster.satellites() == []
    assert leader.told[-1] == ()
    world.resume()
    world.go(100)
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_job_of_which_only_time_slices_pass_keeps_its_satellites(
    world: SuspendWorld, leader: FakeLeader
) -> None:
    """Gang scheduling: 30 s suspended, 30 s running, and so on."""
    satellites = dict(leader.own)
    for _ in range(20):
        world.suspend()
        world.go(30)
        world.resume()
        world.go(30)
    assert leader.own == satellites
    assert world.cluster.cancelled == []


def test_for_a_long_grace_period_time_limits_are_extended(tmp_path: Path) -> None:
    world = SuspendWorld(tmp_path, suspend_grace_s=3 * TIME_LIMIT_S)
    leader = world.job()
    world.go(20)
    satellites = dict(leader.own)
    world.suspend()
    world.go(3 * TIME_LIMIT_S - 20)
    assert leader.own == satellites
    world.go(40)
    assert world.cluster.satellites() == []


def test_it_is_shown_as_suspended_wherever_jobs_are_shown(world: SuspendWorld, leader: FakeLeader) -> None:
    world.suspend()
    world.go(20)
    (view,) = world.controller.jobs()
    assert job_state(_job(view, (), View())) == "suspended" == _job_state(view, View())
    del world.leaders.attached[KEY]
    world.go(4)
    (view,) = world.controller.jobs()
    assert job_state(_job(view, (), View())) == "suspended" == _job_state(view, View())
    assert "suspended" in world.why()
    assert says(world.why(), "satellites", "98 s")
    assert "hvd.elastic.run" not in world.why()
    world.go(GRACE_S)
    assert "satellites back" not in world.why()
    assert "scontrol resume 1" in world.why()
    with pytest.raises(NotSteered, match="suspended"):
        world.controller.scale_out(KEY, 1)
    world.resume()
    world.go(4)
    assert "suspended" not in world.why()


def test_a_dry_run_takes_nothing_back(tmp_path: Path) -> None:
    world = SuspendWorld(tmp_path)
    leader = world.job()
    world.go(20)
    satellites = dict(leader.own)
    world.settings = world.settings.model_copy(
        update={"controller": ControllerSettings(dry_run=True, suspend_grace_s=10)}
    )
    world.restart()
    world.suspend()
    world.go(60)
    assert leader.own == satellites
    assert world.cluster.cancelled == []


def test_a_suspended_satellite_makes_no_suspended_job(world: SuspendWorld, leader: FakeLeader) -> None:
    (satellite,) = leader.own.values()
    world.suspend(satellite)
    world.go(GRACE_S + 20)
    assert world.cluster.cancelled == []
    assert "suspended" not in world.why()
