"""The leader's part in trials of several batches: when it orders them, and what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.batch_trials import ROUNDS
from horovod_elastic.leader.try_batches import MOST_ATTEMPTS, TryBatches, script_digest


def tried(*, rounds: int, steps: int, step_s: float = 0.1, worker_s: float = 3.0) -> jobs_pb2.TriedBatches:
    """The result of a worker that has tried two batches."""
    times = [jobs_pb2.BatchTime(samples=each, step_s=step_s, steps=steps) for each in (32, 64)]
    return jobs_pb2.TriedBatches(weights=8, largest=64, times=times, worker_s=worker_s, rounds=rounds)


@pytest.fixture
def trials() -> TryBatches:
    wanted = TryBatches("32-128")
    wanted.welcomed(jobs_pb2.Welcome(try_batches=True, known_weights=7))
    return wanted


def test_the_workers_of_the_first_generation_are_told_the_range(trials: TryBatches) -> None:
    task = trials.task(1)
    assert task is not None
    told = task.try_batches
    assert (told.min, told.max, told.generation, told.known_weights) == (32, 128, 1, 7)


def test_a_generation_that_began_before_flexod_asked_is_followed_by_one_that_tries() -> None:
    late = TryBatches("32-128")
    assert late.task(1) is None
    late.welcomed(jobs_pb2.Welcome(try_batches=True))
    assert not late.due(1), "a new leader does not know yet what was tried"
    late.stands(workers_pb2.WorkerStatus())
    assert late.due(1)
    assert late.task(2) is not None
    assert not late.due(2)


def test_trials_that_a_resize_has_broken_off_are_ordered_again_a_few_times(trials: TryBatches) -> None:
    told = [trials.task(generation) is not None for generation in range(1, MOST_ATTEMPTS + 3)]
    assert told == [True] * MOST_ATTEMPTS + [False] * 2


def test_a_model_that_was_not_tried_is_not_tried_in_a_later_generation(trials: TryBatches) -> None:
    trials.stands(workers_pb2.WorkerStatus(tried=jobs_pb2.TriedBatches(weights=7, largest=64)))
    assert trials.task(2) is None
    assert not trials.due(2)


def test_the_next_generation_makes_the_rounds_that_are_left(trials: TryBatches) -> None:
    assert trials.task(1) is not None
    trials.stands(workers_pb2.WorkerStatus(tried=tried(rounds=2, steps=12)))
    assert not trials.due(1), "training does not stop for better times"
    task = trials.task(2)
    assert task is not None
    told = task.try_batches
    assert (told.rounds, list(told.samples), told.worker_s) == (2, [32, 64], 3.0)
    assert not told.known_weights, "flexod knows the times of this job by now"
    trials.stands(workers_pb2.WorkerStatus(tried=tried(rounds=ROUNDS, steps=36)))
    assert trials.task(3) is None


def test_the_times_over_the_most_steps_count_and_all_that_trials_cost(trials: TryBatches) -> None:
    trials.stands(workers_pb2.WorkerStatus(tried=tried(rounds=3, steps=18, step_s=0.1)))
    trials.stands(workers_pb2.WorkerStatus(tried=tried(rounds=4, steps=6, step_s=0.9, worker_s=5.0)))
    assert trials.result is not None
    assert [each.step_s for each in trials.result.times] == [0.1, 0.1]
    assert (trials.result.rounds, trials.result.worker_s) == (4, 5.0)
    trials.stands(workers_pb2.WorkerStatus(tried=tried(rounds=4, steps=24, step_s=0.2)))
    assert [each.step_s for each in trials.result.times] == [0.2, 0.2]


def test_a_job_with_one_batch_tries_nothing() -> None:
    fixed = TryBatches("")
    fixed.welcomed(jobs_pb2.Welcome(try_batches=True))
    assert fixed.task(1) is None


def test_a_digest_is_of_the_command_and_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = script_digest(["python", str(script), "--layers", "2"])
    assert len(first) == 64
    assert script_digest(["python", str(script), "--layers", "2"]) == first
    assert script_digest(["python", str(script), "--layers", "3"]) != first
    script.write_text("two")
    assert script_digest(["python", str(script), "--layers", "2"]) != first


def test_a_command_without_a_script_that_can_be_read_has_no_digest(tmp_path: Path) -> None:
    assert script_digest(["python", str(tmp_path / "gone.py")]) == ""
    assert script_digest(["hostname"]) == ""
