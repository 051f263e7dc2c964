"""The loop on a cluster that gives jobs what it is told, without satellites."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from says import says

from flexo.clusters.base import ImpossiblePlan
from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo.config import ControllerSettings, Settings
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.plans import Allocate, Drop, Note, Plan
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement
from flexo_protos.resources import Resources
from flexo_simulation.silence import NoEventStore, NoLeaders


class PlainTrainer:
    def reshare(self, job: TrainingJob, allocation: Allocate) -> TrainingJob:
        return replace(job, shares=allocation.shares)

    def drop(self, job: TrainingJob) -> None:
        pass


@dataclass
class Saying(Policy):
    """A policy that says what it was told to, and remembers what it was shown."""

    name: ClassVar[str] = "saying"

    def __init__(self) -> None:
        self.next = Plan()
        self.seen: list[Jobs] = []

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        self.seen.append(jobs)
        said, self.next = self.next, Plan()
        targets = tuple(
            Target(each.job, placement.put(each.job, each.shares), each.why) for each in said.allocations
        )
        return Targets(targets, notes=said.notes, drops=said.drops)


class World:
    def __init__(self, event_store, dry_run: bool = False) -> None:
        self.now = 100.0
        self.event_store = event_store
        self.policy = Saying()
        self.cluster = SimulatedCluster(make_nodes((NodeGroup(2, 4),)), PlainTrainer(), lambda: self.now)
        self.controller = Controller(
            Settings(controller=ControllerSettings(dry_run=dry_run)),
            self.cluster,
            NoLeaders(),
            event_store,
            policy=self.policy,
            clock=lambda: self.now,
        )
        for number in (1, 2):
            job = TrainingJob(JobKey(number), "ada", Range(1, 4), Resources(1, 1), 90.0)
            self.cluster.submit(job)

    def do(self, *words: Allocate | Drop) -> None:
        self.policy.next = Plan(
            allocations=tuple(word for word in words if isinstance(word, Allocate)),
            drops=tuple(word for word in words if isinstance(word, Drop)),
            notes=(Note(JobKey(1), "a note"),),
        )
        self.now += 10.0
        self.controller.turn()

    def shares(self) -> list[tuple[NodeShare, ...]]:
        return [job.shares for job in self.cluster.observe().training]


@pytest.fixture
def event_store(tmp_path):
    opened = EventStore(tmp_path / "journal.sqlite", 30)
    yield opened
    opened.close()


def give(number: int, **workers: int) -> Allocate:
    shares = tuple(NodeShare(node, count) for node, count in workers.items())
    return Allocate(JobKey(number), shares, "it may")


def test_what_a_plan_allots_is_carried_out_and_recorded(event_store):
    world = World(event_store)
    world.do(give(1, n1=2), Drop(JobKey(2), "late"))
    assert world.shares() == [(NodeShare("n1", 2),)]
    world.do(give(1, n1=1, n2=1))
    world.do(give(1))
    recorded = event_store.events(None, 10)[::-1]
    assert [(event.at, event.kind, event.job) for event in recorded] == [
        (110.0, "allocate", JobKey(1)),
        (110.0, "drop", JobKey(2)),
        (120.0, "allocate", JobKey(1)),
        (130.0, "allocate", JobKey(1)),
    ]
    started, refused, resized, preempted = (event.text for event in recorded)
    assert says(started, "started", "2 on n1", "it may")
    assert says(refused, "refused", "late")
    assert says(resized, "resized", "2 workers", "1 on n1, 1 on n2", "it may")
    assert says(preempted, "preempted", "2 workers", "it may")


def test_a_dry_run_decides_and_records_and_changes_nothing(event_store):
    world = World(event_store, dry_run=True)
    world.do(give(1, n1=2))
    assert world.shares() == [(), ()]
    [event] = event_store.events(1, 10)
    assert says(event.text, "would be started", "2 on n1", "it may")


def test_a_policy_sees_when_it_last_changed_something_and_how_many_have_ended_since():
    world = World(NoEventStore())
    world.do()
    world.do(give(1, n1=2), give(2, n2=1))
    world.do()
    world.cluster.end(JobKey(2))
    world.do()
    world.do(give(1, n1=3))
    world.do()
    told = [(seen.decided_at, seen.ended_count) for seen in world.policy.seen]
    assert told == [(0.0, 0), (0.0, 0), (120.0, 0), (120.0, 1), (120.0, 1), (150.0, 0)]


def test_a_plan_that_cannot_be_is_raised_by_a_turn_and_trouble_for_the_loop():
    world = World(NoEventStore())
    with pytest.raises(ImpossiblePlan, match=r"job 1 .*\b1-4 workers\b.*\b5\b"):
        world.do(give(1, n1=4, n2=1))
    world.policy.next = Plan(allocations=(give(1, n1=5),))
    world.controller.cycle()
    assert "ImpossiblePlan: job 1" in world.controller.status().trouble
    world.controller.cycle()
    assert world.controller.status().trouble == ""


def test_nothing_is_written_for_a_event_store_that_keeps_nothing():
    class Deaf(NoEventStore):
        def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> None:
            raise AssertionError("nobody reads this")

    world = World(Deaf())
    world.do(give(1, n1=2))
    assert world.shares()[0] == (NodeShare("n1", 2),)
