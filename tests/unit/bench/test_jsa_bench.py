"""What make bench-jsa measures and tells, with times made up here."""

from __future__ import annotations

import pytest
from says import says

from flexo.model.measured import BatchTime
from flexo_bench.jsa.forecasts import Analyzed, Measured, forecasts, lines, unseen
from flexo_protos.all_reduce_file import AllReduceTable

TABLE = AllReduceTable("cpu", (2,), (1e6, 2e6), ((0.01, 0.02),))
TIMES = (BatchTime(32, 0.1, 8), BatchTime(64, 0.2, 8))


def test_no_pair_that_is_measured_was_tried() -> None:
    assert unseen(TIMES, 3) == {1: (48,), 2: (42, 64, 96, 128), 3: (63, 96, 144, 192)}


def test_a_measured_pair_says_how_far_two_halves_of_its_turns_are_apart() -> None:
    assert Measured.of(2, 64, [[0.1, 0.1], [0.2, 0.2], [0.1, 9.0], [0.2, 0.3]]) == Measured(
        2, 64, pytest.approx(0.2), pytest.approx(0.5)
    )


def test_a_forecast_is_the_tried_time_and_the_all_reduce_beside_what_was_measured() -> None:
    alone, two, below = forecasts(
        TIMES,
        1_000_000,
        TABLE,
        [Measured(1, 48, 0.15, 0.05), Measured(2, 128, 0.2, 0.05), Measured(2, 42, 0.1, 0.05)],
    )
    assert (alone.expected_s, alone.error) == (pytest.approx(0.15), pytest.approx(0.0))
    assert (two.expected_s, two.error) == (pytest.approx(0.21), pytest.approx(0.05))
    assert below.expected_s == pytest.approx(0.1 * 21 / 32 + 0.01)


def test_a_table_has_every_pair_the_errors_and_what_the_trials_took() -> None:
    found = forecasts(TIMES, 1_000_000, TABLE, [Measured(1, 48, 0.15, 0.05), Measured(2, 128, 0.3, 0.05)])
    told = "\n".join(lines([Analyzed("mlp", 1_000_000, TIMES, 3.0, 100.0, found)], TABLE))
    assert says(told, "mlp", "1,000,000 weights", "150.00 ms", "300.00 ms", "-30.0%", "5.0%", "worst 30.0%")
    assert says(
        told, "1 of 2 within 10%", "3.00 worker seconds", "3.0% of a job of 100", "150 worker seconds"
    )
