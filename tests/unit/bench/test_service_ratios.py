"""The ratios of make bench-service, with times made up here."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from flexo_bench.service.comm import compare
from flexo_bench.service.ratios import ratio_of_medians
from flexo_bench.service.systems import Turn

pytestmark = pytest.mark.thorough


def test_a_ratio_is_that_of_medians_and_lies_in_its_interval():
    chance = random.Random(3)
    ours = [1.2 + chance.gauss(0, 0.05) for _ in range(40)]
    theirs = [1.0 + chance.gauss(0, 0.05) for _ in range(40)]
    found = ratio_of_medians(ours, theirs)
    assert found.low < found.value < found.high
    assert found.low < 1.2 < found.high
    assert found.high - found.low < 0.1
    assert found == ratio_of_medians(ours, theirs), "the interval is the same each time"


def test_what_disturbs_a_round_disturbs_both_and_does_not_widen_the_interval():
    load = [1.0, 2.0, 3.0] * 10
    found = ratio_of_medians([1.5 * each for each in load], load)
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_systems_have_the_same_rounds():
    with pytest.raises(ValueError, match="2 rounds of ours and 1"):
        ratio_of_medians([1.0, 2.0], [1.0])


def test_times_and_cpu_times_are_compared_with_the_all_reduce():
    turns = {
        "torch": [Turn((0.1, 0.1, 9.0), 0.2)] * 3,
        "shm": [Turn((0.05, 0.05, 0.05), 0.1)] * 3,
        "tcp": [Turn((0.1, 0.15, 0.2), 0.3)] * 3,
        "resident": [Turn((0.2, 0.2, 0.2), 0.4)] * 3,
    }
    found = {name: ratio.value for name, ratio in compare(turns).items()}
    assert found == pytest.approx(
        {
            **{"comm_ratio.shm": 0.5, "cpu_ratio.shm": 0.5},
            **{"comm_ratio.tcp": 1.5, "cpu_ratio.tcp": 1.5},
            **{"comm_ratio.resident": 2.0, "cpu_ratio.resident": 2.0},
        }
    )
