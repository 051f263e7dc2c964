"""Demand on an even grid: what a bin keeps, how holes and clocks that jump are treated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flexo.loaning.history import History, Seasons

STEP_S = 300.0
NOW = 1_700_000_100.0  # where a bin begins


def made(*values: float, gap: int = 1) -> History:
    found = History(Seasons())
    for number, value in enumerate(values):
        found.note(NOW + number * gap * STEP_S, value)
    return found


def test_a_bin_keeps_the_highest_that_it_has_seen():
    found = History(Seasons())
    for after, servers in ((0, 3.0), (100, 7.0), (299, 2.0), (300, 1.0)):
        found.note(NOW + after, servers)
    assert found.values.tolist() == [7.0, 1.0]


def test_times_in_which_nothing_was_heard_are_holes():
    values = made(1, 2, gap=3).values
    assert values[0] == 1
    assert np.isnan(values[1:3]).all()
    assert values[3] == 2


def test_a_clock_that_is_set_back_takes_the_future_with_it():
    found = made(1, 2, 3, 4)
    found.note(NOW + STEP_S + 10, 9)
    assert found.values.tolist() == [1, 9]
    found.note(NOW + 2 * STEP_S, 5)
    assert found.values.tolist() == [1, 9, 5]


def test_a_clock_that_jumps_far_begins_a_new_history():
    found = made(1, 2, 3)
    found.note(NOW + 400 * 86_400.0, 5)
    assert found.values.tolist() == [5]
    found.note(NOW, 6)
    assert found.values.tolist() == [6]
    assert found.first == found.bin_of(NOW)


def test_a_part_ends_at_its_last_value():
    found = made(1, 2, gap=3)
    assert found.until(found.first + 2).values.tolist() == [1]
    assert found.until(found.first + 2).last == found.first
    assert len(found.until(found.first - 1)) == 0


def test_old_values_go_and_five_weeks_stay():
    found = History(Seasons())
    for number in range(60 * 288):
        found.note(NOW + number * STEP_S, float(number))
    assert 35 <= found.days < 51
    assert found.values[-1] == 60 * 288 - 1
    assert found.values[0] == 60 * 288 - len(found)
    assert found.last == found.bin_of(NOW) + 60 * 288 - 1


@pytest.mark.parametrize(
    ("interval_s", "bins"), [(1, 288), (300, 288), (301, 144), (900, 96), (3600, 24), (86_400, 24)]
)
def test_the_grid_is_as_fine_as_the_samples(interval_s, bins):
    assert Seasons.for_samples_every(interval_s).bins_a_day == bins
    assert Seasons.for_samples_every(interval_s / 100, day_s=864).bins_a_day == bins


def test_samples_in_any_order_make_the_same_history():
    samples = [(NOW + number * 60.0, float(number % 7)) for number in range(50)]
    assert History.of(reversed(samples)).values.tolist() == History.of(samples).values.tolist()


@given(st.lists(st.tuples(st.integers(-50_000, 50_000), st.floats(0, 100)), min_size=1, max_size=60))
@example([(-9936, 0.0), (0, 0.0), (144, 0.0), (4097, 0.0), (0, 0.0)])  # shortened within a gap, then set back
def test_whatever_is_noted_the_last_value_is_there_and_nothing_is_later(notes):
    found = History(Seasons())
    for bin_number, servers in notes:
        at = NOW + bin_number * STEP_S
        found.note(at, servers)
        assert found.last == found.bin_of(at)
        assert found.values[-1] >= servers
        assert not math.isnan(found.values[0])
