"""Equation (4) of IBM's paper: its worked values, against brute force, and against an exact solver."""

from __future__ import annotations

import random
from itertools import product

import pytest
from exact_knapsack import best_value
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.policies.gpu_optimizer import Choices, optimize

THREE_JOBS = (
    Choices.of([(1, 1.0), (2, 1.66), (3, 2.1), (4, 2.4)]),
    Choices.of([(1, 1.0), (2, 1.2), (3, 1.3), (4, 1.35)]),
    Choices.of([(2, 1.5), (3, 2.4), (4, 3.0)]),
)


def worth(jobs: tuple[Choices, ...], gpus: tuple[int, ...]) -> float:
    return sum(job.worth_of(number) for job, number in zip(jobs, gpus, strict=True))


@pytest.mark.parametrize(
    ("gpus", "best", "value"),
    [
        (4, (1, 1, 2), 3.50),
        (5, (1, 1, 3), 4.40),
        (6, (2, 1, 3), 5.06),
        (7, (2, 1, 4), 5.66),
        (8, (3, 1, 4), 6.10),
        (9, (4, 1, 4), 6.40),
        (10, (4, 2, 4), 6.60),
    ],
)
def test_three_jobs_share_the_gpus_as_equation_4_says(gpus: int, best: tuple[int, ...], value: float):
    found = optimize(THREE_JOBS, gpus)
    assert found == best
    assert worth(THREE_JOBS, found) == pytest.approx(value)


def test_it_is_infeasible_if_the_smallest_choices_do_not_fit():
    assert optimize(THREE_JOBS, 3) is None


def test_gpus_stay_unused_where_nobody_gains_by_them():
    jobs = (Choices.of([(1, 1.0), (2, 0.9), (3, 0.9), (4, 1.1)]),) * 2
    assert optimize(jobs, 4) == (1, 1)
    assert optimize(jobs, 100) == (4, 4)


def test_a_job_that_can_run_with_no_number_of_gpus_makes_it_infeasible():
    assert optimize((*THREE_JOBS, Choices.of([(1, 0.0)])), 100) is None


def test_nobody_needs_nothing():
    assert optimize((), 4) == ()


def test_a_greedy_choice_would_be_wrong_where_factors_are_not_concave():
    # category 1 of the paper at 32 samples a GPU: leaving the machine costs more than the third GPU gives
    jobs = (
        Choices.of([(1, 1.0), (2, 1.67), (3, 1.38), (4, 1.73), (5, 2.08), (6, 2.44), (7, 2.8), (8, 3.16)]),
    )
    assert optimize(jobs, 3) == (2,)
    assert sorted(optimize(jobs * 2, 10) or ()) == [2, 8]


SIZES = st.dictionaries(st.integers(1, 6), st.floats(0, 8, allow_nan=False).map(lambda x: round(x, 3)))


@given(tables=st.lists(SIZES, max_size=5), gpus=st.integers(0, 20))
@settings(max_examples=examples(400))
def test_it_equals_brute_force(tables: list[dict[int, float]], gpus: int):
    jobs = tuple(Choices.of(table.items()) for table in tables)
    every = [[size for size, value in table.items() if value > 0] for table in tables]
    feasible = [chosen for chosen in product(*every) if sum(chosen) <= gpus]
    found = optimize(jobs, gpus)
    if not feasible:
        assert found is None
        return
    best = max(sum(t[size] for t, size in zip(tables, each, strict=True)) for each in feasible)
    assert found is not None
    assert sum(found) <= gpus
    assert worth(jobs, found) == pytest.approx(best)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("count", "gpus", "most", "seed"), [(20, 60, 16, 1), (60, 400, 64, 2), (150, 400, 10, 3)]
)
def test_it_equals_an_exact_solver_on_large_clusters(count: int, gpus: int, most: int, seed: int):
    drawn = random.Random(seed)
    jobs = tuple(_rough(drawn, most) for _ in range(count))
    found = optimize(jobs, gpus)
    assert found is not None
    assert worth(jobs, found) == pytest.approx(_solved(jobs, gpus), rel=1e-9)


def _rough(drawn: random.Random, most: int) -> Choices:
    """Factors that neither grow steadily nor ever less, from a number of GPUs of its own on."""
    first, power = drawn.randint(1, 3), drawn.uniform(0.3, 1.0)
    return Choices.of((gpus, gpus**power * drawn.uniform(0.8, 1.0)) for gpus in range(first, most + 1))


def _solved(jobs: tuple[Choices, ...], gpus: int) -> float:
    return best_value([(job.gpus, job.worth) for job in jobs], gpus, one_of_each=True)
