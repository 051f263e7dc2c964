"""IBM's job scalability analyzer: trials and all-reduces in, samples a second out."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.model.ranges import Range
from flexo.scalability.jsa import AllReduceTimes, JobScalability, ProcessingTimes


def processing(high: int = 32) -> ProcessingTimes:
    return ProcessingTimes.try_out(lambda samples: 6.0 + samples, 1, high, 4)


def all_reduce(gpus: int = 8) -> AllReduceTimes:
    return AllReduceTimes.calibrate(lambda weights, many: weights / 1e6 * (many - 1), range(2, gpus + 1))


def test_a_batch_is_tried_out_evenly_between_the_smallest_and_the_largest():
    tried = processing(31)
    assert tried.samples == (1, 11, 21, 31)
    assert tried.seconds == (7.0, 17.0, 27.0, 37.0)


def test_times_between_trials_are_interpolated_and_beyond_them_go_on():
    times = ProcessingTimes((10, 20, 40), (1.0, 2.0, 3.0))
    assert times.at([10, 15, 30, 40]).tolist() == [1.0, 1.5, 2.5, 3.0]
    assert times.at([5, 60]).tolist() == pytest.approx([0.5, 4.0])


def test_a_batch_below_all_trials_takes_its_part_of_the_smallest_at_least():
    times = ProcessingTimes((16, 21), (4.0, 12.0))
    assert times.at([4, 8, 12]).tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_a_batch_beyond_all_trials_takes_as_long_as_the_largest_at_least():
    assert ProcessingTimes((96, 128), (0.075, 0.059)).at([160, 512]).tolist() == [0.059, 0.059]


def test_one_trial_says_the_same_of_every_batch():
    assert ProcessingTimes((16,), (2.0,)).at([1, 16, 64]).tolist() == [2.0, 2.0, 2.0]


def test_the_cluster_is_calibrated_for_each_number_of_gpus_from_10m_to_100m_weights():
    table = all_reduce(4)
    assert table.gpus == (2, 3, 4)
    assert table.weights[0] == 10e6
    assert table.weights[-1] == 100e6
    assert len(table.weights) == 10


def test_weights_between_those_measured_are_interpolated():
    assert all_reduce(4).of(24e6) == pytest.approx((24.0, 48.0, 72.0))


def test_a_step_is_the_processing_of_the_largest_part_and_an_all_reduce():
    speed = JobScalability(processing(), all_reduce(), 20e6, Range(8, 64), 32)
    # 10 samples on 3 GPUs: 4 on one of them, and 40 s of all-reduce
    assert speed.rate(3, 1, 10) == pytest.approx(10 / (6 + 4 + 40))
    assert speed.rate(1, 1, 32) == pytest.approx(32 / 38)


def test_a_batch_that_does_not_fit_the_gpus_cannot_run():
    speed = JobScalability(processing(), all_reduce(), 20e6, Range(64, 64), 32)
    assert speed.rate(1, 1, 64) == 0.0
    assert speed.rate(1, 1) == 0.0
    assert speed.best_batch(1, 1) == 0
    assert speed.rate(2, 1) > 0.0


def test_no_gpu_is_without_a_sample():
    speed = JobScalability(processing(), all_reduce(), 20e6, Range(1, 4), 32)
    assert speed.rate(5, 2, 4) == 0.0
    assert speed.rate(5, 2) == 0.0
    assert speed.rate(0, 0) == 0.0


def test_a_batch_of_millions_costs_no_memory_and_its_speed_is_the_same_for_any_number_of_gpus():
    speed = JobScalability(processing(), all_reduce(), 20e6, Range(1, 10**9), 10**9)
    tracemalloc.start()
    rates = [speed.rate(workers, 1, 10**9) for workers in (1, 1024, 1025, 4096)]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(rates[1], rel=0.01)


def test_more_gpus_than_were_measured_are_taken_to_communicate_like_the_most():
    speed = JobScalability(processing(), all_reduce(4), 10e6, Range(64, 64), 64)
    assert speed.rate(8, 2, 64) == pytest.approx(64 / (6 + 8 + 30))


@given(
    low=st.integers(1, 40),
    more=st.integers(0, 200),
    largest=st.integers(1, 64),
    workers=st.integers(1, 12),
    trials=st.dictionaries(st.integers(1, 80), st.floats(0.1, 90.0), min_size=1, max_size=5),
)
def test_the_best_batch_is_the_best_of_all_that_the_job_accepts(
    low: int, more: int, largest: int, workers: int, trials: dict[int, float]
):
    times = ProcessingTimes(tuple(sorted(trials)), tuple(trials[each] for each in sorted(trials)))
    speed = JobScalability(times, all_reduce(), 30e6, Range(low, low + more), largest)
    rates = {batch: speed.rate(workers, 1, batch) for batch in range(low, low + more + 1)}
    best = speed.best_batch(workers, 1)
    assert speed.rate(workers, 1) == pytest.approx(max(rates.values()))
    assert rates.get(best, 0.0) == pytest.approx(max(rates.values()))


def test_a_job_that_accepts_a_billion_batches_costs_no_memory():
    speed = JobScalability(processing(), all_reduce(), 20e6, Range(1, 10**9), 10**9)
    tracemalloc.start()
    try:
        assert speed.best_batch(4, 1) == 10**9
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
