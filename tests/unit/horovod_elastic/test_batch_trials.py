"""A worker's trials of several batches: which, for how many steps, and what comes out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from flexo_protos.v1 import tasks_pb2
from horovod_elastic import training
from horovod_elastic.batch_trials import (
    COLD_STEPS,
    FIRST_COLD_STEPS,
    FIRST_ROUNDS,
    MEASURED_STEPS,
    PAUSES_GROW,
    ROUNDS,
    BatchTime,
    BatchTrials,
    TurnTimes,
    batches_to_try,
    pause_before,
)
from horovod_elastic.training import AggregateBatch
from horovod_elastic.worker.trials import Trials


def steps_of(batches: int, rounds: int = ROUNDS) -> int:
    """The steps of trials with this number of batches, without the pauses between rounds."""
    return FIRST_COLD_STEPS - COLD_STEPS + rounds * batches * (COLD_STEPS + MEASURED_STEPS)


def steps_until(rounds: int, batches: int = 4) -> int:
    """All steps of a job until so many rounds are over."""
    return steps_of(batches, rounds) + sum(pause_before(number) for number in range(rounds))


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
    turns = TurnTimes()
    trials, order = BatchTrials([10, 20], turns), list[int]()
    while not trials.over:
        samples, cold = trials.aggregate, COLD_STEPS if order else FIRST_COLD_STEPS
        if not samples:
            trials.step(9.0, 9.0, 48)
            continue
        order.append(samples)
        steps_s = [9.0] * cold + [0.01 * len(order)] * MEASURED_STEPS
        ended = [trials.step(each, 0.5, samples) for each in steps_s]
        assert ended == [False] * (len(steps_s) - 1) + [True]
    assert order == [10, 20] * ROUNDS
    assert turns.times == (
        BatchTime(10, pytest.approx(0.01 * ROUNDS), ROUNDS * MEASURED_STEPS),
        BatchTime(20, pytest.approx(0.01 * ROUNDS + 0.01), ROUNDS * MEASURED_STEPS),
    )
    assert trials.seconds == pytest.approx(0.5 * steps_of(2))


def test_rounds_lie_ever_further_apart() -> None:
    trials, pauses, number = BatchTrials([10], TurnTimes()), [0], 0
    while not trials.over:
        if trials.rounds > len(pauses) - 1:
            pauses.append(0)
        pauses[-1] += not trials.aggregate
        trials.step(0.1, 0.1, 10)
        number += 1
    assert pauses == [pause_before(each) for each in range(ROUNDS)]
    assert all(after == PAUSES_GROW * before for before, after in pairwise(pauses[1:]))
    assert number == steps_until(ROUNDS, batches=1)


def test_steps_at_the_end_of_an_epoch_do_not_count() -> None:
    turns = TurnTimes()
    turns.add([(10, 0.1), (10, 0.1), (3, 7.0), (10, 0.3)])
    assert turns.times == (BatchTime(10, 0.1, 3),)


def test_a_slow_spell_that_hits_one_round_of_four_does_not_count() -> None:
    turns = TurnTimes()
    for step_s in (0.15, 0.1, 0.1, 0.1):
        turns.add([(10, step_s)] * MEASURED_STEPS)
    assert turns.times == (BatchTime(10, 0.1, 4 * MEASURED_STEPS),)


def test_trials_without_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BatchTrials([], TurnTimes())


def test_a_worker_trains_with_each_batch_and_then_as_before() -> None:
    optimizer, trials = Optimizer(), Trials()
    batch = AggregateBatch(48, largest=128, optimizer=optimizer)
    trials.want(wanted())
    seen = [step(trials, batch) for _ in range(1 + steps_until(ROUNDS))]
    assert sorted(set(seen)) == [32, 48, 64, 96, 128]
    assert batch.share.aggregate == 48
    assert optimizer.rate == pytest.approx(0.1)
    result = trials.result
    assert result is not None
    assert (result.weights, result.largest, result.rounds) == (8, 128, ROUNDS)
    assert [each.samples for each in result.times] == [32, 64, 96, 128]
    assert [each.step_s for each in result.times] == pytest.approx([0.042, 0.074, 0.106, 0.138])
    assert result.worker_s == pytest.approx(sum(0.011 + samples / 1000 for samples in seen if samples != 48))
    assert {step(trials, batch) for _ in range(9)} == {48}


def test_a_policy_has_times_after_the_first_rounds_and_better_ones_after_each_more() -> None:
    trials = Trials()
    batch = AggregateBatch(48, largest=128, optimizer=Optimizer())
    trials.want(wanted())
    for _ in range(steps_until(FIRST_ROUNDS)):
        step(trials, batch, own_s=0.3)
    assert trials.result is None
    step(trials, batch, own_s=0.3)
    first = trials.result
    assert first is not None
    assert first.times[0].steps == FIRST_ROUNDS * MEASURED_STEPS
    for _ in range(steps_until(ROUNDS) - steps_until(FIRST_ROUNDS)):
        step(trials, batch, own_s=0.1)
    assert trials.result.rounds == ROUNDS
    assert trials.result.times[0].steps == ROUNDS * MEASURED_STEPS
    assert trials.result.times[0].step_s < first.times[0].step_s
    assert trials.result.worker_s > first.worker_s


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


def test_a_new_generation_goes_on_after_the_rounds_that_are_over_with_the_same_batches_of_a_worker() -> None:
    trials = Trials()
    batch = AggregateBatch(48, largest=128, optimizer=Optimizer())
    trials.want(wanted())
    for _ in range(1 + steps_until(FIRST_ROUNDS)):
        step(trials, batch)
    first = trials.result
    assert first is not None
    later = wanted(generation=2)
    later.rounds, later.worker_s = first.rounds, first.worker_s
    later.samples.extend(each.samples for each in first.times)
    trials.want(later)
    training.generation_begins(0)
    seen = [step(trials, batch, generation=2) for _ in range(steps_until(ROUNDS))]
    assert seen[: pause_before(FIRST_ROUNDS)] == [48] * pause_before(FIRST_ROUNDS)
    assert trials.result.rounds == ROUNDS
    assert {each.steps for each in trials.result.times} == {ROUNDS * MEASURED_STEPS}
    spent_s = sum(0.011 + samples / 1000 for samples in seen if samples != 48)
    assert trials.result.worker_s == pytest.approx(first.worker_s + spent_s)


def test_two_workers_go_on_with_the_batches_that_both_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "rank_and_size", lambda: (0, 2))
    newcomer = Trials()
    batch = AggregateBatch(64, largest=128, optimizer=Optimizer())
    newcomer.want(
        tasks_pb2.TryBatches(min=32, max=128, generation=2, rounds=2, samples=[32, 48, 64, 96], worker_s=3.0)
    )
    training.generation_begins(0)
    seen = []
    for _ in range(pause_before(2) + 60):
        seen.append(batch.share.aggregate)
        list(batch.parts(range(batch.share.samples)))
        newcomer.at_boundary(2, 2, 0.1, 0.1)
    assert set(seen) == {64, 96, 128}
    assert newcomer.result is not None
    assert [each.samples for each in newcomer.result.times] == [32, 48, 64]
    assert newcomer.result.worker_s > 3.0


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
