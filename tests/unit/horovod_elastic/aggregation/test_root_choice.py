"""Every part of a key has one root, which all nodes choose alike."""

from __future__ import annotations

from collections import Counter

from horovod_elastic.aggregation.plan import LEAST_PART_BYTES, Plan, PlannedNode
from horovod_elastic.aggregation.root_choice import RootChoice


def choice(*nodes: tuple[tuple[int, ...], int], own: int = 0) -> RootChoice:
    """By node: its ranks, and its share where it is an Aggregator of the pool, without ranks."""
    planned = tuple(
        PlannedNode(f"n{index}", ranks, "127.0.0.1", 1, "token", share)
        for index, (ranks, share) in enumerate(nodes)
    )
    return RootChoice(Plan("17", 1, planned, LEAST_PART_BYTES), own)


def roots(chosen: RootChoice, parts: int = 12) -> Counter[int]:
    return Counter(chosen.root_of(0, part) for part in range(parts))


def test_the_nodes_of_a_job_sum_equally_many_parts() -> None:
    assert roots(choice(((0, 1), 1), ((2,), 1), ((3,), 1))) == {0: 4, 1: 4, 2: 4}


def test_the_first_parts_of_keys_go_around_so_that_small_keys_burden_all_nodes() -> None:
    chosen = choice(((0,), 1), ((1,), 1))
    assert [chosen.root_of(key, 0) for key in range(4)] == [0, 1, 0, 1]


def test_a_node_is_root_while_one_of_its_workers_lives() -> None:
    chosen = choice(((0, 1), 1), ((2, 3), 1))
    chosen.gone = {2}
    assert roots(chosen) == {0: 6, 1: 6}
    chosen.gone = {2, 3}
    assert roots(chosen) == {0: 12}


def test_a_death_moves_only_the_parts_of_who_died() -> None:
    chosen = choice(((0,), 1), ((1,), 1), ((2,), 1))
    before = [chosen.root_of(0, part) for part in range(12)]
    chosen.gone = {1}
    after = [chosen.root_of(0, part) for part in range(12)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 1)


def test_aggregators_of_the_pool_sum_all_parts_in_proportion_to_their_shares() -> None:
    assert roots(choice(((0,), 1), ((1,), 1), ((), 1), ((), 2))) == {2: 4, 3: 8}


def test_other_aggregators_of_the_pool_take_the_place_of_one_that_is_gone_and_then_the_nodes_do() -> None:
    chosen = choice(((0,), 1), ((1,), 1), ((), 1), ((), 2))
    chosen.left_out = {3}
    assert roots(chosen) == {2: 12}
    chosen.left_out = {2, 3}
    assert roots(chosen) == {0: 6, 1: 6}


def test_everybody_chooses_the_same_root() -> None:
    nodes = ((0, 1), 1), ((2,), 1), ((), 1), ((), 3)
    assert (
        len({tuple(choice(*nodes, own=own).root_of(3, part) for part in range(20)) for own in range(4)}) == 1
    )
