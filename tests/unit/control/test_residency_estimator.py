"""How long satellites lately stayed, learned from looks at them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flexo.control.residency import ResidencyEstimator
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo_protos.resources import Resources


def job(number: int, *grants: str, state: SatelliteState = SatelliteState.TRAINING) -> ElasticJob:
    """A base with these satellites."""
    key = JobKey(number)
    return ElasticJob(
        key,
        "ada",
        Range(1, 8),
        Resources(1, 1),
        ("n1",),
        1,
        tuple(Grant(name, key, "n2", 1, "flex", 0.0, state) for name in grants),
    )


def seen(looks) -> ResidencyEstimator:
    """After looks at jobs: {at: jobs}."""
    stays = ResidencyEstimator()
    for at, jobs in looks.items():
        stays.see(jobs, at)
    return stays


FIVE = [job(number, "g") for number in range(5)]
LEAVING = [job(number, "g", state=SatelliteState.LEAVING) for number in range(5)]
GONE = [job(number) for number in range(5)]


def test_nothing_is_made_of_too_few_that_have_left():
    assert seen({0.0: FIVE, 100.0: [*LEAVING[:4], FIVE[4]]}).likely_s(100.0) == math.inf


def test_the_mean_of_those_that_have_left_and_of_the_time_that_others_have_stayed_already():
    stays = seen({0.0: [*FIVE, job(9, "g")], 100.0: [*LEAVING, job(9, "g")], 110.0: [*GONE, job(9, "g")]})
    assert stays.likely_s(100.0) == pytest.approx((5 * 100.0 + 100.0) / 5)
    assert stays.likely_s(400.0) == pytest.approx((5 * 100.0 + 400.0) / 5)


def test_satellites_that_fail_or_end_with_their_base_were_wanted_by_nobody_else():
    assert seen({0.0: FIVE, 100.0: []}).likely_s(100.0) == math.inf
    assert seen({0.0: FIVE, 100.0: GONE}).likely_s(100.0) == math.inf


def test_a_grant_counts_from_when_its_satellite_is_there_until_it_is_to_leave():
    waiting = [replace(each, grants=job(1, "g", state=SatelliteState.PENDING).grants) for each in FIVE]
    stays = seen({0.0: waiting, 50.0: FIVE, 80.0: LEAVING, 90.0: GONE})
    assert stays.likely_s(90.0) == pytest.approx(30.0)


def test_what_is_longer_ago_than_an_hour_says_nothing_of_now():
    stays = seen({0.0: FIVE, 10.0: LEAVING})
    assert stays.likely_s(10.0) == pytest.approx(10.0)
    stays.see([], 3700.0)
    assert stays.likely_s(3700.0) == math.inf
