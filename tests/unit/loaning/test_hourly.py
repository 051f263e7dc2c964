"""Quantiles by the hour of the day: the numbers of numpy.quantile, hour by hour."""

from __future__ import annotations

import numpy as np
import pytest

from flexo.loaning.hourly import quantiles_by_hour

BOTH = (1 - 0.95, 0.95)


def one_by_one(values: np.ndarray, hours: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    found = []
    for hour in range(24):
        near = np.isin(hours, [(hour - 1) % 24, hour, (hour + 1) % 24])
        found.append(np.quantile(values[near] if near.any() else values, quantiles))
    return np.array(found)


@pytest.mark.parametrize("count", [1, 2, 5, 47, 288, 5041])
@pytest.mark.parametrize("quantiles", [BOTH, (1 - 0.99, 0.99), (0.5, 0.5), (0.0, 1.0)])
def test_the_same_to_the_last_bit_as_one_call_for_each_hour(count: int, quantiles: tuple[float, ...]):
    dice = np.random.default_rng(count)
    values = dice.normal(size=count) * 10.0 ** dice.integers(-3, 4, size=count)
    values[::3] = np.round(values[::3])  # equal ones among them
    for hours in (dice.integers(0, 24, size=count), np.arange(count) * 24 // max(24, count) % 24):
        assert np.array_equal(
            quantiles_by_hour(values, hours, quantiles), one_by_one(values, hours, quantiles)
        )


def test_hours_of_which_nothing_is_known_have_the_quantiles_of_all():
    values, hours = np.arange(10.0), np.repeat([3, 17], 5)
    found = quantiles_by_hour(values, hours, BOTH)
    assert np.array_equal(found, one_by_one(values, hours, BOTH))
    assert np.array_equal(found[10], np.quantile(values, BOTH))
