"""flexod notices jobs that commit no batch for long, and leaves those alone that never do or often rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import World
from event_recorder import Recorder
from says import says

from flexo.control.reasons import Silences
from flexo.control.silence import SILENT_S, SilentJobs
from flexo.control.views import JobView
from flexo.model.elastic import ElasticJob, LeaderReport
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo_protos.resources import Resources

KEY = JobKey(17)
TRAINS = LeaderReport(
    key=KEY, owner=Principal("9"), workers=Range(1, 4), shape=Resources(1), base_nodes=("t1",),
    training_workers=2, generation=1, batches_committed=0, scalable=True, satellites=(),
)  # fmt: skip
STEP_S = 10.0


def seen(reports: Sequence[LeaderReport | None], jobs: SilentJobs | None = None) -> Mapping[JobKey, float]:
    """What is known after these reports of one job, one every STEP_S; None: its leader is away."""
    silent = jobs or SilentJobs()
    found: Mapping[JobKey, float] = {}
    for number, report in enumerate(reports):
        found = silent.see({KEY: report} if report else {}, {KEY}, STEP_S * number)
    return found


def trains(batches: int, **changes: object) -> LeaderReport:
    return replace(TRAINS, batches_committed=batches, **changes)  # type: ignore[arg-type]


LONG = [trains(9)] * (1 + round(SILENT_S / STEP_S))


def test_a_silent_job_has_one_event_until_it_commits_again() -> None:
    silences, recorder = Silences(), Recorder()

    def looked(now: float, since: float) -> Mapping[JobKey, int]:
        job = ElasticJob(KEY, "eve", Range(1, 4), Resources(1), ("t1",), 1, (), 2, scalable=True)
        return silences.look((JobView(job, Principal("9"), True, 9, silent_since=since),), now, recorder)

    times = ((300.0, 0.0), (310.0, 10.0), (320.0, 10.0), (330.0, 10.0), (340.0, 0.0), (650.0, 340.0))
    assert [dict(looked(*each)) for each in times] == [{}, {}, {KEY: 1}, {KEY: 1}, {}, {}]
    assert [(event.kind, event.job) for event in recorder.events] == [("silent", KEY)]
    assert says(recorder.events[0].text, "no batch for 5 min")


def test_a_job_whose_leader_reports_and_which_commits_nothing_for_five_minutes_is_silent_since_its_last() -> (
    None
):
    assert seen(LONG[1:]) == {}
    assert seen(LONG) == {KEY: 0.0}
    assert seen([*LONG, trains(10)]) == {}


@pytest.mark.parametrize(
    "report",
    [
        trains(0),
        trains(9, scalable=False),
        trains(9, paused=True),
        trains(9, changing=True),
        trains(9, pending_command="checkpoint"),
        None,
    ],
    ids=["never commits", "starts", "paused", "resizes", "checkpoint", "leader away"],
)
def test_nothing_is_said_of_a_job_that_has_another_reason_to_commit_nothing(
    report: LeaderReport | None,
) -> None:
    assert seen([trains(9), *[report] * len(LONG)]) == {}


def test_a_job_that_keeps_its_size_for_a_reason_is_noticed_too() -> None:
    fixed = trains(9, scalable=False, unscalable_why="its script cannot be resized")
    assert seen([fixed] * len(LONG)) == {KEY: 0.0}


def test_after_a_resize_the_time_counts_anew() -> None:
    resized = trains(9, generation=2)
    assert seen([*LONG, resized]) == {}
    assert seen([*LONG, *[resized] * len(LONG)]) == {KEY: STEP_S * len(LONG)}


def test_a_job_that_evaluates_for_long_between_batches_is_silent_only_after_twice_that_time() -> None:
    once = [*LONG, trains(10)]
    ended = STEP_S * (len(once) - 1)
    again = [trains(10)] * round(2 * ended / STEP_S)
    assert seen([*once, *again[:-1]]) == {}
    assert seen([*once, *again]) == {KEY: ended}


def test_a_job_that_has_ended_is_forgotten() -> None:
    jobs = SilentJobs()
    assert seen(LONG, jobs)
    assert jobs.see({KEY: TRAINS}, frozenset(), 1000.0) == {}


def test_flexo_why_says_for_how_long_and_that_it_is_no_verdict(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job(1, "1-4")
    world.go(SILENT_S)
    assert not any("no batch" in sentence for sentence in world.controller.explain(1))
    world.go(150)
    (said,) = (sentence for sentence in world.controller.explain(1) if "no batch" in sentence)
    assert says(said, "min", "may")
