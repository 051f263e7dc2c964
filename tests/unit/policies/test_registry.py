"""Policies by name."""

from __future__ import annotations

import re

import pytest

from flexo.policies import registry
from flexo.policies.backfill import Backfill
from flexo.policies.base import Policy
from flexo.policies.tiresias import Tiresias


@pytest.mark.parametrize("name", registry.names())
def test_every_name_makes_a_policy_of_that_name_that_equals_its_like(name):
    policy = registry.make(name)
    assert policy.name == name
    assert isinstance(policy.oracle, bool)
    assert registry.make(name) == policy


def test_settings_are_passed_on():
    assert registry.make("backfill", depth=5) == Backfill(5)


def test_an_unknown_name_is_refused_with_all_names_and_the_nearest():
    with pytest.raises(registry.UnknownPolicy, match=r"'tiresas'.*\btiresias\?.*\blyra\b"):
        registry.make("tiresas")
    with pytest.raises(registry.UnknownPolicy, match=r"'xyz'[^?]*\blyra\b"):
        registry.make("xyz")


def test_an_unknown_setting_is_refused_with_those_that_there_are():
    with pytest.raises(registry.BadSetting, match=r"backfill\b.*'speed'.*\bdepth\b"):
        registry.make("backfill", speed=3)
    with pytest.raises(registry.BadSetting, match=r"greedy\b.*'speed'.*no settings"):
        registry.make("greedy", speed=3)


@pytest.mark.parametrize(
    ("name", "setting", "value", "says"),
    [
        ("lyra", "stay_s", "abc", "stay_s is 'abc': Input should be a valid number"),
        ("lyra", "stay_s", -5, "stay_s is -5: it takes numbers from 0 on"),
        ("lyra", "stay_s", float("nan"), "it takes numbers from 0 on"),
        ("lyra", "gpu_speeds", 3, "gpu_speeds is 3: Input should be a valid dictionary"),
        ("lyra", "gpu_speeds", {"t4": 0}, "the speed of a GPU is above 0"),
        ("lyra", "order", "mine", "order is 'mine': Input should be 'policy' or 'cluster'"),
        ("tiresias", "quanta_gpu_s", 5, "quanta_gpu_s is 5: Input should be a valid tuple"),
        ("tiresias", "quanta_gpu_s", [5, -1], "it takes numbers from 0 on"),
        ("backfill", "depth", 2.5, "depth is 2.5: Input should be a valid integer"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(name, setting, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        registry.make(name, **{setting: value})


def test_values_come_as_the_setting_has_them():
    policy = registry.make("tiresias", quanta_gpu_s=[5, 7.5])
    assert policy == Tiresias(quanta_gpu_s=(5.0, 7.5))


@pytest.mark.parametrize("name", registry.names())
def test_the_defaults_are_values_that_may_be_said(name):
    usual = registry.make(name)
    said = {setting: getattr(usual, setting) for setting in registry.settings_of(name)}
    assert registry.make(name, **said) == usual


def test_of_a_policy_that_does_not_deny_it_it_is_taken_that_it_goes_by_running_times():
    assert registry.class_of("srtf").uses_running_times
    assert Policy.uses_running_times
    assert not registry.class_of("fifo").uses_running_times


def test_policies_that_look_for_servers_on_loan_are_told_their_partition_and_no_others():
    usual, told = registry.flexod_settings, {"borrowed_partition": "lent"}
    assert usual("lyra", told) == {**usual("lyra"), "inference": "lent"}
    assert usual("tiresias", told) == usual("tiresias")
