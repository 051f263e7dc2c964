"""Policies by name."""

from __future__ import annotations

import pytest

from flexo.policies import registry
from flexo.policies.greedy import Greedy


@pytest.mark.parametrize("name", registry.names())
def test_every_name_makes_a_policy_of_that_name_that_equals_its_like(name):
    policy = registry.make(name)
    assert policy.name == name
    assert isinstance(policy.oracle, bool)
    assert registry.make(name) == policy


def test_settings_are_passed_on():
    assert registry.make("greedy", min_resize_interval_s=5.0) == Greedy(5.0)


def test_an_unknown_name_is_refused_with_all_names_and_the_nearest():
    with pytest.raises(
        registry.UnknownPolicy, match=r"no policy 'tiresas'; did you mean tiresias\? There are: .*lyra"
    ):
        registry.make("tiresas")
    with pytest.raises(registry.UnknownPolicy, match=r"no policy 'xyz'; There are"):
        registry.make("xyz")


def test_an_unknown_setting_is_refused_with_those_that_there_are():
    with pytest.raises(
        registry.BadSetting, match="greedy has no setting 'speed'; its settings: min_resize_interval_s"
    ):
        registry.make("greedy", speed=3)


def test_of_a_policy_that_is_not_known_it_is_taken_that_it_goes_by_running_times():
    assert registry.goes_by_running_times("srtf")
    assert registry.goes_by_running_times("somebody's own")
    assert not registry.goes_by_running_times("fifo")
