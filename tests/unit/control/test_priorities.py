"""Pending jobs put in the policy's order, with a queue in Slurm's place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import BOB, FakeCluster, slurm_job

from flexo.clusters.base import Priority
from flexo.clusters.slurm.priority_band import LOWEST
from flexo.control.priorities import MOST_AT_ONCE, MOST_RANKED, Priorities, in_training
from flexo.control.refusals import Refusals
from flexo.journal import Journal
from flexo.model.nodes import Partition
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey, JobState, SatelliteTag


class Desk:
    """Priorities on a cluster whose queue a test fills."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.cluster = FakeCluster()
        self.refusals = Refusals("Slurm")
        self.restart()

    def restart(self, *, dry_run: bool = False) -> None:
        self.journal = Journal(self.directory / "journal.sqlite", 30)
        self.priorities = Priorities(self.cluster, self.journal, self.refusals, dry_run=dry_run)

    def wait(self, *numbers: int, **changes) -> None:
        for number in numbers:
            pending = {"state": JobState.PENDING, "reason": "Priority", "priority": 1000 - number}
            self.cluster.add(slurm_job(number, BOB, **(pending | changes)))

    def follow(self, *order: int) -> list[str]:
        """One cycle; what it says."""
        keys = [JobKey(number) for number in order]
        jobs = tuple(self.cluster.queue.values())
        self.cluster.now += 2.0
        return [event.text for event in self.priorities.follow(keys, jobs, self.cluster.now)]

    def hand(self, number: int, priority: int) -> None:
        self.cluster.queue[number] = replace(self.cluster.queue[number], priority=priority)

    def queue(self) -> list[int]:
        """In Slurm's order."""
        return sorted(self.cluster.queue, key=lambda number: -self.cluster.queue[number].priority)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_jobs_are_put_in_order_at_once_and_then_nothing_is_sent(desk):
    desk.wait(1, 2, 3, 4)
    assert desk.follow(3, 1, 4, 2) == ["sets the priority of pending jobs, by the policy's order: 3, 1, 4, 2"]
    assert desk.queue() == [3, 1, 4, 2]
    assert desk.follow(3, 1, 4, 2) == []
    assert len(desk.cluster.prioritized) == 1


def test_only_what_changes_is_sent(desk):
    desk.wait(1, 2, 3, 4)
    desk.follow(1, 2, 3, 4)
    desk.wait(5)
    desk.follow(1, 5, 2, 3, 4)
    assert [each.job for each in desk.cluster.prioritized[-1]] == ["5"]
    assert desk.queue() == [1, 5, 2, 3, 4]
    desk.follow(4, 1, 5, 2, 3)
    assert [each.job for each in desk.cluster.prioritized[-1]] == ["4"]


def test_held_jobs_satellites_running_jobs_and_those_that_wait_for_something_else_are_left_alone(desk):
    desk.wait(1, 2)
    desk.wait(3, priority=0, reason="JobHeldUser")
    desk.wait(4, satellite=SatelliteTag(JobKey(9), "g", 1))
    desk.wait(5, reason="Dependency")
    desk.wait(6, state=JobState.RUNNING)
    desk.follow(6, 5, 4, 3, 2, 1)
    assert [each.job for each in desk.cluster.prioritized[-1]] == ["2", "1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_priority_that_somebody_else_changes_stays_and_is_said_once(desk, restarts):
    desk.wait(1, 2, 3)
    desk.follow(1, 2, 3)
    desk.follow(1, 2, 3)
    desk.hand(3, 4_294_967_000)
    if restarts:
        desk.restart()
    assert desk.follow(1, 2, 3) == ["somebody set its priority to 4294967000: it is left alone"]
    for _ in range(3):
        assert desk.follow(2, 1, 3) == [] or desk.queue() == [3, 2, 1]
    assert desk.cluster.queue[3].priority == 4_294_967_000


def test_a_job_that_was_held_and_released_is_put_in_order_again(desk):
    desk.wait(1, 2)
    for _ in range(2):
        desk.follow(1, 2)
    desk.hand(2, 0)
    desk.follow(1, 2)
    desk.hand(2, 17)
    for _ in range(2):
        assert not any("left alone" in text for text in desk.follow(2, 1))
    assert desk.queue() == [2, 1]


def test_a_refusal_is_said_and_tried_again_after_a_minute(desk):
    desk.wait(1, 2)
    desk.cluster.refuses = "scontrol: Access/permission denied for job 1"
    assert desk.follow(2, 1) == ["Slurm refused it: scontrol: Access/permission denied for job 1"]
    assert "denied" in desk.refusals.recent(desk.cluster.now)
    desk.cluster.refuses = ""
    assert desk.follow(2, 1) == []
    desk.cluster.now += 60.0
    desk.follow(2, 1)
    assert desk.queue() == [2, 1]


def test_what_was_set_before_another_was_refused_is_nobody_s_hand(desk):
    desk.wait(1, 2, 3)
    desk.follow(1, 2, 3)
    was_set = desk.cluster.queue[1].priority
    desk.cluster.refuses = "scontrol: Access/permission denied for job 2"
    desk.follow(3, 2, 1)
    desk.cluster.refuses = ""
    desk.hand(1, was_set - 100)  # that one was set all the same
    assert not any("left alone" in text for text in desk.follow(3, 2, 1))
    desk.cluster.now += 60.0
    desk.follow(3, 2, 1)
    assert desk.queue() == [3, 2, 1]


def test_a_dry_run_says_what_it_would_do_once_and_does_nothing(desk):
    desk.restart(dry_run=True)
    desk.wait(1, 2)
    assert desk.follow(2, 1) == ["would set the priority of pending jobs, by the policy's order: 2, 1"]
    assert desk.follow(2, 1) == []
    assert desk.cluster.prioritized == []


def test_after_a_restart_nothing_is_set_again(desk):
    desk.wait(1, 2, 3)
    desk.follow(3, 2, 1)
    desk.journal.set_priorities((), [JobKey(1), JobKey(2), JobKey(3)])
    desk.restart()  # killed before it was written down
    assert desk.follow(3, 2, 1) == []
    desk.follow(3, 2, 1)
    desk.restart()
    assert desk.follow(3, 2, 1) == []


def test_many_jobs_take_several_cycles_the_first_first_and_the_last_keep_slurms_order(desk):
    numbers = list(range(1, MOST_RANKED + 50))
    desk.wait(*numbers)
    order = numbers[::-1]
    desk.follow(*order)
    assert [int(each.job) for each in desk.cluster.prioritized[-1]] == order[:MOST_AT_ONCE]
    for _ in range(-(-MOST_RANKED // MOST_AT_ONCE)):
        desk.follow(*order)
    assert desk.queue() == [*order[:MOST_RANKED], *sorted(order[MOST_RANKED:])]
    assert all(len(sent) <= MOST_AT_ONCE for sent in desk.cluster.prioritized)


def test_what_is_remembered_of_jobs_that_wait_no_more_is_forgotten(desk):
    desk.wait(1, 2)
    for _ in range(2):
        desk.follow(1, 2)
    assert desk.journal.priorities().keys() == {JobKey(1), JobKey(2)}
    del desk.cluster.queue[1]
    desk.follow(2)
    assert desk.journal.priorities() == {JobKey(2): desk.cluster.queue[2].priority}


def test_jobs_that_may_start_only_where_training_does_are_in_training():
    nodes, servers = frozenset({"t1"}), frozenset({"i1"})
    partitions = (
        Partition("train", 10, nodes),
        Partition("debug", 10, nodes | {"x"}),
        Partition("flex", 1, nodes),
        Partition("infer", 20, servers),
        Partition("borrowed", 1, servers),
    )
    wanted = {
        "train": True,
        "train,debug": True,
        "train,borrowed": True,
        "train,infer": False,
        "infer": False,
        "flex": False,
    }
    jobs = tuple(
        slurm_job(number, state=JobState.PENDING, partitions=tuple(names.split(",")))
        for number, names in enumerate(wanted)
    )
    seen = Snapshot(0.0, (), partitions, jobs, (), "flex", borrowed_partition="borrowed")
    assert {job.key.job_id: job.key in in_training(seen) for job in jobs} == dict(enumerate(wanted.values()))


def test_the_first_priority_of_many_is_in_the_band(desk):
    desk.wait(1)
    desk.follow(1)
    assert desk.cluster.prioritized == [(Priority("1", desk.cluster.queue[1].priority),)]
    assert desk.cluster.queue[1].priority > LOWEST
