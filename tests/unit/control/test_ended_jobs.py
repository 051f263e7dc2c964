"""Jobs that have ended: an event says how, and their satellites are not called lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import KEY, FakeCluster, World
from says import says

from flexo.clusters.base import ClusterUnreachable, JobEnd
from flexo.controller import Controller
from flexo.event_store.search import Search
from flexo.model.measured import TriedBatches
from flexo.model.queue import JobKey, JobState


class KnowingCluster(FakeCluster):
    """One that may know how jobs ended."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[JobKey, JobEnd] = {}
        self.silent = 0
        """So many questions are not answered."""
        self.asked: list[tuple[JobKey, ...]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        self.asked.append(tuple(keys))
        assert self.may_answer.wait(60)
        if self.silent:
            self.silent -= 1
            raise ClusterUnreachable("as the test says")
        return {key: self.known[key] for key in keys if key in self.known}


class EndingWorld(World):
    cluster: KnowingCluster

    def restart(self) -> None:
        if not isinstance(self.cluster, KnowingCluster):
            self.cluster = KnowingCluster()
        super().restart()

    def end(self, job_id: int = 1, end: JobEnd | None = None) -> None:
        """The base and its satellites are gone, and so is the leader."""
        for other in list(self.cluster.queue.values()):
            if other.satellite is not None and other.satellite.base.job_id == job_id:
                del self.cluster.queue[other.job_id]
        key = self.cluster.queue.pop(job_id).key
        self.leaders.attached.pop(key, None)
        if end is not None:
            self.cluster.known[key] = end

    def facts(self, job_id: int = 1) -> dict[str, object]:
        ((number, _),) = self.event_store.find(Search(job_id=job_id, kinds=("end",))).events
        return dict(json.loads(self.event_store.facts_of((number,))[number]))


@pytest.fixture
def world(tmp_path: Path) -> EndingWorld:
    return EndingWorld(tmp_path)


def test_an_event_says_how_a_job_ended_and_what_it_had(world: EndingWorld) -> None:
    leader = world.job()
    leader.says = {"resizes": 2, "paused_s": 1.5, "tried": TriedBatches(9, 0, worker_s=2.5)}
    world.go(50)
    leader.says = {}  # another leader has taken over, and does not know yet
    world.go(10)
    world.end(1, JobEnd("FAILED", 950.0, world.cluster.now, "3:0", "slurmctld"))
    world.go(20)
    assert world.kinds().count("end") == 1
    said = world.last("end")
    for fact in ("FAILED", "3:0", "1 worker in its base on t1", "4 workers"):
        assert fact in said
    assert world.facts() == {
        "state": "FAILED",
        "exit_code": "3:0",
        "started_at": 950.0,
        "ended_at": 1060.0,
        "known_by": "slurmctld",
        "base_workers": 1,
        "most_workers": 4,
        "gpus_per_worker": 1,
        "resizes": 2,
        "paused_s": 1.5,
        "tried_worker_s": 2.5,
        "user": "ada",
        "account": "",
    }
    world.go(200)
    assert world.kinds().count("end") == 1


def test_a_job_that_never_grew_has_an_end_too(world: EndingWorld) -> None:
    world.job(workers="1-1")
    world.go(20)
    world.end(1, JobEnd("TIMEOUT", 950.0, 1020.0, "0:0", "slurmctld"))
    world.go(20)
    assert "TIMEOUT" in world.last("end")
    assert world.facts()["most_workers"] == 1


def test_flexod_looks_soon_until_an_end_is_written_down_and_is_woken_by_the_answer(tmp_path: Path) -> None:
    """Slurm answers beside the loop; without elastic jobs the loop rests for 30 s."""
    world = EndingWorld(tmp_path)
    beside = ThreadPoolExecutor(1)
    world.controller = Controller(
        world.settings,
        world.cluster,
        world.leaders,
        world.event_store,
        clock=world.cluster.clock,
        beside=beside,
    )
    world.job()
    world.controller.cycle()
    world.end(1, JobEnd("COMPLETED", 950.0, 1000.0, "0:0", "slurmctld"))
    world.cluster.may_answer.clear()
    for _ in range(3):
        world.controller.cycle()
        assert world.controller.interval_s == 2.0
    world.leaders.wake.clear()
    world.cluster.may_answer.set()
    assert world.leaders.wake.wait(60)
    world.controller.cycle()
    assert "COMPLETED" in world.last("end")
    assert world.controller.interval_s == 30.0
    beside.shutdown()


def test_a_queue_that_is_empty_for_one_look_ends_no_job(world: EndingWorld) -> None:
    world.job()
    world.go(20)
    queue = dict(world.cluster.queue)
    world.cluster.queue.clear()
    world.controller.cycle()
    world.cluster.queue.update(queue)
    world.go(20)
    assert "end" not in world.kinds()
    assert world.cluster.asked == []


def test_a_requeued_job_has_an_end_of_its_first_run(world: EndingWorld) -> None:
    world.job()
    world.go(20)
    base = world.cluster.queue[1]
    world.end(1, JobEnd("REQUEUED", known_by="slurmctld"))
    world.cluster.add(replace(base, state=JobState.PENDING, restart_count=1, nodes=(), started_at=None))
    world.go(20)
    (event,) = (event for event in world.event_store.events(1, 100) if event.kind == "end")
    assert event.job == KEY
    assert "REQUEUED" in event.text


def test_where_nobody_knows_how_it_ended_that_is_said(world: EndingWorld) -> None:
    world.job()
    world.go(20)
    world.end()
    world.go(20)
    assert world.kinds().count("end") == 1
    assert world.facts()["state"] == ""
    assert says(world.last("end"), "1 worker", "base on t1")


def test_a_slurmctld_that_does_not_answer_is_asked_again(world: EndingWorld) -> None:
    world.job()
    world.go(20)
    world.cluster.silent = 3
    world.end(1, JobEnd("COMPLETED", 950.0, 1020.0, "0:0", "slurmctld"))
    world.go(30)
    assert "COMPLETED" in world.last("end")
    assert len(world.cluster.asked) == 4


def test_what_ended_while_flexod_was_away_is_asked_for_after_its_start(world: EndingWorld) -> None:
    world.job()
    world.job(2, node="t3")
    world.go(40)
    world.end(1, JobEnd("COMPLETED", 950.0, 1100.0, "0:0", "accounting"))
    world.cluster.pass_time(100)
    world.restart()
    world.go(20)
    assert "COMPLETED" in world.last("end")
    assert "accounting" in world.last("end")
    assert "end" not in world.kinds(2), "that one runs"
    world.restart()
    world.go(20)
    assert world.kinds().count("end") == 1, "it is known now"


def test_satellites_that_end_before_their_job_does_while_no_leader_speaks_are_not_lost(
    world: EndingWorld,
) -> None:
    """As when flexod was away and the leader has said goodbye to nobody."""
    leader = world.job()
    world.go(20)
    assert leader.own
    world.restart()
    del world.leaders.attached[KEY]
    world.go(4)
    for satellite in leader.own.values():
        del world.cluster.queue[satellite]
    world.go(10)
    assert "lost" not in world.kinds()
    world.end(1, JobEnd("COMPLETED", 950.0, 1030.0, "0:0", "slurmctld"))
    world.go(10)
    assert "lost" not in world.kinds()
    assert "its job ends" in world.last("left")


@pytest.mark.parametrize("speaks", [True, False])
def test_satellites_of_a_job_that_runs_on_are_lost_at_once_or_after_a_minute(
    world: EndingWorld, speaks: bool
) -> None:
    leader = world.job()
    world.go(20)
    if not speaks:
        del world.leaders.attached[KEY]
        world.go(2)
    for satellite in leader.own.values():
        del world.cluster.queue[satellite]
    leader.own.clear()
    world.go(4)
    assert ("lost" in world.kinds()) is speaks
    world.go(70)
    assert world.kinds().count("lost") == 1
