"""The event store says why a job waits and why it has no more: once when the reason begins, with the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import KEY, World
from event_recorder import Recorder
from flat_records import make_job, make_node
from says import says

from flexo.clusters.base import ClusterState
from flexo.control.due_events import EVENT_EVERY_S
from flexo.control.reasons import MOST_IN_A_CYCLE, Reasons
from flexo.control.safeguards import STARTUP_BARRIER_S, StarvationGuard
from flexo.event_store.search import Search
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.queue import ElasticRequest, JobKey, JobState, Principal, QueuedJob, WaitReason
from flexo.model.ranges import Range


def pending(job_id: int, reason: str = "Resources", wait: WaitReason = WaitReason.RESOURCES) -> QueuedJob:
    return make_job(
        job_id=job_id, owner=Principal("9"), user="eve", partitions=("train",), state=JobState.PENDING,
        wait=wait, reason=reason, priority=1, submitted_at=0.0, started_at=None, time_limit_s=None, nodes=(),
        num_nodes=1, elastic=ElasticRequest(Range(2, 8)),
    )  # fmt: skip


def state(at: float, *jobs: QueuedJob) -> ClusterState:
    nodes = (make_node("n1", 8, 6, 8, 6, 8000, 0, frozenset({"train"})),)
    return ClusterState(at, nodes, (), jobs, 0.1)


def looked(reasons: Reasons, recorder: Recorder, at: float, *jobs: QueuedJob) -> dict[JobKey, int]:
    return dict(reasons.look(state(at, *jobs), (), (), recorder))


def test_a_job_that_waits_has_one_event_which_says_for_what_and_names_the_job() -> None:
    reasons, recorder = Reasons(), Recorder()
    found = [looked(reasons, recorder, at, pending(7)) for at in (0.0, 5.0, 10.0)]
    assert found == [{}, {JobKey(7): 1}, {JobKey(7): 1}]
    (event,) = recorder.events
    assert (event.kind, event.job) == ("wait", JobKey(7))
    assert says(event.text, "for resources", "Resources")


def test_a_reason_that_passes_at_once_is_no_event() -> None:
    reasons, recorder = Reasons(), Recorder()
    looked(reasons, recorder, 0.0, pending(7, "None", WaitReason.OTHER))
    looked(reasons, recorder, 5.0, pending(7, "Priority", WaitReason.TURN))
    assert recorder.events == []


def test_a_new_reason_is_a_new_event_and_the_old_one_explains_it_at_no_time() -> None:
    reasons, recorder = Reasons(), Recorder()
    turn = pending(7, "Priority", WaitReason.TURN)
    told = [pending(7), pending(7), turn, turn]
    found = [looked(reasons, recorder, 5.0 * number, job) for number, job in enumerate(told)]
    assert found == [{}, {JobKey(7): 1}, {}, {JobKey(7): 2}]
    assert says(recorder.events[1].text, "for its turn", "Priority")


def test_a_reason_that_goes_back_and_forth_fills_no_disk() -> None:
    reasons, recorder = Reasons(), Recorder()
    hours = 4
    kinds = (pending(7), pending(7), pending(7, "Priority"), pending(7, "Priority"))
    for number in range(hours * 720):
        looked(reasons, recorder, 5.0 * number, kinds[number % 4])
    assert hours * 3600 / EVENT_EVERY_S <= len(recorder.events) <= hours * 3600 / EVENT_EVERY_S + 6


def test_thousands_of_jobs_are_told_of_a_few_in_each_cycle() -> None:
    reasons, recorder = Reasons(), Recorder()
    jobs = [pending(number) for number in range(1, 3 * MOST_IN_A_CYCLE)]
    for number in range(3):
        looked(reasons, recorder, 5.0 * number, *jobs)
    assert len(recorder.events) == 2 * MOST_IN_A_CYCLE


def test_a_reason_that_could_not_be_written_has_no_event_until_it_can() -> None:
    reasons, recorder = Reasons(), Recorder()
    recorder.full = True
    assert [looked(reasons, recorder, at, pending(7)) for at in (0.0, 5.0)] == [{}, {}]
    recorder.full = False
    assert looked(reasons, recorder, 10.0, pending(7)) == {JobKey(7): 1}


def test_a_requeued_job_has_reasons_of_its_own() -> None:
    reasons, recorder = Reasons(), Recorder()
    for at in (0.0, 5.0):
        looked(reasons, recorder, at, pending(7))
    assert looked(reasons, recorder, 10.0, replace(pending(7), restart_count=1)) == {}


def texts(world: World, key: JobKey = KEY) -> list[str]:
    """The reasons of a job in the event store, oldest first."""
    events = world.event_store.events(key.job_id, 1000)
    return [event.text for event in reversed(events) if event.kind == "wait"]


def shown(world: World, key: JobKey = KEY) -> str:
    """The text of the event that flexod names for the job's reason; "": it names none."""
    number = world.controller.view().told.jobs.get(key, 0)
    query = "SELECT text FROM event WHERE id = ?"
    found = world.event_store._guarded(lambda connection: connection.execute(query, (number,)).fetchone())
    return str(found[0][0]) if number and found else ""


def test_a_running_job_s_reason_is_an_event_until_the_job_grows(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number, node in enumerate(("t1", "t2", "t3")):
        world.rigid(60 + number, 3, node)
        world.rigid(70 + number, 1 if node != "t1" else 0, node)
    world.job(1, "1-4")
    world.go(200)
    assert says(shown(world), 1, "of", 4, "no idle")
    once = texts(world)
    world.go(200)
    assert texts(world) == once
    del world.cluster.queue[61]
    world.go(200)
    assert "no idle" not in shown(world)


def test_a_decision_explains_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job(1, "1-4")
    world.go(60)
    assert world.kinds()[-1] == "grow"
    assert shown(world) == ""
    world.controller.scale(KEY, 2)
    world.go(60)
    assert not any("capped" in text for text in texts(world))


def test_a_job_whose_leader_stays_away_says_so_and_one_that_flexod_has_just_begun_to_await_does_not(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.job(1, "1-20")
    world.go(20)
    world.leaders.attached.clear()
    world.restart()
    world.go(STARTUP_BARRIER_S - 5)
    assert not any("leader" in text for text in texts(world))
    world.go(30)
    assert says(shown(world), "no leader")


def test_who_is_kept_nothing_for_any_longer_has_the_event_in_its_history() -> None:
    guard = StarvationGuard()
    assert guard.give_up([JobKey(7, 1)], 60.0, 0.0) == []
    (event,) = guard.give_up([JobKey(7, 1)], 60.0, 61.0)
    assert (event.job, guard.passed_over(62.0)) == (JobKey(7, 1), {7})
    assert says(event.text, "job 7", "nothing is kept")


@pytest.mark.parametrize("spoil", [lambda path: None, lambda path: path.unlink()])
def test_a_store_says_the_numbers_of_what_it_has_written(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "events.sqlite"
    store = EventStore(path, 30.0)
    events = tuple(Event(1.0, "wait", JobKey(number), f"text {number}") for number in range(5))
    store.record(1.0, events[:2])
    spoil(path)
    numbers = store.record(1.0, events[2:])
    found = dict(store.find(Search()).events)
    assert [found[number] for number in numbers] == list(events[2:])
    store.close()
