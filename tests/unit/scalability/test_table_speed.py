"""Speeds by tables and profiles: what was measured, between it, and beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.model.measured import ScalingPoint
from flexo.scalability.efficiency import efficiencies
from flexo.scalability.measured import speed_of
from flexo.scalability.table import BadTable, TableSpeed

TABLES = st.dictionaries(st.integers(1, 64), st.floats(0.1, 1e4), min_size=1, max_size=7)


def point(workers: int, samples_per_s: float, measured_at: float = 0.0) -> ScalingPoint:
    return ScalingPoint(workers, samples_per_s, 0.1, 0.01, 1.0, 50, measured_at)


def test_a_size_between_two_measured_ones_has_the_rate_between_theirs():
    speed = TableSpeed.of({1: 10.0, 2: 18.0, 4: 30.0})
    assert [speed.rate(workers, 1) for workers in (1, 2, 3, 4)] == [10.0, 18.0, 24.0, 30.0]


def test_fewer_workers_than_were_measured_share_the_rate_and_more_gain_nothing():
    speed = TableSpeed.of({4: 40.0, 8: 60.0})
    assert speed.rate(1, 1) == 10.0
    assert speed.rate(100, 13) == 60.0
    assert speed.rate(0, 0) == 0.0


def test_a_size_that_could_not_run_counts_as_not_measured():
    assert TableSpeed.of({1: 5.0, 2: 9.0, 4: 0.0}).rate(4, 1) == 9.0


def test_a_table_without_any_speed_is_refused():
    with pytest.raises(BadTable):
        TableSpeed.of({1: 0.0})


@given(TABLES)
def test_equal_tables_are_equal_speeds_and_exact_where_they_were_measured(table: dict[int, float]):
    speed = TableSpeed.of(table)
    assert speed == TableSpeed.of(dict(reversed(table.items())))
    assert hash(speed) == hash(TableSpeed.of(table))
    assert all(speed.rate(workers, 1) == rate for workers, rate in table.items())


@given(TABLES, st.integers(1, 200))
def test_no_size_is_faster_than_the_fastest_that_was_measured(table: dict[int, float], workers: int):
    assert 0 < TableSpeed.of(table).rate(workers, 1) <= max(table.values()) * (1 + 1e-12)


def test_a_profile_is_exact_where_it_was_measured_and_the_later_measurement_counts():
    speed = speed_of([point(2, 90.0, measured_at=5.0), point(2, 50.0, measured_at=1.0), point(4, 160.0)])
    assert speed is not None
    assert (speed.rate(2, 1), speed.rate(3, 1), speed.rate(4, 2)) == (90.0, 125.0, 160.0)
    assert speed.error(4, 1) == 0.0


def test_a_profile_without_speeds_tells_nothing():
    assert speed_of([point(2, 0.0)]) is None


def test_beyond_its_profile_a_job_goes_on_as_between_its_two_largest_sizes_less_one_standard_error():
    speed = speed_of([point(1, 100.0), point(2, 180.0)])
    assert speed is not None
    assert speed.rate(4, 1) == pytest.approx(180.0 * 1.8 / (1 + speed.error(4, 1)))
    assert speed.error(8, 1) == pytest.approx(2 * speed.error(4, 1))


def test_a_job_that_had_stopped_scaling_gains_nothing_beyond_its_profile():
    speed = speed_of([point(1, 100.0), point(2, 180.0), point(4, 150.0)])
    assert speed is not None
    assert speed.rate(8, 2) == speed.rate(4, 1) == 150.0


@given(st.dictionaries(st.integers(1, 32), st.floats(0.1, 1e4), min_size=1, max_size=5), st.integers(1, 128))
def test_no_profile_promises_more_than_the_best_throughput_a_worker(table: dict[int, float], workers: int):
    speed = speed_of([point(size, rate) for size, rate in table.items()])
    assert speed is not None
    best = max(rate / size for size, rate in table.items())
    assert speed.rate(workers, 1) <= best * workers * (1 + 1e-9)


def test_efficiency_is_relative_to_the_parallelism_that_is_best_for_a_worker():
    # a batch that swaps on one GPU: two are more than twice as fast
    assert efficiencies({1: 40.0, 2: 100.0, 4: 160.0}) == pytest.approx({1: 0.8, 2: 1.0, 4: 0.8})


def test_no_throughput_has_no_efficiency():
    with pytest.raises(ValueError, match="no number of workers"):
        efficiencies({1: 0.0})
