"""Normalised GPUs: one type in terms of another, and several in one run."""

from __future__ import annotations

import pytest

from flexo.policies.gpu_speeds import GpuSpeeds, Paces

SPEEDS = GpuSpeeds({"T4": 1 / 3, "A100": 2.0}, mixed_efficiency=0.9)


def test_a_t4_is_a_third_of_a_v100_and_names_count_in_any_letters():
    assert GpuSpeeds().of("t4") == GpuSpeeds().of("T4") == pytest.approx(1 / 3)
    assert GpuSpeeds().of("V100") == GpuSpeeds().of("") == 1.0


def test_two_v100s_are_as_fast_as_one_and_three_t4s_where_splitting_the_batch_loses_nothing():
    """Lyra's slides: 2 V100 = 1 V100 + 3 T4."""
    together = 4 * GpuSpeeds(mixed_efficiency=1.0).each({"v100": 1, "t4": 3}, mixes=True)
    assert together == pytest.approx(2.0)
    assert 4 * GpuSpeeds(mixed_efficiency=0.9).each({"v100": 1, "t4": 3}, mixes=True) == pytest.approx(1.8)


def test_who_does_not_split_the_batch_waits_for_the_slowest():
    assert SPEEDS.each({"v100": 7, "t4": 1}, mixes=False) == pytest.approx(1 / 3)


def test_a_split_that_loses_more_than_it_gains_is_not_made():
    nearly = GpuSpeeds({"p100": 0.95}, mixed_efficiency=0.9)
    assert nearly.each({"v100": 4, "p100": 4}, mixes=True) == pytest.approx(0.95)


def test_types_of_one_speed_are_one():
    assert SPEEDS.each({"v100": 2, "p100": 2}, mixes=True) == 1.0


@pytest.mark.parametrize(
    ("asked", "on", "pace"),
    [
        ("v100", "t4", 1 / 3),
        ("t4", "v100", 3.0),
        ("t4", "t4", 1.0),
        ("", "v100", 0.5),
        ("", "a100", 1.0),
        ("a100", "t4", 1 / 6),
    ],
)
def test_a_pace_is_to_the_type_that_is_asked_for_else_to_the_clusters_fastest(asked, on, pace):
    assert Paces(SPEEDS, ["t4", "v100", "a100"]).of(asked, {on: 4}, mixes=False) == pytest.approx(pace)


@pytest.mark.parametrize(
    ("speeds", "efficiency", "says"),
    [({"T4": 0.0}, 0.9, "that of T4 is 0"), ({"T4": float("inf")}, 0.9, "above 0"), ({}, 0.0, "above 0")],
)
def test_what_cannot_be_is_refused(speeds, efficiency, says):
    with pytest.raises(ValueError, match=says):
        GpuSpeeds(speeds, efficiency)
