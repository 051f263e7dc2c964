"""The jobs of IBM's evaluation: what the paper prints of them comes out of the model; when they arrive."""

from __future__ import annotations

import pytest

from flexo.model.training import NodeShare
from flexo.scalability.jsa import AllReduceTimes, JobScalability
from flexo_simulation.ibm_training import (
    CATEGORIES,
    Arrivals,
    Category,
    all_reduce_s,
    analyze,
    generate,
)

GPUS = 40


def speed(category: Category) -> JobScalability:
    return analyze(category, AllReduceTimes.calibrate(all_reduce_s, range(2, GPUS + 1)))


def factor(category: Category, workers: int, batch: int = 0) -> float:
    """Equation (1): the rate, to that on one GPU with the largest batch that fits it."""
    known = speed(category)
    return known.rate(workers, 1, batch) / known.rate(1, 1, category.largest_per_gpu)


@pytest.mark.parametrize(("per_gpu", "printed"), [(8, 0.86), (11, 1.06), (16, 1.30), (22, 1.45), (32, 1.66)])
def test_table_2_comes_out_within_two_percent(per_gpu: int, printed: float):
    assert factor(CATEGORIES[0], 2, 2 * per_gpu) == pytest.approx(printed, rel=0.02)


def test_five_gpus_with_160_samples_are_1_6_times_as_fast_as_two_with_32():
    known = speed(CATEGORIES[0])
    assert known.rate(5, 3, 160) / known.rate(2, 1, 32) == pytest.approx(1.6, abs=0.05)


def test_32_samples_a_gpu_do_not_scale_steadily():
    factors = [factor(CATEGORIES[0], workers, 32 * workers) for workers in range(1, 9)]
    assert factors == pytest.approx([1, 1.67, 1.38, 1.73, 2.08, 2.44, 2.80, 3.16], abs=0.01)


def test_category_4_has_one_batch():
    assert {speed(CATEGORIES[3]).best_batch(workers, 1) for workers in (1, 2, 8)} == {128}


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda category: category.model)
def test_a_job_takes_its_printed_length_on_one_gpu(category: Category):
    workload = generate(Arrivals(60.0, categories=(category,)), GPUS, 1)
    run = workload.jobs[0].training.begin()
    assert run.time_left_s((NodeShare("n", 1),), category.largest_per_gpu) == pytest.approx(
        category.minutes * 60
    )


def test_a_job_does_the_same_work_with_any_batch():
    job = generate(Arrivals(60.0, categories=CATEGORIES[:1]), GPUS, 1).jobs[0]
    on_two = (NodeShare("n", 2),)
    small, large = (job.training.begin().time_left_s(on_two, samples) for samples in (22, 64))
    assert small / large == pytest.approx(1.66 / 1.06, rel=0.03)


def test_jobs_arrive_at_the_rate_of_their_phase():
    arrivals = Arrivals(48_000.0)
    at = [minutes for minutes, _ in arrivals.draw(GPUS, 3)]
    high = sum(1 for minutes in at if minutes // 120 % 2 == 0)
    low = len(at) - high
    assert high / 24_000 == pytest.approx(GPUS / 26.25, rel=0.02)
    assert low / 24_000 == pytest.approx(GPUS / 26.25 / 4, rel=0.04)
    assert at == sorted(at)


def test_categories_are_equally_frequent():
    drawn = [category.number for _, category in Arrivals(10_000.0).draw(GPUS, 3)]
    for category in CATEGORIES:
        assert drawn.count(category.number) / len(drawn) == pytest.approx(0.25, abs=0.02)


def test_the_same_seed_gives_the_same_jobs_and_another_one_others():
    first, again, other = (list(Arrivals(240.0).draw(GPUS, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_nobody_has_more_gpus_than_samples_or_than_k_max():
    jobs = generate(Arrivals(120.0), 400, 1).jobs
    assert {job.batch.max: job.workers.max for job in jobs if job.batch} == {256: 256, 1024: 400, 128: 128}
    assert {job.workers.max for job in generate(Arrivals(120.0), 400, 1, k_max=10).jobs} == {10}
