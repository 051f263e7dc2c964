"""A policy that raises an error: time limits are extended all the same, flexod says so and tries again."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from controller_world import KEY, TIME_LIMIT_S, World
from prometheus_client import CollectorRegistry

from flexo.controller import Controller
from flexo.doctor.flexod import FlexodAnswer, check_answer
from flexo.metrics.counters import Counters
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Targets
from flexo.policies.greedy import Greedy
from flexo.policies.placement import Placement


class FailingPolicy:
    """Is greedy, then raises, then wants nothing."""

    name = "failing"

    def __init__(self) -> None:
        self._greedy = Greedy()
        self.is_greedy = True
        self.fails = False
        self.asked = 0
        self.differs = False
        self._numbers = count()

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        if self.is_greedy:
            return self._greedy.targets(jobs, placement)
        self.asked += 1
        if self.fails:
            raise ZeroDivisionError(f"job {next(self._numbers) if self.differs else 17}")
        return Targets()

    def samples_of(self, job: TrainingJob, workers: int, nodes: int) -> int:
        return 0


class PolicyWorld(World):
    policy: FailingPolicy
    registry: CollectorRegistry

    def restart(self) -> None:
        self.registry, self.policy = CollectorRegistry(), FailingPolicy()
        super().restart()

    def new_controller(self, **more: Any) -> Controller:
        return super().new_controller(policy=self.policy, watch=Counters(self.registry), **more)

    def fail(self) -> None:
        """From now on."""
        self.policy.is_greedy, self.policy.fails = False, True

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.event_store.events(None, 1000) if event.kind == kind]


@pytest.fixture
def world(tmp_path: Path) -> PolicyWorld:
    return PolicyWorld(tmp_path)


def test_a_policy_that_raises_ends_no_time_limit_and_is_asked_again_in_each_cycle(world: PolicyWorld) -> None:
    leader = world.job()
    world.go(20)
    satellites = dict(leader.own)
    assert satellites
    world.fail()
    world.go(3 * TIME_LIMIT_S)
    assert leader.own == satellites
    assert world.cluster.satellites() == [("t2", 3)]
    assert world.policy.asked == 3 * TIME_LIMIT_S / 2


def test_status_doctor_and_metrics_say_which_policy_fails_and_that_it_is_over(world: PolicyWorld) -> None:
    world.job()
    world.go(20)
    world.fail()
    world.go(100)
    trouble = world.controller.status().trouble
    assert "failing" in trouble
    assert "ZeroDivisionError: job 17" in trouble
    (_, found) = check_answer(FlexodAnswer(version="1", trouble=trouble), "1")
    assert "failing" in found.what
    assert world.registry.get_sample_value("flexo_cycles_total", {"outcome": "mistake"}) == 50
    assert len(world.texts("trouble")) == 1
    world.policy.fails = False
    world.go(4)
    assert world.controller.status().trouble == ""
    assert len(world.texts("trouble")) == 2


@pytest.mark.thorough
def test_an_error_that_reads_differently_each_time_is_written_down_once_a_minute(world: PolicyWorld) -> None:
    world.job()
    world.go(20)
    world.policy.differs = True
    world.fail()
    world.go(600)
    assert 2 <= len(world.texts("trouble")) <= 10


def test_while_the_policy_fails_new_jobs_are_seen_and_owners_orders_are_followed(world: PolicyWorld) -> None:
    leader = world.job()
    world.go(20)
    world.fail()
    world.job(2, node="t3")
    world.go(4)
    state = world.controller.observation
    assert state is not None
    assert {2} <= {job.job_id for job in state.jobs}
    assert {view.job.key.job_id for view in world.controller.jobs()} == {1, 2}
    (grant,) = next(view.job for view in world.controller.jobs() if view.job.key == KEY).grants
    world.controller.scale_in(KEY, 0, [grant.node])
    world.go(6)
    assert leader.own == {}
    assert world.cluster.satellites() == []


def test_satellites_of_a_job_that_has_gone_are_ended_although_the_policy_fails(world: PolicyWorld) -> None:
    leader = world.job()
    world.go(20)
    (satellite,) = leader.own.values()
    world.fail()
    del world.cluster.queue[1], world.leaders.attached[KEY]
    world.go(8)
    assert world.cluster.cancelled == [satellite]
