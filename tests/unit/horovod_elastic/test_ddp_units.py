"""Units of several workers: which groups of ranks are inside or across them, and how their workers agree."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from horovod_elastic.worker.ddp.units import Kind, Unit, kind_of, sets_across  # noqa: E402


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


# --- agreement: each worker of the unit has a thread here ------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


@pytest.fixture
def unit(pool: ThreadPoolExecutor) -> list[Unit]:
    store = dist.HashStore()
    return list(pool.map(lambda place: Unit(3, place, store), range(3)))


def test_all_workers_of_a_unit_hear_that_one_has_failed_and_it_waits_for_nobody(
    unit: list[Unit], pool: ThreadPoolExecutor
) -> None:
    for failed in range(3):
        assert unit[failed].any_has(True)
        others = [each for each in unit if each is not unit[failed]]
        assert list(pool.map(lambda each: each.any_has(False), others)) == [True, True]
        assert list(pool.map(lambda each: each.any_has(False), unit)) == [False, False, False]


def test_a_unit_is_whole_if_all_of_its_workers_come_to_the_end(
    unit: list[Unit], pool: ThreadPoolExecutor
) -> None:
    assert list(pool.map(Unit.lives, unit)) == [True, True, True]


def test_a_group_inside_a_unit_may_have_some_of_its_workers(
    unit: list[Unit], pool: ThreadPoolExecutor
) -> None:
    def add(each: Unit) -> float:
        own = torch.tensor([float(each.place)])
        each.group([0, 2]).allreduce([own]).wait()
        return float(own)

    assert list(pool.map(add, [unit[0], unit[2]])) == [2.0, 2.0]
