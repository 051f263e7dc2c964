"""The LSTM learns a day's course like the other forecast, the same each time, and says when it cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from diurnal_loads import DAY_S, history, load

from flexo.loaning import lstm
from flexo.loaning.forecast_interval import ForecastInterval
from flexo.loaning.history import History
from flexo.loaning.lstm import LstmMethod, TorchMissing


def tomorrow(method: LstmMethod, past: History) -> ForecastInterval:
    now = (past.last + 1) * past.seasons.step_s
    return method(past, 0.9).predict(past, now, now + DAY_S - 1)


def test_without_pytorch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TorchMissing, match=r"whl\[torch\]"):
        LstmMethod()(history(*load(3)), 0.95)


def test_a_short_history_gives_the_last_value():
    pytest.importorskip("torch")
    past = history(*load(1))
    band = tomorrow(LstmMethod(), past)
    assert band.method == "last value"
    assert band.note


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_forecast_and_nobody_elses_numbers_change(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(lstm, "STEPS", 20)
    past = history(*load(3))
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    one, same, other = (tomorrow(LstmMethod(seed), past) for seed in (3, 3, 4))
    assert (torch.random.get_rng_state() == state).all()
    assert torch.get_num_threads() == threads
    assert (one.upper == same.upper).all()
    assert (one.upper != other.upper).any()


@pytest.mark.thorough
def test_it_learns_the_course_of_a_day_and_a_band(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(lstm, "STEPS", 150)
    at, servers = load(8, weekend=1.0, bursts_per_day=1.0)
    band = tomorrow(LstmMethod(seed=3), history(at[: 7 * 288], servers[: 7 * 288]))
    truth = servers[7 * 288 :]
    assert band.method == "LSTM"
    assert np.abs(band.expected - truth).mean() < 0.3 * truth.mean()
    assert (band.lower <= band.expected).all()
    assert (band.expected <= band.upper).all()
