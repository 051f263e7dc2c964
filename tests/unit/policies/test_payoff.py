"""Whether a resize pays: the numbers of Amoeba, section 3.2."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.policies.resize_benefit import pays, work_if_grown

RATES = st.floats(0.01, 1e4)


def break_even_s(now: float, grown: float, change_s: float) -> float:
    """How long GPUs have to stay that growing neither wins nor loses; infinite where it is not faster."""
    return 2 * change_s * grown / (grown - now) if grown > now else math.inf


def test_thirty_seconds_each_way_for_two_minutes_of_two_gpus_are_refused():
    assert work_if_grown(6, stay_s=120, change_s=30) == 360  # of 480 GPU s without them
    assert not pays(4, 6, stay_s=120, change_s=30)


def test_one_second_each_way_is_accepted():
    assert work_if_grown(6, stay_s=120, change_s=1.07) == pytest.approx(707.16)
    assert pays(4, 6, stay_s=120, change_s=1.07)


def test_thirty_seconds_each_way_pay_from_three_minutes_on():
    assert break_even_s(4, 6, change_s=30) == 180
    assert not pays(4, 6, stay_s=180, change_s=30)
    assert pays(4, 6, stay_s=180.1, change_s=30)


def test_growing_that_makes_nothing_faster_never_pays():
    assert break_even_s(4, 4, change_s=0) == math.inf
    assert not pays(4, 4, stay_s=1e9, change_s=0)
    assert not pays(4, 4, stay_s=math.inf, change_s=0)


def test_gpus_that_stay_for_ever_pay_for_whoever_gets_faster():
    assert pays(4, 4.001, stay_s=math.inf, change_s=1e6)


@given(RATES, RATES, st.floats(0, 1e3), st.floats(0, 1e6))
def test_growing_pays_just_when_the_gpus_stay_longer_than_the_break_even(now, grown, change_s, stay_s):
    even_s = break_even_s(now, grown, change_s)
    if stay_s != pytest.approx(even_s, rel=1e-6, abs=1e-6):
        assert pays(now, grown, stay_s, change_s) == (stay_s > even_s)
