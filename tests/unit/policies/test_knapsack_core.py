"""The dynamic program that both knapsacks share."""

from __future__ import annotations

import numpy as np

from flexo.policies.knapsack_core import CoreGroup, best_of, cells


def group(*items: tuple[int, int, float]) -> CoreGroup:
    """Items of (kind of room, room, value)."""
    kinds, weights, values = zip(*items, strict=True)
    return CoreGroup(np.array(kinds), np.array(weights), np.array(values))


def test_each_group_gets_one_item_and_together_they_are_worth_most() -> None:
    groups = [group((0, 0, 0.0), (0, 2, 5.0)), group((0, 0, 0.0), (0, 1, 3.0), (0, 3, 7.0))]
    assert best_of(groups, (3,)) == (1, 1)
    assert best_of(groups, (2,)) == (1, 0)
    assert best_of(groups, (5,)) == (1, 2)


def test_each_kind_of_room_is_kept() -> None:
    groups = [group((0, 2, 5.0), (1, 2, 4.0)), group((0, 2, 6.0), (1, 4, 6.0))]
    assert best_of(groups, (2, 2)) == (1, 0)
    assert best_of(groups, (2, 4)) == (0, 1)
    assert best_of(groups, (4, 0)) == (0, 0)


def test_no_room_is_counted_that_the_groups_could_not_use() -> None:
    groups = [group((0, 1, 1.0), (1, 2, 1.0))]
    assert cells(groups, (1000, 1000)) == 2 * 3 * 2
    assert cells(groups, (0, 1000)) == 1 * 3 * 2
