"""The multiple-choice knapsack, against brute force and an exact solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from exact_knapsack import best_value
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.policies import knapsack
from flexo.policies.knapsack import Choice, Group, choose


def check(groups: list[Group], capacity: int, choice: Choice) -> None:
    """What a choice says of itself is true."""
    chosen = [(group, item) for group, item in zip(groups, choice.items, strict=True) if item >= 0]
    assert choice.weight == sum(int(group.weights[item]) for group, item in chosen) <= capacity
    assert choice.value == pytest.approx(sum(float(group.values[item]) for group, item in chosen))
    assert choice.bound >= choice.value
    assert 0.0 <= choice.gap <= knapsack.SMALL_GAP


def brute_force(groups: list[Group], capacity: int) -> float:
    best = 0.0
    for items in itertools.product(*(range(-1, len(group.weights)) for group in groups)):
        chosen = [(group, item) for group, item in zip(groups, items, strict=True) if item >= 0]
        if sum(group.weights[item] for group, item in chosen) <= capacity:
            best = max(best, sum(group.values[item] for group, item in chosen))
    return best


def exact(groups: list[Group], capacity: int) -> float:
    """By OR-Tools, as an integer program."""
    return best_value([(group.weights, group.values) for group in groups], capacity)


SLIDES = [Group([2], [50.0]), Group([1, 2, 3, 4], [20.0, 30.0, 36.0, 40.0])]


@pytest.mark.parametrize(
    ("capacity", "value", "items"),
    [
        (1, 20.0, (-1, 0)),
        (2, 50.0, (0, -1)),
        (3, 70.0, (0, 0)),
        (4, 80.0, (0, 1)),
        (5, 86.0, (0, 2)),
        (6, 90.0, (0, 3)),
        (7, 90.0, (0, 3)),
    ],
)
def test_lyras_own_example_at_each_capacity(capacity: int, value: float, items: tuple[int, ...]):
    choice = choose(SLIDES, capacity)
    assert (choice.value, choice.items, choice.gap) == (value, items, 0.0)


def test_nothing_is_chosen_from_nothing():
    assert choose([], 5) == Choice((), 0.0, 0, 0.0)
    assert choose([Group([], [])], 5).items == (-1,)
    assert choose(SLIDES, 0).items == (-1, -1)


def test_what_is_worth_less_than_nothing_is_left_and_what_weighs_nothing_is_taken():
    choice = choose([Group([1], [-1.0]), Group([0, 1], [3.0, 2.0]), Group([1], [-np.inf])], 5)
    assert choice.items == (-1, 0, -1)


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity -1"):
        choose(SLIDES, -1)


values = st.one_of(st.integers(-3, 9).map(float), st.floats(0.0, 100.0))
items = st.lists(st.tuples(st.integers(0, 9), values), max_size=4)
small_groups = st.lists(
    items.map(lambda each: Group([weight for weight, _ in each], [value for _, value in each])), max_size=5
)


@given(groups=small_groups, capacity=st.integers(0, 30))
@settings(max_examples=examples(400), deadline=None)
def test_it_equals_brute_force(groups: list[Group], capacity: int):
    choice = choose(groups, capacity)
    check(groups, capacity, choice)
    assert choice.gap == 0.0
    assert choice.value == pytest.approx(brute_force(groups, capacity), abs=1e-9)


@given(groups=small_groups, capacity=st.integers(0, 30), core=st.integers(1, 3))
@example(
    groups=[
        Group([5, 8, 2, 1], [6.0, 19.0, 4.0, 3.0]),
        Group([1], [2.0]),
        Group([6, 7], [15.0, 18.0]),
        Group([5, 9, 6], [13.0, 14.0, 2.0]),
    ],
    capacity=11,
    core=1,
)
@settings(max_examples=examples(200), deadline=None)
def test_however_small_the_cores_it_equals_brute_force(groups: list[Group], capacity: int, core: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "FIRST_CORE", core)
        patch.setattr(knapsack, "CORE_GROWTH", 2)
        choice = choose(groups, capacity)
    assert choice.value == pytest.approx(brute_force(groups, capacity), abs=1e-9)


def jobs(seed: int, many: int, most: int, kept: float = 0.0) -> list[Group]:
    """Time saved by more workers of 1 to 8 GPUs, as in Lyra; `kept`: a bonus for some size of each job."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(many):
        least = int(rng.integers(1, most // 2))
        work = least * rng.lognormal(9.0, 2.0)
        workers = np.arange(least + 1, most + 1)
        saved = work / least - work / workers
        saved[rng.integers(0, len(workers))] += kept
        groups.append(Group((workers - least) * int(rng.choice([1, 1, 2, 4, 8])), saved))
    return groups


def hard(seed: int, many: int, each: int) -> list[Group]:
    """Values that hardly differ from weights: hard for any knapsack."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(many):
        weights = rng.integers(1, 65, each)
        groups.append(Group(weights, 10.0 * weights + rng.integers(0, 20, each)))
    return groups


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("groups", "capacity"),
    [
        (jobs(1, 50, 16), 200),
        (jobs(2, 100, 32, kept=30.0), 1000),
        (jobs(3, 200, 64), 3000),
        (jobs(4, 400, 16, kept=300.0), 2500),
        (hard(5, 60, 12), 700),
        (hard(6, 150, 20), 2000),
    ],
)
def test_it_equals_an_exact_solver(groups: list[Group], capacity: int):
    assert sum(len(group.weights) for group in groups) * capacity <= knapsack.EXACT_CELLS
    choice = choose(groups, capacity)
    check(groups, capacity, choice)
    assert choice.gap == 0.0
    assert choice.value == pytest.approx(exact(groups, capacity), rel=1e-9)


@pytest.mark.parametrize("capacity", [700, 5_000, 20_000, 80_000])
@pytest.mark.parametrize("kept", [0.0, 300.0])
def test_beyond_the_exact_size_the_gap_is_proven_to_be_small(capacity: int, kept: float):
    groups = jobs(7, 2000, 64, kept)
    assert sum(len(group.weights) for group in groups) * capacity > knapsack.EXACT_CELLS
    check(groups, capacity, choose(groups, capacity))


def test_beyond_the_exact_size_a_bound_that_is_far_off_makes_it_look_on():
    """Of 10 items that weigh more than half only one fits; the linear relaxation takes nearly two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "EXACT_CELLS", 0)
        choice = choose([Group([51 + number], [1000.0 + number]) for number in range(10)], 100)
    assert choice.value == 1009.0
    assert choice.gap == 0.0


@pytest.mark.processes
def test_the_gap_that_it_states_holds_against_an_exact_solver():
    groups = hard(8, 120, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "EXACT_CELLS", 0)
        choice = choose(groups, 1500)
    check(groups, 1500, choice)
    assert choice.value <= exact(groups, 1500) <= choice.bound * (1 + 1e-9)
