"""Workloads that are made up: reproducible, as large as asked, and with the distributions that they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from says import says
from scipy.stats import kstest
from traces import needs_traces

from flexo_simulation.formats import philly
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.generate import (
    DURATIONS,
    FIT_STARTS,
    LONGEST_S,
    SIZES,
    TENANTS,
    Arrivals,
    Recipe,
    generate,
)
from flexo_simulation.lognormals import Lognormals, fit

RECIPE = Recipe(jobs=3000, gpus=128, seed=5)


def seconds(job) -> float:
    return job.training.work / job.requested_workers


def test_equal_recipes_make_equal_jobs_and_another_seed_others():
    assert generate(RECIPE) == generate(RECIPE)
    assert generate(RECIPE).jobs != generate(replace(RECIPE, seed=6)).jobs


def test_these_jobs_are_the_same_for_ever():
    found = [(job.submitted_at, job.requested_workers, seconds(job)) for job in generate(RECIPE).jobs[:3]]
    assert found == [(0.0, 1, 1643.0), (pytest.approx(483.166), 1, 193_987.0), (found[2][0], 1, 32_851.0)]


def test_jobs_come_in_order_from_time_0_and_want_no_more_than_the_cluster_has():
    found = generate(replace(RECIPE, gpus=4)).jobs
    times = [job.submitted_at for job in found]
    assert times[0] == 0
    assert times == sorted(times)
    assert [job.job_id for job in found] == list(range(1, 3001))
    assert {job.requested_workers for job in found} == {1, 2, 4}


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_load_is_what_was_asked_for(arrivals):
    found = generate(replace(RECIPE, arrivals=arrivals, load=0.6)).jobs
    gpu_s = sum(job.training.work for job in found)
    assert gpu_s / (128 * found[-1].submitted_at) == pytest.approx(0.6, rel=0.07)


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_rate_is_what_was_asked_for(arrivals):
    found = generate(replace(RECIPE, arrivals=arrivals, jobs_per_hour=40.0)).jobs
    assert 3000 / found[-1].submitted_at * 3600 == pytest.approx(40.0, rel=0.07)


def test_bursty_arrivals_alternate_between_a_rate_and_a_quarter_of_it():
    found = generate(replace(RECIPE, arrivals=Arrivals.BURSTY, jobs_per_hour=60.0)).jobs
    high = sum(1 for job in found if job.submitted_at % 7200 < 3600)
    assert high / (len(found) - high) == pytest.approx(4.0, rel=0.15)


def test_no_job_runs_longer_than_asked():
    assert max(seconds(job) for job in generate(replace(RECIPE, longest_s=5000.0)).jobs) <= 5000
    assert max(seconds(job) for job in generate(RECIPE).jobs) <= LONGEST_S


def test_where_numbers_come_from_is_said():
    notes = " ".join(generate(replace(RECIPE, arrivals=Arrivals.BURSTY, jobs_per_hour=50)).notes)
    assert says(notes, "80 and 20 jobs", "hour", "60 min")
    assert "Philly" in notes


@pytest.mark.thorough
def test_a_fit_finds_what_values_were_drawn_from():
    truth = Lognormals((0.3, 0.7), (3.0, 8.0), (0.5, 1.0))
    draws = np.random.Generator(np.random.PCG64(1)).random((2, 4000))
    found = fit(truth.draw(draws[0], draws[1], 1e9), (0.15, 0.65))
    assert found.weights == pytest.approx(truth.weights, abs=0.03)
    assert found.means == pytest.approx(truth.means, abs=0.1)
    assert found.deviations == pytest.approx(truth.deviations, abs=0.1)


@pytest.fixture(scope="module")
def real():
    """GPUs, durations in seconds and tenants of Philly's jobs."""
    jobs = philly.read(needs_traces("philly/philly.csv"), ReadOptions()).jobs
    sizes = np.array([job.requested_workers for job in jobs])
    return sizes, np.array([seconds(job) for job in jobs]), [job.tenant for job in jobs]


@pytest.mark.thorough
def test_sizes_and_tenants_are_phillys(real):
    sizes, durations, tenants = real
    assert {int(size): int((sizes == size).sum()) for size in np.unique(sizes)} == SIZES
    assert sorted((tenants.count(name) for name in set(tenants)), reverse=True) == list(TENANTS)
    assert durations.max() == LONGEST_S


def of_class(real, gpus):
    sizes, durations, _ = real
    above = [other for other in DURATIONS if other > gpus]
    return durations[(sizes >= gpus) & (sizes < (above[0] if above else np.inf))]


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [2, 4, 8, 12])
def test_the_distributions_of_durations_are_what_a_fit_of_philly_gives(real, gpus):
    assert fit(of_class(real, gpus), FIT_STARTS[gpus]) == DURATIONS[gpus]


@pytest.mark.parametrize(("gpus", "apart"), [(1, 0.021), (2, 0.040), (4, 0.030), (8, 0.027), (12, 0.039)])
def test_and_they_are_as_near_to_it_as_is_said(real, gpus, apart):
    durations = of_class(real, gpus)
    assert kstest(durations, DURATIONS[gpus].share_below).statistic < apart
    draws = np.random.Generator(np.random.PCG64(1)).random((2, 400_000))
    drawn = DURATIONS[gpus].draw(draws[0], draws[1], LONGEST_S)
    assert drawn.mean() == pytest.approx(durations.mean(), rel=0.06)
