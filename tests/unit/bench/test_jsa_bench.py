"""What make bench-jsa measures and tells, with times made up here."""

from __future__ import annotations

import pytest
from says import says

from flexo.model.measured import BatchTime
from flexo_bench.jsa.forecasts import Analyzed, Measured, forecasts, lines, unseen
from flexo_protos.all_reduce_file import AllReduceTable

TABLE = AllReduceTable("cpu", (2,), (1e6, 2e6), ((0.01, 0.02),))
TIMES = (BatchTime(32, 0.1, 8), BatchTime(64, 0.2, 8))
SLOWER = (BatchTime(32, 0.15, 8), BatchTime(64, 0.3, 8))


def test_no_pair_that_is_measured_was_tried() -> None:
    assert unseen(TIMES, 3) == {1: (48,), 2: (42, 64, 96, 128), 3: (63, 96, 144, 192)}


def test_a_measured_pair_says_how_far_two_halves_of_its_turns_are_apart() -> None:
    assert Measured.of(2, 64, [[0.1, 0.1], [0.2, 0.2], [0.1, 9.0], [0.2, 0.3]]) == Measured(
        2, 64, pytest.approx(0.2), pytest.approx(0.5)
    )


def test_a_forecast_is_the_tried_time_and_the_all_reduce_beside_what_was_measured() -> None:
    pairs = [Measured(1, 48, 0.15, 0.05), Measured(2, 128, 0.2, 0.05), Measured(2, 42, 0.1, 0.05)]
    alone, two, below = forecasts(TIMES, {1: TIMES, 2: SLOWER}, 1_000_000, TABLE, pairs)
    assert (alone.before_s, alone.error_before) == (pytest.approx(0.15), pytest.approx(0.0))
    assert alone.beside_s == pytest.approx(0.15)
    assert (two.before_s, two.error_before) == (pytest.approx(0.21), pytest.approx(0.05))
    assert (two.beside_s, two.error_beside) == (pytest.approx(0.31), pytest.approx(0.55))
    assert below.before_s == pytest.approx(0.1 * 21 / 32 + 0.01)


def test_a_table_has_every_pair_both_errors_the_drift_and_what_the_trials_took() -> None:
    beside = {1: TIMES, 2: SLOWER}
    pairs = [Measured(1, 48, 0.15, 0.05), Measured(2, 128, 0.3, 0.05)]
    found = forecasts(TIMES, beside, 1_000_000, TABLE, pairs)
    told = "\n".join(lines([Analyzed("mlp", 1_000_000, TIMES, beside, 3.0, 100.0, found)], TABLE))
    assert says(told, "mlp", "1,000,000 weights", "150.00 ms", "300.00 ms", "-30.0%", "5.0%", "worst 30.0%")
    assert says(told, "1 of 2 within 10%", "2 of 2 within 10%", "+0.0% (1)", "+50.0% (2)")
    assert says(told, "3.00 worker seconds", "3.0% of a job of 100", "150 worker seconds")
