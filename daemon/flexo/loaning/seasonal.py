"""The seasonal forecast: a curve of day and week, a trend, and a band from the curve's own errors.

The method, in the order in which it computes:

1. Fit a curve of the day and of the week plus a trend, by ridge regression on harmonics. The week takes part
   from `_WEEK_AFTER` days of history on, the trend from `_TREND_AFTER`.
2. Leave out each day once and predict it from the others. The difference is the curve's honest error.
3. An error of the curve lasts for a while. So add the part that usually remains at that lead (the
   autocorrelation of the errors at that lead).
4. The remaining errors, by hour of the day and by lead, give the band: their `1 - quantile` and `quantile`. A
   single value is above the band with probability 1 - quantile, if the future is like the past.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.forecast_interval import HOURS, LEADS, ForecastInterval, band_around, bins_between, hour_of
from flexo.loaning.history import Floats, History, Seasons
from flexo.loaning.hourly import quantiles_by_hour

SEASON_AFTER: Final = 2.0
"""The fewest days of history that a season is learnt from."""
_WEEK_AFTER: Final = 9.0
_TREND_AFTER: Final = 14.0
_DAY_HARMONICS: Final = 8
"""Number of harmonics of the day; the shortest has a period of three hours."""
_WEEK_HARMONICS: Final = 20
"""The highest harmonic of the week; multiples of seven belong to the day. Weekdays have levels, and days of
their own shape."""
_DAY_SHRINK: Final = 0.02
_WEEK_SHRINK: Final = 1.0
"""The ridge, as days of evidence against a harmonic. That of the day's harmonics grows with the square of
their number."""
_THIN_BELOW: Final = 7.0
"""Days of history below which one hour's errors are too few to trust them alone."""


def can_learn(history: History) -> bool:
    """Whether there are `SEASON_AFTER` days, with at least one value of each hour."""
    known = np.flatnonzero(np.isfinite(history.values)) + history.first
    hours = np.unique(hour_of(known, history.seasons.bins_a_day))
    return history.days >= SEASON_AFTER and len(hours) == HOURS


class Seasonal:
    """The fitted seasonal forecast (see the module)."""

    def __init__(self, seasons: Seasons, week: Floats, trend: float, end: int, misses: Misses) -> None:
        self._seasons = seasons
        self._week = week
        self._trend = trend
        self._end = end
        self._misses = misses

    @classmethod
    def learn(cls, history: History, quantile: float) -> Seasonal:
        """Fit the forecast to at least `SEASON_AFTER` days."""
        bins = history.seasons.bins_a_day
        known = np.flatnonzero(np.isfinite(history.values))
        numbers, values = known + history.first, history.values[known]
        terms = _terms(bins, history.days >= _WEEK_AFTER)
        rows = terms.columns[numbers % (7 * bins)]
        ridge = terms.ridge * bins
        if history.days >= _TREND_AFTER:
            rows = np.column_stack((rows, (numbers - history.last) / (7 * bins)))
            ridge = np.append(ridge, 0.0)
        weights, errors = _left_out_by_days(rows, values, ridge, numbers // bins)
        all_errors = np.full(len(history), np.nan)
        all_errors[known] = errors
        trend = float(weights[-1]) if history.days >= _TREND_AFTER else 0.0
        week = terms.columns @ weights[: terms.columns.shape[1]]
        misses = Misses.learn(all_errors, history, quantile)
        return cls(history.seasons, week, trend, history.last, misses)

    def predict(self, history: History, now: float, until: float) -> ForecastInterval:
        """See `forecast_interval.Fitted`."""
        last = history.last
        numbers = bins_between(history, now, until)
        missed = float(history.values[-1]) - float(self._curve(np.array([last]))[0])
        leads = np.maximum(1, numbers - last)
        expected = self._curve(numbers) + missed * self._misses.go_on(leads)
        below, above = self._misses.around(leads, hour_of(numbers, self._seasons.bins_a_day))
        return band_around(history, numbers, (expected, below, above), self._misses.quantile, "seasonal")

    def _curve(self, numbers: NDArray[np.int64]) -> Floats:
        """The values of the curve, week and trend, for bins by number."""
        weeks = (numbers - self._end) / self._seasons.bins_a_week
        return np.asarray(self._week[numbers % len(self._week)] + self._trend * weeks)


@dataclass(frozen=True, slots=True)
class Misses:
    """The errors of the curve: how long they last, and what is left of them by lead and hour."""

    leads: NDArray[np.int64]
    """Leads in bins, ascending; the last one stands for all longer ones."""
    correlation: Floats
    """Per lead: the part of an error that remains, 0 to 1; 0 at the last lead."""
    left: Floats
    """Per lead and hour of the day: the edges of the band, relative to the expected value."""
    quantile: float

    @classmethod
    def learn(cls, errors: Floats, history: History, quantile: float) -> Misses:
        """Learn from errors by bins, NaN where there was no value."""
        bins = history.seasons.bins_a_day
        longest = min(bins, len(errors) // 4)
        leads = [lead for lead in LEADS if lead <= longest]
        hours = hour_of(np.arange(history.first, history.first + len(errors)), bins)
        thin = history.days < _THIN_BELOW
        kept, correlation, left = [], [], []
        for lead in leads:
            before, after = errors[:-lead], errors[lead:]
            both = np.isfinite(before) & np.isfinite(after)
            if both.sum() < 2 * HOURS:
                continue
            before, after = before[both], after[both]
            share = float(before @ after) / max(float(before @ before), 1e-12)
            share = min(1.0, max(0.0, share))
            kept.append(lead)
            correlation.append(share)
            left.append(_edges(after - share * before, hours[lead:][both], quantile, thin))
        known = np.isfinite(errors)
        kept.append(longest + 1)
        correlation.append(0.0)
        left.append(_edges(errors[known], hours[known], quantile, thin))
        # A longer lead is never less uncertain.
        edges = np.maximum.accumulate(np.array(left) * [-1.0, 1.0], axis=0) * [-1.0, 1.0]
        return cls(np.array(kept), np.array(correlation), edges, quantile)

    def go_on(self, leads: NDArray[np.int64]) -> Floats:
        """The part of the present error that remains after `leads` bins."""
        return np.interp(leads, self.leads, self.correlation)

    def around(self, leads: NDArray[np.int64], hours: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """The band's edges relative to the expected value, for each pair of lead and hour."""
        place = np.minimum(np.searchsorted(self.leads, leads), len(self.leads) - 1)
        edges = self.left[place, hours]
        return edges[:, 0], edges[:, 1]


@dataclass(frozen=True, slots=True)
class _Terms:
    """The regression's columns over one week, and the ridge of each, in days."""

    columns: Floats
    ridge: Floats


@lru_cache(maxsize=8)
def _terms(bins_a_day: int, with_week: bool) -> _Terms:
    highest = min(_DAY_HARMONICS, bins_a_day // 3)
    day = [(7 * number, _DAY_SHRINK * number * number) for number in range(1, highest + 1)]
    week = [(number, _WEEK_SHRINK) for number in range(1, _WEEK_HARMONICS + 1) if number % 7]
    chosen = day + (week if with_week else [])
    angle = 2 * math.pi * np.arange(7 * bins_a_day) / (7 * bins_a_day)
    waves = [wave(number * angle) for number, _ in chosen for wave in (np.cos, np.sin)]
    # A wave's square is one half on average, hence the half.
    ridge = [shrink / 2 for _, shrink in chosen for _ in range(2)]
    return _Terms(np.column_stack((np.ones(len(angle)), *waves)), np.array([0.0, *ridge]))


def _left_out_by_days(
    rows: Floats, values: Floats, ridge: Floats, days: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Weights of the ridge regression, and each value's error when its whole day is left out."""
    tiny = 1e-6 * len(values) * np.eye(rows.shape[1])
    square = rows.T @ rows + np.diag(ridge) + tiny
    weights = np.linalg.solve(square, rows.T @ values)
    errors = values - rows @ weights
    edges = np.flatnonzero(np.diff(days)) + 1
    for part in np.split(np.arange(len(values)), edges):
        some, missed = rows[part], errors[part]
        # Woodbury's formula: the regression without these rows, without a second regression.
        errors[part] = missed + some @ np.linalg.solve(square - some.T @ some, some.T @ missed)
    return weights, errors


def _edges(errors: Floats, hours: NDArray[np.int64], quantile: float, thin: bool) -> Floats:
    """The quantiles of errors for each hour, neighbouring hours included: shape (24, 2)."""
    both = (1 - quantile, quantile)
    found = quantiles_by_hour(errors, hours, both)
    if thin:
        whole = np.quantile(errors, both)
        found = np.stack((np.minimum(found[:, 0], whole[0]), np.maximum(found[:, 1], whole[1])), axis=1)
    return found
