"""IBM's figure 2: the batches of each training, its learning rate, and its difference from a fixed batch."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_bench.papers import ibm_accuracy
from flexo_bench.papers.ibm_accuracy import (
    BATCHES,
    EPOCHS,
    FIXED,
    LEARNING_RATE,
    Outcome,
    Plan,
    batch_at,
    elastic,
    falling,
    interval,
    learning_rate,
    rising,
    tables,
    up_and_down,
)

seeds = st.integers(0, 10_000).map(random.Random)


def batches_of(plan: Plan) -> list[int]:
    return [batch for _, batch in plan]


@given(drawn=seeds)
def test_batches_rise_or_fall_through_the_whole_range(drawn: random.Random):
    assert batches_of(rising(drawn)) == list(BATCHES)
    assert batches_of(falling(drawn)) == list(reversed(BATCHES))


@given(drawn=seeds)
def test_batches_that_rise_and_fall_change_each_time_and_stay_in_the_range(drawn: random.Random):
    batches = batches_of(up_and_down(drawn))
    assert batches[0] == FIXED
    assert set(batches) <= set(BATCHES)
    assert all(before != now for before, now in pairwise(batches))


@given(drawn=seeds)
def test_elastic_batches_are_of_whole_workers_and_change_in_the_midst_of_epochs(drawn: random.Random):
    plan = elastic(drawn)
    assert {batch % BATCHES[0] for batch in batches_of(plan)} == {0}
    assert BATCHES[0] <= min(batches_of(plan)) <= max(batches_of(plan)) <= BATCHES[-1]
    assert any(at % 1 for at, _ in plan)


@given(drawn=seeds)
@pytest.mark.parametrize("plan_of", [rising, falling, up_and_down, elastic])
def test_every_training_has_a_batch_from_its_beginning_and_changes_within_it(plan_of, drawn: random.Random):
    starts = [at for at, _ in plan_of(drawn)]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert starts[-1] < EPOCHS


def test_a_batch_is_used_from_its_start_to_the_next():
    plan = ((0.0, 16), (2.5, 64))
    assert [batch_at(plan, at) for at in (0.0, 2.49, 2.5, 39.0)] == [16, 16, 64, 64]


def test_the_learning_rate_follows_the_batch_and_falls_twice():
    assert learning_rate(0, FIXED) == LEARNING_RATE
    assert learning_rate(0, 2 * FIXED) == pytest.approx(2 * LEARNING_RATE)
    rates = [learning_rate(epoch, FIXED) for epoch in range(EPOCHS)]
    assert sorted(set(rates), reverse=True) == pytest.approx([0.02, 0.002, 0.0002])
    assert (rates.count(rates[0]), rates.count(rates[-1])) == (EPOCHS // 2, EPOCHS // 4)


def test_the_interval_of_a_mean_is_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(
        (2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-4
    )
    assert all(math.isnan(end) for end in interval([1.0]))


def test_trainings_are_compared_seed_by_seed():
    found = {
        "fixed": [Outcome((0.5, 0.90)), Outcome((0.5, 0.98))],
        "other": [Outcome((0.5, 0.91)), Outcome((0.6, 0.99))],
    }
    ends, course = tables(found)
    accuracy, more, low, high = ends.rows[1].figures
    assert accuracy.ours == pytest.approx((91.0, 99.0))
    assert more.ours == pytest.approx((1.0, 1.0))
    assert (low.middle, high.middle) == pytest.approx((1.0, 1.0))
    assert course.rows[1].figures[0].ours == pytest.approx((50.0, 60.0))


@pytest.mark.thorough
def test_a_training_learns_and_repeats_itself(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(ibm_accuracy, "EPOCHS", 8)
    monkeypatch.setattr(ibm_accuracy, "EVERY", 8)
    one = ibm_accuracy.train("fixed 16", 1)
    assert one.accuracy[0] > 0.6
    assert ibm_accuracy.train("fixed 16", 1) == one
    assert ibm_accuracy.train("fixed 16", 2) != one
