"""Forecasts of demand: what they learn of loads of known shapes, and what they say where they know little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from diurnal_loads import BEGIN, DAY_S, STEP_S, history, load, times
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.loaning.forecast import Predictor, learn
from flexo.loaning.forecast_interval import ForecastInterval
from flexo.loaning.history import History
from flexo.loaning.in_background import InBackground
from flexo.loaning.last_value import LastValue

QUIET = {"noise": 0.0, "bursts_per_day": 0.0}


def forecast(past: History, days: float, quantile: float = 0.95) -> ForecastInterval:
    now = (past.last + 1) * past.seasons.step_s
    return learn(past, quantile).predict(past, now, now + days * DAY_S - 1)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def last_days(at: np.ndarray, servers: np.ndarray, days: float) -> tuple[History, np.ndarray]:
    """The history before the last `days`, and what they were."""
    cut = len(at) - round(days * DAY_S / STEP_S)
    return history(at[:cut], servers[:cut]), servers[cut:]


def test_the_course_of_the_day_is_learnt_within_two_days():
    past, truth = last_days(*load(4, weekend=1.0, **QUIET), 1)
    band = forecast(past, 1)
    assert band.method == "seasonal"
    assert len(band.expected) == len(truth) == len(band.times)
    assert np.abs(band.expected - truth).mean() < 0.05 * truth.mean()


def test_the_weekend_is_learnt_once_there_has_been_one():
    at, servers = load(21, weekend=0.5, **QUIET)
    past, truth = last_days(at, servers, 2)  # Saturday and Sunday
    assert np.abs(forecast(past, 2).expected - truth).mean() < 0.1 * truth.mean()


def test_growth_goes_on():
    past, truth = last_days(*load(28, growth=0.1, weekend=1.0, **QUIET), 3)
    expected = forecast(past, 3).expected
    assert expected.mean() == pytest.approx(truth.mean(), rel=0.03)


def test_what_is_unusual_now_goes_on_for_a_while_and_then_fades():
    at, servers = load(15, bursts_per_day=4.0, weekend=1.0)
    past = history(at, servers)
    plain = forecast(past, 1).expected
    raised = servers.copy()
    raised[-1] += 10
    burst = forecast(history(at, raised), 1).expected - plain
    assert burst[0] > 5
    assert abs(burst[-1]) < 1


@pytest.mark.thorough
def test_the_band_holds_about_as_much_as_it_says_and_is_wider_further_ahead():
    at, servers = load(24, seed=3)
    inside, above, widths = [], [], []
    whole = history(at, servers)
    for origin in range(14 * 288, 24 * 288 - 72, 37):
        past = whole.until(whole.first + origin)
        band = learn(past, 0.9).predict(past, (past.last + 1) * STEP_S, (past.last + 72) * STEP_S)
        truth = servers[origin + 1 : origin + 73]
        inside.append((truth >= band.lower) & (truth <= band.upper))
        above.append(truth > band.upper)
        widths.append(band.upper - band.lower)
    assert 0.65 < np.mean(inside) < 0.95
    assert 0.02 < np.mean(above) < 0.2
    assert np.mean(widths, axis=0)[0] < np.mean(widths, axis=0)[-1]


def test_a_higher_quantile_is_a_higher_edge():
    past, _ = last_days(*load(10), 1)
    assert (forecast(past, 1, 0.99).upper >= forecast(past, 1, 0.8).upper).all()
    assert forecast(past, 1, 0.99).quantile == 0.99


def test_hours_of_history_give_the_last_value_in_a_wide_band_and_it_says_so():
    past, _ = last_days(*load(0.8, **QUIET), 0.05)  # midnight to six in the evening
    band = forecast(past, 1)
    assert band.method == "last value"
    assert "18.0 hours" in band.note
    assert (band.expected == past.values[-1]).all()
    assert (band.upper[60:] >= past.values.max()).all()
    assert band.upper[0] < past.values.max()
    assert (np.diff(band.upper) >= 0).all()
    assert band.upper[-1] - band.lower[-1] > band.upper[0] - band.lower[0]


def test_one_single_value_is_enough():
    band = forecast(history(np.array([BEGIN]), np.array([10.0])), 0.1)
    assert (band.lower <= 9).all()
    assert (band.upper >= 11).all()


def test_irregular_samples_and_gaps_do_not_matter_much():
    at, servers = load(21, weekend=1.0)
    random = np.random.default_rng(4)
    kept = random.random(len(at)) < 0.5
    kept[1000:1600] = False
    late = at + random.uniform(0, 200, len(at))
    past = history(late[kept], servers[kept])
    band = forecast(past, 0.9)
    assert band.method == "seasonal"
    truth = load(22, weekend=1.0)[1][((band.times - BEGIN) / STEP_S).astype(int)]
    assert np.abs(band.expected - truth).mean() < 0.15 * truth.mean()


def test_hourly_samples_will_do():
    at = times(21, 3600.0)
    servers = 40 + 20 * np.cos(2 * np.pi * at / DAY_S)
    band = forecast(history(at, servers), 1)
    assert band.method == "seasonal"
    assert len(band.expected) == 24
    assert band.expected == pytest.approx(40 + 20 * np.cos(2 * np.pi * band.times / DAY_S), abs=1.0)


def test_days_of_which_some_hours_were_never_seen_are_no_season():
    at, servers = load(10)
    day = (at % DAY_S) < 0.5 * DAY_S
    assert forecast(history(at[day], servers[day]), 1).method == "last value"


def test_after_a_long_silence_only_the_season_is_left():
    at, servers = load(14, weekend=1.0)
    past = history(at, servers)
    later = BEGIN + 17 * DAY_S
    band = learn(past).predict(past, later, later + DAY_S - 1)
    assert band.times[0] == later
    truth = load(18, weekend=1.0, **QUIET)[1][17 * 288 :]
    assert np.abs(band.expected - truth).mean() < 0.15 * truth.mean()


def test_constant_demand_is_forecast_as_such():
    at = times(10)
    band = forecast(history(at, np.full(len(at), 12.0)), 1)
    assert band.expected == pytest.approx(np.full(288, 12.0), abs=0.05)
    nothing = forecast(history(at, np.zeros(len(at))), 1)
    assert nothing.highest == pytest.approx(0, abs=0.05)


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.integers(0, 3 * 288), st.floats(0, 1e4)), min_size=1, max_size=300),
    st.floats(0.5, 0.99),
    st.floats(0, 3),
)
def test_every_band_is_finite_in_order_and_not_below_nothing(samples, quantile, ahead):
    past = History.of([(BEGIN + number * STEP_S, servers) for number, servers in samples])
    band = forecast(past, ahead, quantile)
    assert np.isfinite(band.upper).all()
    assert (band.lower >= 0).all()
    assert (band.lower <= band.expected).all()
    assert (band.expected <= band.upper).all()
    assert band.highest == band.upper.max()


def test_a_predictor_goes_along_and_begins_to_know_the_season():
    at, servers = load(5, weekend=1.0)
    predictor = Predictor(interval_s=300.0)
    methods = []
    for now, needed in zip(at.tolist(), servers.tolist(), strict=True):
        predictor.note(now, needed)
        methods.append(predictor.band(now, now + 600).method)
    assert methods[0] == "last value"
    assert methods[-1] == "seasonal"
    band = predictor.band(at[-1], at[-1] + DAY_S)
    assert band.times[0] == at[-1]
    assert band.expected.max() > 1.3 * band.expected.min()


def test_a_predictor_knows_a_day_of_minutes():
    predictor = Predictor(day_s=600.0, interval_s=2.0)
    at = BEGIN + np.arange(1500) * 2.0
    for now in at.tolist():
        predictor.note(now, 20 + 10 * np.cos(2 * np.pi * now / 600.0))
    band = predictor.band(at[-1], at[-1] + 600.0)
    assert band.expected.max() == pytest.approx(30, abs=1.5)
    assert band.expected.min() == pytest.approx(10, abs=1.5)


def test_a_predictor_survives_clocks_that_jump():
    predictor = Predictor()
    for now in (BEGIN, BEGIN + 60, BEGIN - 5 * DAY_S, BEGIN + 500 * DAY_S, BEGIN):
        predictor.note(now, 10.0)
        assert predictor.band(now, now + 600).highest >= 10


def test_a_predictor_that_was_told_nothing_says_so():
    with pytest.raises(ValueError, match="nothing was noted"):
        Predictor().band(BEGIN, BEGIN + 60)


def test_a_slow_forecast_learns_behind_a_quick_one():
    at, servers = load(3)
    past, go_on = history(at, servers), threading.Event()

    def slow(known: History, quantile: float) -> LastValue:
        assert go_on.wait(30)
        return LastValue.learn(known, quantile)

    method = InBackground(slow, learn)
    fitted = method(past, 0.95)
    assert fitted.predict(past, at[-1], at[-1] + 600).method == "seasonal"
    go_on.set()
    until(lambda: fitted.predict(past, at[-1], at[-1] + 600).method == "last value")
    go_on.clear()
    assert method(past, 0.95).predict(past, at[-1], at[-1] + 600).method == "last value"
    go_on.set()


def test_a_slow_forecast_that_fails_is_told_of_and_the_quick_one_stands():
    def fails(known: History, quantile: float) -> LastValue:
        raise RuntimeError("out of luck")

    at, servers = load(3)
    past = history(at, servers)
    fitted = InBackground(fails, learn)(past, 0.95)
    until(lambda: "out of luck" in fitted.predict(past, at[-1], at[-1] + 600).note)
    assert fitted.predict(past, at[-1], at[-1] + 600).method == "seasonal"


def test_the_same_history_gives_the_same_forecast():
    past, _ = last_days(*load(15), 1)
    assert (forecast(past, 1).upper == forecast(past, 1).upper).all()


def test_a_predictor_is_cheap_between_the_times_when_it_learns():
    at, servers = load(28)
    predictor = Predictor(interval_s=300.0)
    for now, needed in zip(at.tolist(), servers.tolist(), strict=True):
        predictor.note(now, needed)
    predictor.band(at[-1], at[-1] + 240)
    began = time.process_time()
    for _ in range(1000):
        predictor.note(at[-1], 1.0)
        predictor.band(at[-1], at[-1] + 240)
    assert time.process_time() - began < 5  # CPU time, and fifty times what it takes
