"""A leak is found, noise is none, and what was not shown is not claimed."""

from __future__ import annotations

import math
import random

import pytest
from soak.slopes import FEWEST, Slope, fit, samples_needed

pytestmark = pytest.mark.thorough

MINUTE_S, HOUR_S = 60.0, 3600.0


def times(count: int = 30, minutes: float = 50.0) -> list[float]:
    """Evenly over so many minutes, from some time on: seconds since the epoch are large numbers."""
    return [1.8e9 + number * minutes * MINUTE_S / (count - 1) for number in range(count)]


def noisy(per_hour: float, noise: float, seed: int = 1, count: int = 30, minutes: float = 50.0) -> Slope:
    """Of a series with that slope, from 80 on."""
    die, at = random.Random(seed), times(count, minutes)
    values = [80 + per_hour * (each - at[0]) / HOUR_S + die.gauss(0, noise) for each in at]
    return fit(at, values, bound=2.0)


def test_what_does_not_change_has_no_slope() -> None:
    found = fit(times(), [38.0] * 30, bound=0.5)
    assert (found.per_hour, found.upper95) == (0.0, 0.0)
    assert found.flat


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_in_noise(seed: int) -> None:
    leak = noisy(per_hour=4.0, noise=0.5, seed=seed)
    assert not leak.flat
    assert leak.per_hour == pytest.approx(4.0, abs=1.5)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_flat_within_a_bound_that_is_wide_enough_for_it(seed: int) -> None:
    assert noisy(per_hour=0.0, noise=0.5, seed=seed).flat


def test_a_slope_at_the_bound_passes_about_one_time_in_twenty() -> None:
    """It is an upper bound of 95%: computed too low, it would let more through; too high, none."""
    passed = sum(noisy(per_hour=2.0, noise=0.5, seed=seed).flat for seed in range(2000))
    assert 0.03 < passed / 2000 < 0.07


def test_a_leak_of_one_descriptor_an_hour_is_found() -> None:
    at = times()
    leak = fit(at, [38 + int((each - at[0]) / HOUR_S * 2) for each in at], bound=0.5)
    assert not leak.flat


def test_shrinking_is_flat() -> None:
    assert noisy(per_hour=-6.0, noise=0.3).flat


@pytest.mark.parametrize(("noise", "count", "minutes"), [(8.0, 30, 50), (0.5, 6, 5)])
def test_more_noise_than_the_samples_can_bear_is_seldom_shown_to_be_flat(
    noise: float, count: int, minutes: float
) -> None:
    found = [noisy(0.0, noise, seed, count, minutes) for seed in range(300)]
    assert sum(each.flat for each in found) < 0.2 * len(found)


@pytest.mark.parametrize("count", range(FEWEST))
def test_too_few_samples_say_nothing(count: int) -> None:
    found = fit(times()[:count], [1.0] * count, bound=2.0)
    assert (found.per_hour, found.upper95, found.flat) == (None, None, False)


def test_a_relative_slope_is_in_percent_of_the_mean() -> None:
    at = times()
    values = [0.040 * (1 + 0.2 * (each - at[0]) / HOUR_S) for each in at]
    found = fit(at, values, bound=10.0, relative=True)
    assert found.per_hour == pytest.approx(20 / (1 + 0.2 * 25 / 60), rel=1e-6)
    assert not found.flat
    assert found.mean == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("noise", [0.2, 0.7, 1.5])
def test_so_many_samples_as_it_says_are_needed_show_it(noise: float) -> None:
    needed = samples_needed(noise, bound=2.0, hours=50 / 60)
    found = [noisy(0.0, noise, seed=seed, count=max(needed, FEWEST + 1)) for seed in range(200)]
    widths = [each.upper95 - each.per_hour for each in found if each.upper95 and each.per_hour]
    assert math.fsum(widths) / len(widths) <= 2.1
    assert samples_needed(2 * noise, 2.0, 50 / 60) > needed or noise == 0.2
