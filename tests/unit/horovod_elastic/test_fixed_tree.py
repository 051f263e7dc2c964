"""Sums over ranks in a fixed order, with real Gloo groups whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from horovod_elastic.worker.ddp import fixed_tree, torchs_own  # noqa: E402

RANKS = 5
OnEach = Callable[[Callable[[Any, int], Any]], list[Any]]


@pytest.fixture(scope="module")
def on_each_rank() -> Iterator[OnEach]:
    """Calls a function with its group and rank on each rank at the same time; its results by rank."""
    store = dist.HashStore()

    def begin(rank: int) -> Any:
        gloo = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=30))
        return torchs_own.plain_group(rank, RANKS, gloo)

    with ThreadPoolExecutor(RANKS) as threads:
        groups = list(threads.map(begin, range(RANKS)))
        yield lambda work: list(threads.map(work, groups, range(RANKS)))


def of_rank(rank: int, length: int = 17) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (3 * rank)


def options(operation: Any) -> list[Any]:
    made = dist.AllreduceOptions()
    made.reduceOp = operation
    return [made]


def in_order(length: int = 17) -> torch.Tensor:
    a, b, c, d, e = (of_rank(rank, length) for rank in range(RANKS))
    return ((a + b) + (c + d)) + e


@pytest.mark.parametrize("length", [1, 4, 5, 17])
def test_all_ranks_have_the_sum_along_the_tree_bit_for_bit(on_each_rank: OnEach, length: int) -> None:
    def work(group: Any, rank: int) -> torch.Tensor:
        tensor = of_rank(rank, length)
        fixed_tree.add_up(group, [tensor], options(dist.ReduceOp.SUM))
        return tensor

    assert all(torch.equal(each, in_order(length)) for each in on_each_rank(work))


def test_another_order_would_give_other_bits() -> None:
    a, b, c, d, e = map(of_rank, range(RANKS))
    assert not torch.equal((((e + d) + c) + b) + a, in_order())


def test_a_mean_is_the_sum_divided_and_views_are_written_in_place(on_each_rank: OnEach) -> None:
    def work(group: Any, rank: int) -> torch.Tensor:
        whole = torch.zeros(17, 2)
        column = whole[:, 1]
        column.copy_(of_rank(rank))
        fixed_tree.add_up(group, [column], options(dist.ReduceOp.AVG))
        return whole

    for whole in on_each_rank(work):
        assert torch.equal(whole[:, 1], in_order() / RANKS)
        assert not whole[:, 0].any()


@pytest.mark.parametrize(
    ("name", "tensor", "operation", "adds"),
    [
        ("allreduce", torch.zeros(2), dist.ReduceOp.SUM, True),
        ("allreduce", torch.zeros(2, dtype=torch.bfloat16), dist.ReduceOp.AVG, True),
        ("allreduce_coalesced", torch.zeros(2), dist.ReduceOp.SUM, True),
        ("allreduce", torch.zeros(2, dtype=torch.int64), dist.ReduceOp.SUM, False),
        ("allreduce", torch.zeros(2), dist.ReduceOp.MAX, False),
        ("broadcast", torch.zeros(2), dist.ReduceOp.SUM, False),
    ],
)
def test_only_sums_of_inexact_numbers_depend_on_the_order(
    name: str, tensor: torch.Tensor, operation: Any, adds: bool
) -> None:
    assert fixed_tree.adds_up(name, [tensor], options(operation)) is adds
