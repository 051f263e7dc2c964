"""The keys that a generation expects before its first sum: those that rank 0 uses in the one before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from horovod_elastic.aggregation.memory import KeyShape
from horovod_elastic.aggregation.plan import Plan, PlannedNode
from horovod_elastic.core.c10d.service import expected_keys
from horovod_elastic.core.interface import RankPlacement

KEYS = [KeyShape("a/0", "float32", 10), KeyShape("b/0", "bfloat16", 3)]


class Store(dict[str, bytes]):
    """What ranks have told each other."""

    def set(self, name: str, text: str) -> None:
        self[name] = text.encode()


def place(rank: int) -> RankPlacement:
    return RankPlacement(2, rank, 2, rank, 2, 0, 1, "n", "", 0)


def plan(*pool: int) -> Plan:
    """One node, and Aggregators of a pool at these ports."""
    own = PlannedNode("n", (0, 1), "h", 1)
    return Plan("17", 2, (own, *(PlannedNode(f"pool {port}", (), "h", port) for port in pool)))


def before(*pool: int, keys: list[KeyShape] = KEYS) -> Any:
    return SimpleNamespace(plan=plan(*pool), used=lambda: keys)


def expected(next_plan: Plan, of_rank_0: Any, of_rank_1: Any) -> list[list[KeyShape]]:
    store: Any = Store()
    return [
        expected_keys(place(rank), store, next_plan, client)
        for rank, client in enumerate((of_rank_0, of_rank_1))
    ]


@pytest.mark.parametrize(
    ("pool", "next_pool"),
    [((), ()), ((7, 8), (9, 10)), ((), (7, 8)), ((7, 8), ())],
    ids=["own", "another pool", "from own to a pool", "from a pool to own"],
)
def test_all_ranks_expect_the_keys_that_rank_0_uses_also_those_that_are_new(
    pool: tuple[int, ...], next_pool: tuple[int, ...]
) -> None:
    assert expected(plan(*next_pool), before(*pool), None) == [KEYS, KEYS]
    assert expected(plan(*next_pool), before(*pool), before(*pool, keys=KEYS[:1])) == [KEYS, KEYS]


def test_nothing_is_expected_if_rank_0_is_new() -> None:
    assert expected(plan(), None, before()) == [[], []]


def test_nothing_is_expected_where_an_aggregator_of_the_pool_would_count_both_generations() -> None:
    assert expected(plan(8, 9), before(7, 8), before(7, 8)) == [[], []]
