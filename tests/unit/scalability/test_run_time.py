"""A job's running time by batch (IBM, section V-A), on what the paper prints of its own jobs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.model.measured import Source
from flexo.model.ranges import Range
from flexo.scalability.jsa import AllReduceTimes, JobScalability, ProcessingTimes
from flexo.scalability.run_time import MOST_BATCHES, RunTimes
from flexo_simulation.ibm_training import CATEGORIES, Category, all_reduce_s, analyze

FIRST, SECOND, THIRD, FOURTH = CATEGORIES
ALL_REDUCE = AllReduceTimes.calibrate(all_reduce_s, range(2, 41))


def times_of(category: Category) -> RunTimes:
    """A whole job of this category, as long on one GPU with the largest batch that fits as is printed."""
    speed = analyze(category, ALL_REDUCE)
    work = category.minutes * 60 * speed.rate(1, 1, category.largest_per_gpu)
    return RunTimes(speed, work, category.batch, Source.PROGRESS)


def minutes(category: Category, batch: int, workers: int) -> float:
    return times_of(category).seconds(batch, workers) / 60


@pytest.mark.parametrize(("category", "printed"), [(FIRST, 16), (SECOND, 21), (THIRD, 41), (FOURTH, 27)])
def test_a_job_takes_its_printed_minutes_with_the_largest_batch_of_one_gpu(category: Category, printed: int):
    assert minutes(category, category.largest_per_gpu, 1) == pytest.approx(printed)


@pytest.mark.parametrize(("per_gpu", "printed"), [(8, 0.86), (11, 1.06), (16, 1.30), (22, 1.45), (32, 1.66)])
def test_on_two_gpus_the_16_minutes_shrink_by_the_factors_of_table_2(per_gpu: int, printed: float):
    assert minutes(FIRST, 2 * per_gpu, 2) == pytest.approx(16 / printed, rel=0.02)


def test_160_samples_on_five_gpus_end_1_6_times_sooner_than_32_on_two():
    assert minutes(FIRST, 32, 2) / minutes(FIRST, 160, 5) == pytest.approx(1.6, abs=0.05)


def test_a_batch_that_does_not_fit_never_ends():
    assert minutes(FIRST, 64, 1) == math.inf
    assert minutes(FIRST, 64, 2) < math.inf


@pytest.mark.parametrize(("batch", "fewest"), [(32, 1), (33, 2), (160, 5), (256, 8)])
def test_the_worst_case_of_a_batch_is_the_fewest_gpus_that_hold_it(batch: int, fewest: int):
    assert times_of(FIRST).fewest(batch, Range(1, 40)) == fewest


def test_a_batch_that_no_allowed_number_of_workers_holds_has_no_worst_case():
    assert times_of(FIRST).fewest(256, Range(1, 7)) == 0
    assert times_of(FIRST).fewest(32, Range(4, 7)) == 4


@pytest.mark.parametrize(
    ("category", "batches"),
    [
        (FIRST, (32, 64, 128, 256)),
        (SECOND, (16, 32, 64, 128, 256)),
        (THIRD, (16, 32, 64, 128, 256, 512, 1024)),
        (FOURTH, (128,)),
    ],
)
def test_a_forecast_is_of_both_ends_of_the_range_and_of_doublings_between(
    category: Category, batches: tuple[int, ...]
):
    assert times_of(category).batches() == batches


@given(low=st.integers(1, 10_000), more=st.integers(0, 10_000_000))
def test_a_forecast_has_few_batches_all_within_the_range(low: int, more: int):
    speed = JobScalability(ProcessingTimes((1,), (1.0,)), ALL_REDUCE, 24e6, Range(low, low + more), 1)
    batches = RunTimes(speed, 1.0, Range(low, low + more), Source.PROGRESS).batches()
    assert (batches[0], batches[-1]) == (low, low + more)
    assert len(batches) <= MOST_BATCHES
    assert list(batches) == sorted(set(batches))
