"""The controller and Aggregators in satellites: grants, their satellites, failures, and what people read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import BOB, KEY, FakeLeader, World
from flat_records import change_job

from flexo.issued_grants import IssuedGrant
from flexo.model.aggregation import AggregationUse, UsedAggregator
from flexo.model.elastic import FailureReason
from flexo.model.queue import JobState
from flexo.service.admin_service import _jobs
from flexo_protos.resources import Resources


class AskingWorld(World):
    """Two nodes of four CPUs beside four busy GPUs, and one where the job trains."""

    def asking(self, satellites: int = 1, workers: str = "1-2") -> FakeLeader:
        for number, name in enumerate(("t2", "t3")):
            self.rigid(50 + number, 4, name)
        self.rigid(52, 3, "t1")
        leader = self.job(1, workers)
        leader.says["aggregation"] = AggregationUse(False, 0, 0.0, 1, 0, 0, 1, (), satellites)
        return leader


@pytest.fixture
def world(tmp_path) -> AskingWorld:
    return AskingWorld(tmp_path)


def why(world: World) -> str:
    return " ".join(world.controller.explain(1))


def test_a_job_gets_what_it_asks_for_and_its_workers_are_not_counted(world):
    world.asking(2)
    world.go(8)
    assert world.cluster.satellites() == [("t2", 0), ("t3", 0)]
    (view,) = world.controller.jobs()
    assert (view.job.granted_workers, view.job.grants) == (1, ())
    assert "run an Aggregator on t3" in world.last("grow")
    assert "Aggregators in its own satellites sum its gradients" in why(world)
    assert "it asks for 2, and has t2 (sums), t3 (sums)" in why(world)


def test_why_says_who_sums_before_a_satellite_is_there_and_for_jobs_that_ask_for_none(world):
    leader = world.asking()
    world.cluster.starts = False
    world.go(6)
    assert "the Aggregators of its own nodes sum its gradients for now" in why(world)
    assert "t2 (pending)" in why(world)
    leader.says["aggregation"] = AggregationUse(False, 0, 0.0, 1, 0, 0, 1)
    world.go(4)
    assert "own nodes sum its gradients (--aggregators=own)" in why(world)
    leader.says["aggregation"] = AggregationUse(True, 0, 0.0, 1, 0, 0, 1)
    world.go(4)
    assert "asks for a pool, and flexod has none" in why(world)
    leader.says["aggregation"] = None
    world.go(4)
    assert "Aggregators" not in why(world)


def test_a_job_that_leaves_the_choice_gets_satellites_once_its_own_aggregators_are_busy(world):
    leader = world.asking(0)
    leader.shape = Resources(1, 2)
    use = AggregationUse(False, 100, 0.2, 2, 0, 1000, 1, auto=True, most_satellites=1, busy=0.05)
    leader.says["aggregation"] = use
    world.go(8)
    assert world.cluster.satellites() == []
    assert "own nodes sum its gradients (--aggregators=auto): they use 5% of a core" in why(world)
    leader.says["aggregation"] = replace(use, busy=0.3)
    world.go(8)
    assert world.cluster.satellites() == [("t2", 0)]
    assert "satellites: its own Aggregators use 30% of a core" in world.last("assign")
    assert "t2 (sums); its own Aggregators use 30% of a core" in why(world)
    (told,) = _jobs(world.controller.view()).jobs
    assert (told.aggregation.auto, told.aggregation.satellites) == (True, 1)
    slower = replace(use, used=(UsedAggregator("t2:7000", 1),), version=1, iteration_s=0.3)
    leader.says["aggregation"] = slower
    world.go(8)
    assert world.cluster.satellites() == []
    assert "0.3 s there, and 0.2 s on its own nodes" in world.last("assign")
    assert "it rests for 1800 s" in why(world)


def test_its_time_limit_is_extended_while_the_grant_stands(world):
    world.asking()
    world.go(400)
    assert world.cluster.satellites() == [("t2", 0)]
    assert world.cluster.extended


def test_a_satellite_is_given_back_when_its_job_asks_for_none(world):
    leader = world.asking()
    world.go(6)
    leader.says["aggregation"] = AggregationUse(False, 0, 0.0, 1, 0, 0, 1)
    world.go(6)
    assert world.cluster.satellites() == []
    assert "give back an Aggregator" in world.last("shrink")


def test_another_flexod_takes_it_over(world):
    world.asking()
    world.go(6)
    world.restart()
    world.go(60)
    assert world.cluster.satellites() == [("t2", 0)]
    assert world.kinds().count("grow") == 1


def test_one_that_slurm_takes_back_comes_again_elsewhere_and_is_no_resize(world):
    leader = world.asking(workers="1-4")
    world.go(6)
    (grant_id,) = leader.own
    before = world.controller.jobs()[0].job.last_resize_at
    world.fail(FailureReason.PREEMPTED, grant_id)
    world.go(20)
    assert "an Aggregator on t2: preempted" in world.last("failure")
    assert world.cluster.satellites() == [("t3", 0)], "t2 is left to the job for which it was taken"
    assert world.controller.jobs()[0].job.last_resize_at == before


def test_one_that_is_gone_before_its_leader_has_said_why_is_not_granted_again_at_once(world):
    leader = world.asking()
    world.go(20)
    (grant_id,) = leader.own
    satellite = leader.own.pop(grant_id)
    del world.cluster.queue[satellite]
    leader.submits = False
    world.go(2)
    world.fail(FailureReason.PREEMPTED, grant_id)
    leader.submits = True
    world.go(20)
    assert world.cluster.satellites() == [("t3", 0)]


def test_a_refused_one_does_not_keep_the_job_from_growing(world):
    leader = world.asking(workers="1-2")
    world.go(4)
    (grant_id,) = leader.own
    world.fail(FailureReason.REFUSED, grant_id)
    world.go(2)
    assert "no further Aggregators in satellites: for" in why(world)
    del world.cluster.queue[51]
    world.go(10)
    assert world.cluster.satellites() == [("t3", 1)]


def test_one_whose_base_is_gone_is_cancelled(world):
    leader = world.asking()
    world.go(6)
    (satellite,) = leader.own.values()
    del world.cluster.queue[1]
    world.leaders.attached.clear()
    world.go(30)
    assert world.cluster.cancelled == [satellite]


def test_no_satellite_of_a_suspended_base_is_kept(world):
    world.asking()
    world.go(6)
    world.cluster.queue[1] = replace(world.cluster.queue[1], state=JobState.SUSPENDED)
    world.go(world.settings.controller.suspend_grace_s + 10)
    assert "give back an Aggregator" in world.last("shrink")


@pytest.mark.parametrize("changes", [{"gpus": 1}, {"cpus": 2}, {"owner": BOB}, {"nodes": ("t3",)}])
def test_a_job_that_holds_more_than_a_cpu_is_no_such_satellite(world, changes):
    leader = world.asking()
    world.go(4)
    (satellite,) = leader.own.values()
    world.cluster.queue[satellite] = change_job(world.cluster.queue[satellite], **changes)
    world.controller.cycle()
    assert [job.job_id for job in world.controller.view().unknown] == [satellite]


def test_the_grant_is_for_one_cpu_with_the_memory_of_one(world):
    world.asking()
    world.go(4)
    (issued,) = world.event_store.grants()
    assert isinstance(issued, IssuedGrant)
    assert (issued.job, issued.workers, issued.resources) == (KEY, 0, Resources(cpus=1))
