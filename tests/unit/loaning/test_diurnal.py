"""Made-up demand has the shape that it is told to have, and the same seed gives the same load."""

from __future__ import annotations

import numpy as np
import pytest
from diurnal_loads import load, times

from flexo.loaning.diurnal import BadShape, Diurnal


def test_the_mean_is_about_what_is_published_of_lyras_cluster():
    _, servers = load(28)
    assert 0.35 <= servers.mean() / 100 <= 0.47


def test_days_swing_and_weekends_are_quieter():
    _, servers = load(14, noise=0.0, bursts_per_day=0.0)
    days = servers.reshape(14, 288)
    assert days[1].max() / days[1].min() == pytest.approx(4, rel=0.05)
    assert np.argmax(days[1]) / 288 * 24 == pytest.approx(14, abs=0.5)
    assert days[5].max() == pytest.approx(0.75 * days[1].max(), rel=0.02)
    assert days[8].max() == pytest.approx(days[1].max())


def test_bursts_rise_at_once_and_fade():
    _, with_bursts = load(14, noise=0.0)
    rises = np.diff(with_bursts)
    assert rises.max() > 4
    assert rises.min() > -rises.max() / 2


def test_it_stays_between_nothing_and_the_clusters_size():
    _, servers = load(14, noise=1.0, bursts_per_day=20.0)
    assert servers.min() == 0
    assert servers.max() == 100


def test_a_seed_is_one_load():
    assert (load(3, seed=5)[1] == load(3, seed=5)[1]).all()
    assert (load(3, seed=5)[1] != load(3, seed=6)[1]).any()


def test_growth_is_by_the_week():
    _, servers = load(28, growth=0.1, noise=0.0, bursts_per_day=0.0)
    weeks = servers.reshape(4, -1).mean(axis=1)
    assert np.diff(weeks) == pytest.approx([4, 4, 4], rel=0.1)


def test_no_times_are_no_load():
    assert len(Diurnal().servers_at(times(0), 1)) == 0


@pytest.mark.parametrize(
    "wrong", [{"mean_use": 1.5}, {"servers": 0}, {"swing": -0.1}, {"noise": float("nan")}, {"day_s": 0}]
)
def test_a_load_that_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(BadShape, match=next(iter(wrong))):
        Diurnal(**wrong)
