"""A worker's trials of several batches: which, for how many steps, and what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from flexo_protos.v1 import tasks_pb2
from horovod_elastic import training
from horovod_elastic.batch_trials import (
    COLD_STEPS,
    FIRST_COLD_STEPS,
    MEASURED_STEPS,
    ROUNDS,
    BatchTime,
    BatchTrials,
    batches_to_try,
)
from horovod_elastic.training import AggregateBatch
from horovod_elastic.worker.trials import Trials


def steps_of(batches: int) -> int:
    """The steps of trials with this number of batches."""
    return FIRST_COLD_STEPS - COLD_STEPS + ROUNDS * batches * (COLD_STEPS + MEASURED_STEPS)


class Weight:
    """A parameter with eight numbers."""

    requires_grad = True

    def numel(self) -> int:
        return 8


class Optimizer:
    """As much of an optimizer as trials touch."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.1, "params": [Weight()]}]

    @property
    def rate(self) -> float:
        return float(self.param_groups[0]["lr"])


@pytest.fixture(autouse=True)
def _a_script_that_has_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "script", training.ScriptSettings())
    monkeypatch.setattr(training, "rank_and_size", lambda: (0, 1))


def wanted(generation: int = 1, known_weights: int = 0) -> tasks_pb2.TryBatches:
    return tasks_pb2.TryBatches(min=32, max=128, generation=generation, known_weights=known_weights)


def step(trials: Trials, batch: AggregateBatch, generation: int = 1, own_s: float | None = None) -> int:
    """A step on the batch there is; returns its samples. Its time grows with the samples."""
    samples = batch.share.samples
    list(batch.parts(range(samples)))
    seconds = 0.01 + samples / 1000 if own_s is None else own_s
    trials.at_boundary(generation, 1, seconds, seconds + 0.001)
    return samples


def test_batches_are_spaced_evenly_up_to_what_fits_the_workers() -> None:
    assert batches_to_try(32, 128, 1, 128) == (32, 64, 96, 128)
    assert batches_to_try(32, 1024, 2, 64) == (32, 64, 96, 128)
    assert batches_to_try(64, 64, 1, 128) == (64,)


def test_where_the_script_does_not_say_what_fits_only_the_smallest_batch_is_sure() -> None:
    assert batches_to_try(32, 1024, 2, 0) == (32,)


def test_a_batch_that_needs_several_passes_is_not_tried() -> None:
    assert batches_to_try(64, 128, 1, 32) == ()


def test_each_batch_has_cold_steps_in_each_turn_and_then_the_median_of_all_turns_counts() -> None:
    trials = BatchTrials([10, 20])
    turns: list[int] = []
    while trials.aggregate:
        samples, cold = trials.aggregate, COLD_STEPS if turns else FIRST_COLD_STEPS
        turns.append(samples)
        steps_s = [9.0] * cold + [0.01 * len(turns)] * MEASURED_STEPS
        ended = [trials.step(each, 0.5, samples) for each in steps_s]
        assert ended == [False] * (len(steps_s) - 1) + [True]
    assert turns == [10, 20] * ROUNDS
    assert trials.times == (
        BatchTime(10, pytest.approx(0.03), ROUNDS * MEASURED_STEPS),
        BatchTime(20, pytest.approx(0.04), ROUNDS * MEASURED_STEPS),
    )
    assert trials.seconds == pytest.approx(0.5 * steps_of(2))


def test_steps_at_the_end_of_an_epoch_do_not_count() -> None:
    trials, number = BatchTrials([10]), 0
    while trials.aggregate:
        odd = number == FIRST_COLD_STEPS + 2
        trials.step(7.0 if odd else 0.1, 0.1, 3 if odd else 10)
        number += 1
    assert trials.times == (BatchTime(10, pytest.approx(0.1), ROUNDS * MEASURED_STEPS - 1),)


def test_trials_without_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BatchTrials([])


def test_a_worker_trains_with_each_batch_and_then_as_before() -> None:
    optimizer, trials = Optimizer(), Trials()
    batch = AggregateBatch(48, largest=128, optimizer=optimizer)
    trials.want(wanted())
    seen = [step(trials, batch) for _ in range(1 + steps_of(4))]
    assert sorted(set(seen)) == [32, 48, 64, 96, 128]
    assert batch.share.aggregate == 48
    assert optimizer.rate == pytest.approx(0.1)
    result = trials.result
    assert result is not None
    assert (result.weights, result.largest) == (8, 128)
    assert [each.samples for each in result.times] == [32, 64, 96, 128]
    assert [each.step_s for each in result.times] == pytest.approx([0.042, 0.074, 0.106, 0.138])
    assert result.worker_s == pytest.approx(sum(0.011 + samples / 1000 for samples in seen[1:]))
    assert step(trials, batch) == 48


def test_a_new_generation_breaks_trials_off_and_goes_on_with_the_batch_before_them() -> None:
    optimizer, trials = Optimizer(), Trials()
    batch = AggregateBatch(48, largest=128, optimizer=optimizer)
    trials.want(wanted())
    for _ in range(5):
        step(trials, batch)
    assert batch.share.aggregate == 32
    training.generation_begins(0)
    assert batch.share.aggregate == 48
    assert optimizer.rate == pytest.approx(0.1)
    assert step(trials, batch, generation=2) == 48
    assert trials.result is None
    trials.want(wanted(generation=3))
    training.generation_begins(0)
    while trials.result is None:
        step(trials, batch, generation=3)
    assert [each.samples for each in trials.result.times] == [32, 64, 96, 128]


def test_a_newcomer_that_takes_the_state_over_in_the_middle_of_trials_has_the_batch_before_them() -> None:
    running, newcomer, trials = Optimizer(), Optimizer(), Trials()
    batch = AggregateBatch(48, largest=128, optimizer=running)
    trials.want(wanted())
    for _ in range(5):
        step(trials, batch)
    joined = AggregateBatch(48, largest=128, optimizer=newcomer)
    newcomer.param_groups[0].update(
        {key: value for key, value in running.param_groups[0].items() if key != "params"}
    )
    training.generation_begins(0)
    assert joined.share.aggregate == batch.share.aggregate == 48
    assert newcomer.rate == running.rate == pytest.approx(0.1)


def test_a_model_that_flexod_knows_is_not_tried_again() -> None:
    trials = Trials()
    batch = AggregateBatch(48, largest=128, optimizer=Optimizer())
    trials.want(wanted(known_weights=8))
    assert {step(trials, batch) for _ in range(20)} == {48}
    assert trials.result is not None
    assert (trials.result.weights, len(trials.result.times)) == (8, 0)


def test_a_script_without_an_aggregate_batch_is_left_alone() -> None:
    trials = Trials()
    trials.want(wanted())
    trials.at_boundary(1, 1, 0.1, 0.1)
    assert trials.result is None
