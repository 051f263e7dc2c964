"""The knapsack with a capacity of each GPU type, against brute force and an exact solver."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from thorough import examples

from flexo.policies.knapsack_by_type import TypedGroup, choose_by_type

TYPES = ("a100", "t4")


class Item(NamedTuple):
    """A size of a job."""

    gpu_type: str
    gpus: int
    value: float


def chosen_of(groups: Sequence[Sequence[Item]], capacity: Mapping[str, int]) -> tuple[int, ...]:
    columns = [
        TypedGroup([i.gpu_type for i in group], [i.gpus for i in group], [i.value for i in group])
        for group in groups
    ]
    return choose_by_type(columns, capacity)


def value_of(groups: Sequence[Sequence[Item]], items: Sequence[int], capacity: Mapping[str, int]) -> float:
    """The value of a choice; -inf if it does not fit."""
    chosen = [group[item] for group, item in zip(groups, items, strict=True) if item >= 0]
    for name in {item.gpu_type for item in chosen}:
        if sum(item.gpus for item in chosen if item.gpu_type == name) > capacity.get(name, 0):
            return float("-inf")
    return sum(item.value for item in chosen)


def brute_force(groups: Sequence[Sequence[Item]], capacity: Mapping[str, int]) -> float:
    every = itertools.product(*(range(-1, len(group)) for group in groups))
    return max(value_of(groups, items, capacity) for items in every)


def bound_of(groups: Sequence[Sequence[Item]], capacity: Mapping[str, int], *, whole: bool) -> float:
    """What the best choice is worth, by an integer program; not `whole`: at most, by a linear program."""
    items = [(number, item) for number, group in enumerate(groups) for item in group]
    uses = np.zeros((len(groups) + len(capacity), len(items)))
    for column, (number, item) in enumerate(items):
        uses[number, column] = 1.0
        uses[len(groups) + list(capacity).index(item.gpu_type), column] = item.gpus
    most = LinearConstraint(uses, -np.inf, [*([1.0] * len(groups)), *capacity.values()])
    values = np.array([-item.value for _, item in items])
    found = milp(values, constraints=most, bounds=Bounds(0, 1), integrality=np.full(len(items), int(whole)))
    return -float(found.fun)


items = st.builds(Item, st.sampled_from(TYPES), st.integers(0, 6), st.floats(0.1, 10, allow_nan=False))
small = st.lists(st.lists(items, max_size=4), min_size=1, max_size=4)
capacities = st.fixed_dictionaries({name: st.integers(0, 10) for name in TYPES})


@settings(max_examples=examples(200))
@given(small, capacities)
def test_the_choice_fits_and_nothing_more_would(groups: list[list[Item]], capacity: dict[str, int]) -> None:
    chosen = chosen_of(groups, capacity)
    value = value_of(groups, chosen, capacity)
    assert value >= 0
    for number, group in enumerate(groups):
        for item in range(len(group)):
            other = (*chosen[:number], item, *chosen[number + 1 :])
            assert value_of(groups, other, capacity) <= value + 1e-9


@settings(max_examples=examples(200))
@given(small, capacities)
def test_a_small_choice_is_the_best(groups: list[list[Item]], capacity: dict[str, int]) -> None:
    value = value_of(groups, chosen_of(groups, capacity), capacity)
    assert value == pytest.approx(brute_force(groups, capacity))


@pytest.mark.parametrize(
    ("types", "jobs", "least"),
    [(2, 12, 1.0 - 1e-9), (2, 60, 0.995), (2, 600, 0.995), (4, 60, 0.99), (4, 300, 0.995)],
)
def test_a_choice_is_near_the_best_however_many_jobs_and_types(types: int, jobs: int, least: float) -> None:
    """Jobs take one type for another, so that no price can be found without the others."""
    reached, names = [], ["", *(f"type{number}" for number in range(1, types))]
    for seed in range(5):
        draw = random.Random(seed)
        groups = [
            [
                Item(name, gpus, weight * (speed * gpus) ** 0.6)
                for weight in [draw.uniform(0.1, 10) / draw.randint(1, 30)]
                for name in names
                for speed in [draw.uniform(1, 8) if name else 1.0]
                for gpus in (1, 2, 3, 4, 6, 8, 16)
            ]
            for _ in range(jobs)
        ]
        capacity = {name: jobs if name else 2 * jobs for name in names}
        bound = bound_of(groups, capacity, whole=jobs < 20)
        reached.append(value_of(groups, chosen_of(groups, capacity), capacity) / bound)
    assert min(reached) >= least


def test_a_job_takes_the_type_on_which_it_gains_most_and_leaves_the_other_to_whom_it_matters_less() -> None:
    sensitive = [Item("a100", 1, 8.0), Item("t4", 1, 1.0)]
    indifferent = [Item("a100", 1, 2.0), Item("t4", 1, 1.5)]
    assert chosen_of([indifferent, sensitive], {"a100": 1, "t4": 1}) == (1, 0)


@pytest.mark.parametrize("groups", [[], [[]], [[Item("h100", 1, 5.0)]]])
def test_where_nothing_can_be_had_nobody_gets_anything(groups: list[list[Item]]) -> None:
    assert chosen_of(groups, {"t4": 4}) == (-1,) * len(groups)


def test_equal_arguments_give_equal_choices() -> None:
    groups = [[Item(name, 2, 1.0) for name in TYPES] for _ in range(20)]
    assert chosen_of(groups, dict.fromkeys(TYPES, 9)) == chosen_of(groups, dict.fromkeys(TYPES, 9))
