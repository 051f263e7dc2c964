"""The clock of flexod's host is set, by hours or years: flexod says so, and goes on as after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_world import KEY, World
from lending_world import LendingWorld

from flexo.clusters.base import ClusterState
from flexo.controller import Controller
from flexo.model.elastic import FailureReason
from flexo.model.measured import RunningTime
from flexo.model.queue import JobKey
from flexo.policies import registry

HOURS = 7200.0
YEARS = 1e8


class ClockWorld(World):
    """A clock that somebody sets, on flexod's host and slurmctld's alike, beside one that nobody can."""

    jumped = 0.0

    keep_days = 1e4

    def new_controller(self, **more: Any) -> Controller:
        return super().new_controller(steady=lambda: self.cluster.now - self.jumped, **more)

    def jump(self, seconds: float) -> None:
        self.jumped += seconds
        self.cluster.now += seconds


@pytest.fixture
def world(tmp_path: Path) -> ClockWorld:
    made = ClockWorld(tmp_path)
    made.cluster.now = 2 * YEARS
    made.restart()
    return made


@pytest.mark.parametrize("seconds", [HOURS, -YEARS])
@pytest.mark.parametrize("policy", registry.names())
def test_under_every_policy_jobs_keep_their_workers_or_get_them_again_whatever_the_clock_says(
    tmp_path: Path, policy: str, seconds: float
) -> None:
    world = ClockWorld(tmp_path, policy=policy)
    world.cluster.now = 2 * YEARS
    world.restart()
    first, second = world.job(1, "1-4"), world.job(2, "1-4", "t2")
    for job_id in (1, 2):
        world.cluster.base(job_id, "1-4", f"t{job_id}", submitted_at=2 * YEARS, started_at=2 * YEARS)
    world.go(60)
    before = first.report().training_workers + second.report().training_workers
    world.jump(seconds)
    world.go(160)
    assert world.controller.status().trouble == ""
    assert first.report().training_workers + second.report().training_workers >= before
    way = "forward" if seconds > 0 else "back"
    assert world.last("daemon").startswith(f"the clock was set {way} by {abs(seconds):.0f} s")
    world.event_store.close()


def test_a_node_that_rests_does_not_rest_for_hours_because_the_clock_was_set_back(world: ClockWorld) -> None:
    leader = world.job()
    world.go(20)
    world.fail(FailureReason.NOT_STARTED, next(iter(leader.own)))
    world.go(4)
    assert world.cluster.satellites() == []
    world.jump(-HOURS)
    world.go(80)
    assert world.cluster.satellites() == [("t2", 3)]


def test_an_orphan_is_ended_although_it_was_seen_first_before_the_clock_was_set_back(
    world: ClockWorld,
) -> None:
    world.job()
    world.go(20)
    del world.cluster.queue[1]
    world.leaders.attached.clear()
    world.go(2)
    world.jump(-HOURS)
    world.go(4)
    assert len(world.cluster.cancelled) == 1


def test_leases_are_extended_after_the_clock_was_set_back(world: ClockWorld) -> None:
    world.job()
    world.go(200)
    extended = len(world.cluster.extended)
    assert extended
    world.jump(-HOURS)
    world.go(HOURS + 400)
    assert len(world.cluster.extended) > extended
    assert world.cluster.satellites() == [("t2", 3)]
    assert world.kinds().count("lost") == 0


def test_what_a_leader_has_heard_and_not_submitted_stands_when_the_clock_is_set(world: ClockWorld) -> None:
    world.cluster.starts = False
    leader = world.job()
    world.go(4)
    told = {offer.grant_id for offer in leader.told[-1]}
    world.jump(HOURS)
    world.go(4)
    assert {offer.grant_id for offer in leader.told[-1]} == told


def test_a_job_that_ended_before_it_began_by_the_clock_is_no_experience(world: ClockWorld) -> None:
    world.cluster.base(5, started_at=world.cluster.now)
    world.go(4)
    world.jump(-HOURS)
    del world.cluster.queue[5]
    world.go(6)
    assert world.event_store.running_times() == ()
    world.cluster.base(6, started_at=world.cluster.now)
    world.go(4)
    del world.cluster.queue[6]
    world.go(6)
    (time,) = world.event_store.running_times()
    assert time == RunningTime("ada", 1, 4.0, time.ended_at)


def test_what_ntp_corrects_bit_by_bit_is_no_jump(world: ClockWorld) -> None:
    world.job()
    for _ in range(20):
        world.jump(-1.0)
        world.go(4)
    assert not [event for event in world.event_store.events(None, 100) if event.kind == "daemon"]
    assert world.controller.jobs()[0].job.key == KEY == JobKey(1)


def test_a_clock_that_is_set_during_a_look_is_noticed_before_anything_is_made_of_that_look(
    world: ClockWorld,
) -> None:
    """The look is taken again: its time would be hours from the clock's."""
    leader = world.job()
    world.go(20)
    observe = world.cluster.observe
    seen: list[float] = []

    def observe_while_it_is_set() -> ClusterState:
        state = observe()
        seen.append(state.at)
        if len(seen) == 1:
            world.jump(HOURS)
        return state

    world.cluster.observe = observe_while_it_is_set  # type: ignore[method-assign]
    world.controller.cycle()
    assert len(seen) == 2
    assert world.controller.observation is not None
    assert world.controller.observation.at == seen[1] == seen[0] + HOURS
    assert "set forward by 7200 s" in world.last("daemon")
    world.cluster.observe = observe  # type: ignore[method-assign]
    world.go(20)
    assert leader.report().training_workers == 4
    assert sum("clock" in event.text for event in world.event_store.events(None, 1000)) == 1


class LentClockWorld(LendingWorld):
    """Servers on loan, and a clock that somebody sets."""

    jumped = 0.0

    def new_controller(self, **more: Any) -> Controller:
        return super().new_controller(steady=lambda: self.cluster.now - self.jumped, **more)

    def deadlines(self) -> dict[str, float]:
        """Of servers that are called back."""
        view = self.controller.loans()
        assert view is not None
        return {loan.node: loan.deadline_at for loan in view.loans if loan.deadline_at is not None}


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
def test_deadlines_of_loans_move_with_a_clock_that_one_piece_of_code_has_seen_set(
    tmp_path: Path, seconds: float
) -> None:
    world = LentClockWorld(tmp_path)
    world.cluster.now = 2 * YEARS
    world.restart()
    world.go(60)
    for number, node in enumerate(world.cluster.borrowed):
        world.fungible(50 + number, node)
    world.cluster.inference(90)
    world.go(4)
    before = world.deadlines()
    assert before
    world.jumped += seconds
    world.cluster.now += seconds
    world.go(2)
    assert world.deadlines() == {node: at + seconds for node, at in before.items()}
    told = [event.kind for event in world.event_store.events(None, 1000) if "clock was set" in event.text]
    assert sorted(told) == ["daemon", "repair"]
