"""Trials of scripts: remembered by script, reused by the next job, and turned into speeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flexo.control import batch_trials
from flexo.control.batch_trials import BatchTrials
from flexo.event_store.store import EventStore
from flexo.model.elastic import ElasticJob, LeaderReport
from flexo.model.measured import BatchTime, ScriptKey, TriedBatches
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo_protos.all_reduce_file import AllReduceTable
from flexo_protos.resources import Resources

NOW = 1_000.0
GPU = Resources(1, 1, gpu_type="a100")
ALL_REDUCE = AllReduceTable("cpu", (2, 3, 4), (1e6, 2e6), ((0.01, 0.02), (0.02, 0.04), (0.03, 0.06)))
TIMES = (BatchTime(32, 0.1, 8), BatchTime(64, 0.18, 8))
TRIED = TriedBatches(1_500_000, 64, TIMES, 2.5)
SCRIPT = ScriptKey("ada", "d1", "a100")


def job(job_id: int = 1, user: str = "ada", batch: Range | None = Range(32, 256)) -> ElasticJob:  # noqa: B008
    return ElasticJob(JobKey(job_id), user, Range(1, 4), GPU, ("n1",), 1, scalable=True, batch=batch)


def report(job_id: int = 1, script: str = "d1", tried: TriedBatches | None = TRIED) -> LeaderReport:
    plain = LeaderReport(JobKey(job_id), 1000, Range(1, 4), GPU, ("n1",), 1, 1, 9, True, ())
    return replace(plain, script=script, tried=tried)


@pytest.fixture
def event_store(tmp_path: Path):
    opened = EventStore(tmp_path / "journal.sqlite", keep_days=30)
    yield opened
    opened.close()


@pytest.fixture
def trials(event_store: EventStore) -> BatchTrials:
    return BatchTrials(event_store)


def see(trials: BatchTrials, jobs: list[ElasticJob], *reports: LeaderReport) -> None:
    trials.see(jobs, {each.key: each for each in reports}, NOW)


def test_a_step_is_expected_to_take_the_tried_time_and_the_all_reduce_of_its_workers(
    trials: BatchTrials,
) -> None:
    see(trials, [job()], report())
    speed = trials.speeds([job()], ALL_REDUCE)[JobKey(1)]
    assert speed.rate(1, 1, 64) == pytest.approx(64 / 0.18)
    assert speed.rate(2, 1, 96) == pytest.approx(96 / (0.14 + 0.015))
    assert speed.rate(4, 1, 256) == pytest.approx(256 / (0.18 + 0.045))
    assert speed.best_batch(4, 1) == 256
    assert speed.rate(1, 1, 128) == 0, "more than fits a pass"


def test_the_same_speed_is_given_as_long_as_nothing_changes(trials: BatchTrials) -> None:
    see(trials, [job()], report())
    first = trials.speeds([job()], ALL_REDUCE)[JobKey(1)]
    see(trials, [job()], report())
    assert trials.speeds([job()], ALL_REDUCE)[JobKey(1)] is first


def test_the_next_job_of_the_script_needs_no_trials_even_after_a_restart(
    trials: BatchTrials, event_store: EventStore
) -> None:
    see(trials, [job()], report())
    assert trials.known_weights(SCRIPT) == 1_500_000
    again = BatchTrials(event_store)
    assert again.known_weights(SCRIPT) == 1_500_000
    see(again, [job(2)], report(2, tried=TriedBatches(1_500_000, 64)))
    assert again.speeds([job(2)], ALL_REDUCE)[JobKey(2)].rate(1, 1, 64) == pytest.approx(64 / 0.18)


def test_trials_of_another_model_of_the_script_do_not_count(trials: BatchTrials) -> None:
    see(trials, [job()], report())
    see(trials, [job(2)], report(2, tried=TriedBatches(7, 64)))
    assert trials.speeds([job(2)], ALL_REDUCE) == {}


@pytest.mark.parametrize(
    "script", [ScriptKey("bob", "d1", "a100"), ScriptKey("ada", "d2", "a100"), ScriptKey("ada", "d1", "h100")]
)
def test_trials_count_for_their_user_script_and_gpu_type_alone(
    trials: BatchTrials, script: ScriptKey
) -> None:
    see(trials, [job()], report())
    assert trials.known_weights(script) == 0


def test_a_script_without_a_digest_counts_for_its_own_job_alone(
    trials: BatchTrials, event_store: EventStore
) -> None:
    see(trials, [job()], report(script=""))
    assert JobKey(1) in trials.speeds([job()], ALL_REDUCE)
    assert event_store.tried_scripts() == ()


@pytest.mark.parametrize(
    ("of", "tried"),
    [
        (job(batch=None), TRIED),
        (job(), None),
        (job(), replace(TRIED, times=TIMES[:1])),
        (job(), replace(TRIED, largest=0)),
    ],
)
def test_what_says_too_little_makes_no_speed(
    trials: BatchTrials, of: ElasticJob, tried: TriedBatches | None
) -> None:
    see(trials, [of], report(tried=tried))
    assert trials.speeds([of], ALL_REDUCE) == {}


def test_a_job_whose_leader_is_away_keeps_its_trials_and_one_that_is_gone_loses_them(
    trials: BatchTrials,
) -> None:
    see(trials, [job()], report(script=""))
    see(trials, [job()])
    assert JobKey(1) in trials.speeds([job()], ALL_REDUCE)
    see(trials, [])
    assert trials.speeds([job()], ALL_REDUCE) == {}


def test_a_user_has_a_number_of_scripts_and_the_oldest_goes(
    trials: BatchTrials, event_store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_trials, "MOST_OF_A_USER", 2)
    see(trials, [job(9, "bob")], report(9))
    for number in range(3):
        trials.see([job()], {JobKey(1): report(script=f"e{number}")}, NOW + number)
    known = {(each.script.user, each.script.digest) for each in event_store.tried_scripts()}
    assert known == {("bob", "d1"), ("ada", "e1"), ("ada", "e2")}
    assert trials.known_weights(ScriptKey("ada", "e0", "a100")) == 0


def test_newer_trials_of_a_script_replace_the_older_ones(
    trials: BatchTrials, event_store: EventStore
) -> None:
    see(trials, [job()], report())
    newer = replace(TRIED, times=(BatchTime(16, 0.05, 8), BatchTime(64, 0.2, 8)))
    see(trials, [job()], report(tried=newer))
    (kept,) = event_store.tried_scripts()
    assert (kept.script, kept.tried, kept.at) == (SCRIPT, newer, NOW)
