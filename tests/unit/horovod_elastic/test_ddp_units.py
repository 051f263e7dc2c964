"""Which groups of ranks are inside a unit of several workers, and which lie across units."""

from __future__ import annotations

import pytest

from horovod_elastic.worker.ddp.units import Kind, kind_of, sets_across


@pytest.mark.parametrize(
    ("ranks", "world", "kind"),
    [
        ([0, 1, 2, 3], 8, Kind.INSIDE),
        ([4, 5, 6, 7], 8, Kind.INSIDE),
        ([5, 6], 8, Kind.INSIDE),
        ([6], 8, Kind.INSIDE),
        ([0, 4], 8, Kind.ACROSS),
        ([3, 7, 11], 12, Kind.ACROSS),
        ([3, 7], 12, Kind.OTHER),
        ([3, 11], 12, Kind.OTHER),
        ([3, 4], 8, Kind.OTHER),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, Kind.OTHER),
        ([0, 1, 4, 5], 8, Kind.OTHER),
    ],
)
def test_a_group_is_inside_a_unit_or_in_the_same_place_of_every_unit(
    ranks: list[int], world: int, kind: Kind
) -> None:
    assert kind_of(ranks, 4, world) is kind


def test_of_one_unit_all_workers_are_inside_and_each_has_a_group_of_its_own_across() -> None:
    assert kind_of([0, 1, 2, 3], 4, 4) is Kind.INSIDE
    assert kind_of([2], 4, 4) is Kind.ACROSS


def test_each_place_of_a_unit_has_its_ranks() -> None:
    assert sets_across(6, 2) == [[0, 2, 4], [1, 3, 5]]
    assert sets_across(6, 1) == []
