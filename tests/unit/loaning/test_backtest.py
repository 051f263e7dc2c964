"""The back-test sees no future, and counts what it says it counts."""

from __future__ import annotations

import numpy as np
import pytest
from diurnal_loads import STEP_S, history, load, times

from flexo.loaning.backtest import Rival, TooShort, backtest, peaks
from flexo.loaning.forecast import learn
from flexo.loaning.forecast_interval import ForecastInterval, bins_between
from flexo.loaning.history import History
from flexo.loaning.last_value import LastValue


class Says:
    """A forecast that knows `truth` and errs by as much as it is told to."""

    def __init__(self, truth: History, off: float = 0.0, width: float = 0.0) -> None:
        self.truth, self.off, self.width = truth, off, width
        self.seen: list[int] = []
        self.learnt: list[int] = []

    def __call__(self, past: History, quantile: float) -> Says:
        self.learnt.append(past.last)
        return self

    def predict(self, past: History, now: float, until: float) -> ForecastInterval:
        self.seen.append(past.last)
        numbers = bins_between(past, now, until)
        places = np.minimum(numbers - self.truth.first, len(self.truth) - 1)
        expected = self.truth.values[places] + self.off
        return ForecastInterval(
            numbers * STEP_S, expected - self.width, expected, expected + self.width, 0.95, "told"
        )


def test_a_perfect_forecast_makes_no_mistakes():
    past = history(*load(6))
    for score in backtest(past, [Rival("x", Says(past))], (600.0, 3600.0), 3, 0.95):
        assert (score.mae, score.within, score.above, score.missed) == (0, 1, 0, 0)
        assert score.peaks > 0


def test_errors_misses_and_the_band_are_counted():
    past = history(*load(6))
    (low,) = backtest(past, [Rival("x", Says(past, off=-3.0, width=1.0))], (3600.0,), 3, 0.95)
    assert low.mae == pytest.approx(3)
    assert (low.within, low.above) == (0, 1)
    assert low.missed == low.peaks
    assert low.missed_by == pytest.approx(2)
    (wide,) = backtest(past, [Rival("x", Says(past, off=-3.0, width=4.0))], (3600.0,), 3, 0.95)
    assert (wide.within, wide.missed) == (1, 0)


def test_no_forecast_sees_what_comes_after_its_origin():
    past = history(*load(4))
    told = Says(past)
    backtest(past, [Rival("x", told, refit_days=0.5)], (600.0,), 2, 0.95)
    first = past.first + 2 * 288 - 1
    assert told.seen == list(range(first, past.first + 4 * 288 - 1, 3))
    assert told.learnt == [first, first + 144, first + 288, first + 432]


def test_a_season_beats_the_last_value_an_hour_ahead():
    past = history(*load(21, seed=2))
    rivals = [Rival("season", learn), Rival("last", LastValue.learn)]
    season, last = backtest(past, rivals, (3600.0,), 5, 0.95)
    assert season.mae < last.mae
    assert (season.fits, season.forecasts) == (5, last.forecasts)


def test_a_share_of_the_truth_is_only_of_whole_servers():
    at = times(3)
    past = history(at, np.full(len(at), 0.5))
    (score,) = backtest(past, [Rival("x", Says(past, off=1.0))], (600.0,), 1, 0.95)
    assert score.mape is None
    assert score.mae == 1


def test_a_history_that_is_too_short_is_refused():
    past = history(*load(2))
    with pytest.raises(TooShort, match="half a day"):
        backtest(past, [Rival("x", learn)], (600.0,), 2, 0.95)
    with pytest.raises(TooShort, match="ahead"):
        backtest(past, [Rival("x", learn)], (86_400.0,), 0.5, 0.95)


def test_holes_are_neither_truth_nor_peaks():
    at, servers = load(5)
    kept = np.ones(len(at), dtype=bool)
    kept[3 * 288 + 20 : 3 * 288 + 80] = False
    past = history(at[kept], servers[kept])
    (score,) = backtest(past, [Rival("x", Says(past, width=1.0))], (600.0,), 2, 0.95)
    assert score.forecasts < 2 * 96 - 10
    assert score.missed == 0


def test_a_peak_is_the_highest_around_and_rises():
    values = np.full(288, 10.0)
    values[100] = 20.0
    values[110] = 15.0  # in the shadow of the other
    values[200] = 10.4  # no 5% of the swing
    assert peaks(values, 288).tolist() == [100]
    values[130] = 16.0
    assert peaks(values, 288).tolist() == [100, 130]
    assert peaks(np.full(288, 5.0), 288).tolist() == []
