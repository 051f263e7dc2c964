"""What docs/howto/operations.md says of failures of Slurm, nodes and jobs, on a cluster that fails so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import BOB, KEY, TIME_LIMIT_S, FakeCluster, World, slurm_job
from says import says
from slurm_says import node_as_slurm_says

from flexo.clusters.base import ClusterState
from flexo.model.elastic import FailureReason
from flexo.model.queue import ElasticRequest, JobKey, JobState, SatelliteTag
from flexo.model.ranges import Range


class FailingCluster(FakeCluster):
    """Nodes that are down or gone, partitions that are down or gone."""

    def __init__(self) -> None:
        super().__init__()
        self.unusable: dict[str, str] = {}
        self.partition_down = self.partition_gone = False

    def observe(self) -> ClusterState:
        state = super().observe()
        nodes = tuple(
            node_as_slurm_says(
                replace(
                    node,
                    unusable=self.unusable.get(node.name, ""),
                    partitions=node.partitions - ({"flex"} if self.partition_gone else set()),
                )
            )
            for node in state.nodes
        )
        partitions = tuple(
            replace(each, up=not (self.partition_down and each.name == "flex"))
            for each in state.partitions
            if each.name != "flex" or not self.partition_gone
        )
        return replace(state, nodes=nodes, partitions=partitions)


class FailingWorld(World):
    cluster: FailingCluster

    def restart(self) -> None:
        if not isinstance(self.cluster, FailingCluster):
            self.cluster = FailingCluster()
        super().restart()

    def satellite_id(self) -> int:
        (job_id,) = (job.job_id for job in self.cluster.queue.values() if job.satellite)
        return job_id

    def change(self, job_id: int, **changes: object) -> None:
        self.cluster.add(replace(self.cluster.queue[job_id], **changes))


@pytest.fixture
def world(tmp_path: Path) -> FailingWorld:
    return FailingWorld(tmp_path)


# slurmctld, and the way to it


@pytest.mark.parametrize("due_in_s", [10, 60, 140])
def test_a_minute_without_slurmctld_costs_no_satellite(world: FailingWorld, due_in_s: int) -> None:
    leader = world.job()
    world.go(20)
    satellites = dict(leader.own)
    # wherever the minute falls: the lease is extended when less than half of it is left
    world.go(TIME_LIMIT_S / 2 - due_in_s)
    silence = "`squeue` did not answer within 20 s"
    world.cluster.unreachable = silence
    world.go(60)
    assert says(world.controller.status().trouble, "Slurm", "`squeue` did not answer")
    world.cluster.unreachable = ""
    world.go(2 * TIME_LIMIT_S)
    assert leader.own == satellites
    assert world.controller.status().trouble == ""
    events = world.event_store.events(None, 100)
    well, trouble = (event.text for event in events if event.kind == "trouble")
    assert says(well, "well again")
    assert says(trouble, "Slurm", silence)


def test_a_queue_that_is_empty_for_one_look_as_slurmctld_recovers_costs_nothing(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    satellites, queue = dict(leader.own), dict(world.cluster.queue)
    told = len(leader.told)
    world.cluster.queue.clear()
    world.controller.cycle()
    world.cluster.queue.update(queue)
    world.go(100)
    assert leader.own == satellites
    assert world.cluster.cancelled == []
    assert all({offer.grant_id for offer in offers} == set(satellites) for offers in leader.told[told:])


# nodes


@pytest.mark.parametrize(
    ("flag", "said"),
    [("DRAIN", "drained"), ("MAINT", "in maintenance"), ("REBOOT_REQUESTED", "to be rebooted")],
)
def test_a_node_that_has_to_be_free_is_left_and_gets_nothing_new(
    world: FailingWorld, flag: str, said: str
) -> None:
    leader = world.job()
    world.go(20)
    assert world.cluster.satellites() == [("t2", 3)]
    world.cluster.unusable["t2"] = f"MIXED+{flag}"
    world.go(4)
    assert "t2" not in {node for node, _ in world.cluster.satellites()}
    assert "t2" in world.last("shrink")
    assert said in world.last("shrink")
    world.go(120)
    assert world.cluster.satellites() == [("t3", 3)]
    assert leader.report().training_workers == 4


def test_a_node_that_goes_down_takes_its_satellite_along_and_gets_nothing_until_it_is_up(
    world: FailingWorld,
) -> None:
    leader = world.job()
    world.go(20)
    world.cluster.unusable["t2"] = world.cluster.unusable["t3"] = "DOWN: Not responding"
    world.fail(FailureReason.LOST, next(iter(leader.own)))  # Slurm ends it as NODE_FAIL
    world.go(300)
    assert world.cluster.satellites() == [("t1", 3)]
    assert world.kinds().count("failure") == 1
    assert world.controller.status().trouble == ""


def test_a_node_that_is_gone_from_the_configuration_takes_its_grant_along(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    del world.cluster.sizes["t2"], world.cluster.queue[world.satellite_id()]
    leader.own.clear()
    world.go(100)
    assert world.controller.status().trouble == ""
    assert world.cluster.satellites() == [("t3", 3)]


# partitions


@pytest.mark.parametrize("how", ["partition_down", "partition_gone"])
def test_without_the_satellites_partition_nothing_is_granted_and_leases_stand(
    world: FailingWorld, how: str
) -> None:
    first = world.job(1, "1-4")
    world.go(20)
    setattr(world.cluster, how, True)
    satellites = dict(first.own)
    second = world.job(2, "1-4", "t3")
    world.go(TIME_LIMIT_S + 100)
    assert first.own == satellites
    assert second.own == {}
    assert world.controller.status().trouble == ""
    setattr(world.cluster, how, False)
    world.go(60)
    assert second.own


# what administrators and users do to jobs


def test_the_satellites_of_a_suspended_base_run_out_and_come_again(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    world.change(1, state=JobState.SUSPENDED)
    world.go(TIME_LIMIT_S + 20)
    assert world.cluster.satellites() == []
    leader.own.clear()
    world.change(1, state=JobState.RUNNING)
    world.go(100)
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_suspended_satellite_is_given_back_by_its_leader_and_tried_again_later(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    (grant_id,) = leader.own
    world.change(world.satellite_id(), state=JobState.SUSPENDED)
    world.go(6)
    world.fail(FailureReason.LOST, grant_id)  # its agent is silent: the leader cancels it
    world.go(200)
    assert world.controller.status().trouble == ""
    assert leader.report().training_workers == 4
    assert grant_id not in leader.own


def test_a_range_that_an_administrator_changes_counts_at_once(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    world.change(1, elastic=ElasticRequest(Range(1, 2)))
    world.go(60)
    assert leader.report().training_workers <= 2
    world.change(1, elastic=ElasticRequest(Range(1, 8)))
    world.go(60)
    assert leader.report().training_workers == 8


def test_a_base_that_is_not_elastic_any_more_keeps_what_it_has_for_the_rest_of_its_lease(
    world: FailingWorld,
) -> None:
    world.job()
    world.go(20)
    world.change(1, elastic=None)
    world.go(60)
    assert world.cluster.satellites() == [("t2", 3)]
    assert says(" ".join(world.controller.explain(1)), "not elastic")
    world.go(TIME_LIMIT_S)
    assert world.cluster.satellites() == []
    assert world.cluster.cancelled == []


def test_a_satellite_whose_comment_its_user_removes_is_an_ordinary_job(world: FailingWorld) -> None:
    leader = world.job()
    world.go(20)
    job_id, report = world.satellite_id(), leader.report()
    leader.report = lambda: report
    world.change(job_id, satellite=None)
    world.go(10)
    assert "has left t2, unasked" in world.last("lost")
    world.go(TIME_LIMIT_S + 60)
    assert job_id not in world.cluster.cancelled
    assert all(extended != job_id for extended, _ in world.cluster.extended)


def test_satellites_of_a_base_that_never_was_are_ended(world: FailingWorld) -> None:
    for number, base in ((700, JobKey(99)), (701, JobKey(98, 3))):
        tag = SatelliteTag(base, f"g{number}", 1)
        plain = slurm_job(number, BOB, partitions=("flex",), nodes=("t2",), time_limit_s=9999)
        world.cluster.add(replace(plain, satellite=tag))
    world.go(6)
    assert world.cluster.cancelled == [700, 701]


def test_a_job_of_a_number_that_another_had_inherits_no_cap(world: FailingWorld) -> None:
    world.job()
    world.go(20)
    world.controller.scale(KEY, 2)
    world.go(20)
    for job_id in list(world.cluster.queue):
        del world.cluster.queue[job_id]
    world.leaders.attached.clear()
    world.go(700)
    again = world.job()  # Slurm counts from FirstJobId again
    world.go(60)
    assert again.report().training_workers == 4


def test_tasks_of_a_job_array_are_jobs_of_their_own(world: FailingWorld) -> None:
    # squeue gives a running task an id of its own, and what waits of the array that of the array
    first, second = world.job(501, "1-2", "t1"), world.job(502, "1-2", "t1")
    world.rigid(500, gpus=9)
    world.go(40)
    assert (first.report().training_workers, second.report().training_workers) == (2, 2)
    del world.cluster.queue[501], world.leaders.attached[JobKey(501)]
    world.go(40)
    assert second.report().training_workers == 2
    assert len(world.cluster.satellites()) == 1
