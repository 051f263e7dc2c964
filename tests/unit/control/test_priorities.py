"""Pending jobs put in the policy's order, with a queue in Slurm's place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import BOB, FakeCluster, slurm_job
from says import says

from flexo.clusters.base import Priority
from flexo.clusters.slurm.priorities import BAND
from flexo.control.priorities import MOST_AT_ONCE, MOST_RANKED, Priorities, in_training
from flexo.control.recent_errors import RecentErrors
from flexo.event_store.store import EventStore
from flexo.model.nodes import Partition
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey, JobState, SatelliteTag


class Desk:
    """Priorities on a cluster whose queue a test fills."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.cluster = FakeCluster()
        self.recent_errors = RecentErrors("Slurm")
        self.restart()

    def restart(self, *, dry_run: bool = False) -> None:
        self.event_store = EventStore(self.directory / "journal.sqlite", 30)
        self.priorities = Priorities(self.cluster, self.event_store, self.recent_errors, dry_run=dry_run)

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
def registry(tmp_path):
    return Desk(tmp_path)


def test_jobs_are_put_in_order_at_once_and_then_nothing_is_sent(registry):
    registry.wait(1, 2, 3, 4)
    [text] = registry.follow(3, 1, 4, 2)
    assert says(text, "sets", "3, 1, 4, 2")
    assert registry.queue() == [3, 1, 4, 2]
    assert registry.follow(3, 1, 4, 2) == []
    assert len(registry.cluster.prioritized) == 1


def test_only_what_changes_is_sent(registry):
    registry.wait(1, 2, 3, 4)
    registry.follow(1, 2, 3, 4)
    registry.wait(5)
    registry.follow(1, 5, 2, 3, 4)
    assert [each.job for each in registry.cluster.prioritized[-1]] == ["5"]
    assert registry.queue() == [1, 5, 2, 3, 4]
    registry.follow(4, 1, 5, 2, 3)
    assert [each.job for each in registry.cluster.prioritized[-1]] == ["4"]


def test_held_jobs_satellites_running_jobs_and_those_that_wait_for_something_else_are_left_alone(registry):
    registry.wait(1, 2)
    registry.wait(3, priority=0, reason="JobHeldUser")
    registry.wait(4, satellite=SatelliteTag(JobKey(9), "g", 1))
    registry.wait(5, reason="Dependency")
    registry.wait(6, state=JobState.RUNNING)
    registry.follow(6, 5, 4, 3, 2, 1)
    assert [each.job for each in registry.cluster.prioritized[-1]] == ["2", "1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_priority_that_somebody_else_changes_stays_and_is_said_once(registry, restarts):
    registry.wait(1, 2, 3)
    registry.follow(1, 2, 3)
    registry.follow(1, 2, 3)
    registry.hand(3, 4_294_967_000)
    if restarts:
        registry.restart()
    [text] = registry.follow(1, 2, 3)
    assert says(text, "priority", 4294967000)
    for _ in range(3):
        assert registry.follow(2, 1, 3) == [] or registry.queue() == [3, 2, 1]
    assert registry.cluster.queue[3].priority == 4_294_967_000


def test_a_job_that_was_held_and_released_is_put_in_order_again(registry):
    registry.wait(1, 2)
    for _ in range(2):
        registry.follow(1, 2)
    registry.hand(2, 0)
    registry.follow(1, 2)
    registry.hand(2, 17)
    for _ in range(2):
        assert not any("left alone" in text for text in registry.follow(2, 1))
    assert registry.queue() == [2, 1]


def test_a_refusal_is_said_and_tried_again_after_a_minute(registry):
    registry.wait(1, 2)
    registry.cluster.refuses = "scontrol: Access/permission denied for job 1"
    [text] = registry.follow(2, 1)
    assert says(text, "Slurm", "Access/permission denied for job 1")
    assert "denied" in registry.recent_errors.recent(registry.cluster.now)
    registry.cluster.refuses = ""
    assert registry.follow(2, 1) == []
    registry.cluster.now += 60.0
    registry.follow(2, 1)
    assert registry.queue() == [2, 1]


def test_what_was_set_before_another_was_refused_is_nobody_s_hand(registry):
    registry.wait(1, 2, 3)
    registry.follow(1, 2, 3)
    was_set = registry.cluster.queue[1].priority
    registry.cluster.refuses = "scontrol: Access/permission denied for job 2"
    registry.follow(3, 2, 1)
    registry.cluster.refuses = ""
    registry.hand(1, was_set - 100)  # that one was set all the same
    assert not any("left alone" in text for text in registry.follow(3, 2, 1))
    registry.cluster.now += 60.0
    registry.follow(3, 2, 1)
    assert registry.queue() == [3, 2, 1]


def test_a_dry_run_says_what_it_would_do_once_and_does_nothing(registry):
    registry.restart(dry_run=True)
    registry.wait(1, 2)
    [text] = registry.follow(2, 1)
    assert says(text, "would", "2, 1")
    assert registry.follow(2, 1) == []
    assert registry.cluster.prioritized == []


def test_after_a_restart_nothing_is_set_again(registry):
    registry.wait(1, 2, 3)
    registry.follow(3, 2, 1)
    registry.event_store.set_priorities((), [JobKey(1), JobKey(2), JobKey(3)])
    registry.restart()  # killed before it was written down
    assert registry.follow(3, 2, 1) == []
    registry.follow(3, 2, 1)
    registry.restart()
    assert registry.follow(3, 2, 1) == []


def test_many_jobs_take_several_cycles_the_first_first_and_the_last_keep_slurms_order(registry):
    numbers = list(range(1, MOST_RANKED + 50))
    registry.wait(*numbers)
    order = numbers[::-1]
    registry.follow(*order)
    assert [int(each.job) for each in registry.cluster.prioritized[-1]] == order[:MOST_AT_ONCE]
    for _ in range(-(-MOST_RANKED // MOST_AT_ONCE)):
        registry.follow(*order)
    assert registry.queue() == [*order[:MOST_RANKED], *sorted(order[MOST_RANKED:])]
    assert all(len(sent) <= MOST_AT_ONCE for sent in registry.cluster.prioritized)


def test_what_is_remembered_of_jobs_that_wait_no_more_is_forgotten(registry):
    registry.wait(1, 2)
    for _ in range(2):
        registry.follow(1, 2)
    assert registry.event_store.priorities().keys() == {JobKey(1), JobKey(2)}
    del registry.cluster.queue[1]
    registry.follow(2)
    assert registry.event_store.priorities() == {JobKey(2): registry.cluster.queue[2].priority}


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


def test_the_first_priority_of_many_is_in_the_band(registry):
    registry.wait(1)
    registry.follow(1)
    assert registry.cluster.prioritized == [(Priority("1", registry.cluster.queue[1].priority),)]
    assert registry.cluster.queue[1].priority > BAND.lowest
