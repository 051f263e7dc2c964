"""Samplers of a script's own classes, which give each rank its part of an epoch."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler  # noqa: E402

from horovod_elastic.worker.ddp import own_samplers, parts_of_ranks, sources  # noqa: E402

SAMPLES = 41
RANKS = 3


class Parts(Sampler):  # type: ignore[type-arg]
    """`order`: a permutation that is drawn anew for each epoch. `part`: cuts it."""

    def __init__(self, rank: int, part: Callable[[list[int], Parts], list[int]]) -> None:
        self.num_replicas, self.rank, self.epoch = RANKS, rank, 0
        self.num_samples = -(-SAMPLES // RANKS)
        self.total_size = self.num_samples * RANKS
        self.part = part
        self.drawn = random.Random(7)

    def __iter__(self) -> Iterator[int]:
        order = self.drawn.sample(range(SAMPLES), SAMPLES)
        return iter(self.part(order + order[: self.total_size - SAMPLES], self))

    def __len__(self) -> int:
        return self.num_samples


def every_nth(order: list[int], own: Parts) -> list[int]:
    return order[own.rank : own.total_size : own.num_replicas]


def block(order: list[int], own: Parts) -> list[int]:
    return order[own.rank * own.num_samples : (own.rank + 1) * own.num_samples]


def odd_ones(order: list[int], own: Parts) -> list[int]:
    return [each for each in order if each % RANKS == own.rank]


def loader_over(sampler: Sampler) -> DataLoader:  # type: ignore[type-arg]
    return DataLoader(range(SAMPLES), batch_size=4, sampler=sampler)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [every_nth, block])
def test_the_order_is_that_of_all_ranks_together(part: Callable[..., list[int]]) -> None:
    samplers = [Parts(rank, part) for rank in range(RANKS)]
    orders = []
    for sampler in samplers:
        found = own_samplers.source_of(loader_over(sampler))
        assert found is not None
        assert (found.samples, found.per_worker) == (42, 4)
        orders.append(found.order())
    assert orders[0] == orders[1] == orders[2]
    assert set(orders[0]) == set(range(SAMPLES))


def test_random_numbers_are_drawn_as_often_as_without_flexo() -> None:
    sampler, plain = Parts(1, every_nth), Parts(1, every_nth)
    found = own_samplers.source_of(loader_over(sampler))
    assert found is not None
    for _ in range(2):
        assert found.order()[1::RANKS] == list(plain)


def test_a_newcomer_with_another_rank_gets_the_same_orders() -> None:
    old, new = Parts(0, every_nth), Parts(3, every_nth)
    new.num_replicas, new.num_samples, new.total_size = 4, 11, 44
    ours, theirs = (own_samplers.source_of(loader_over(each)) for each in (old, new))
    assert ours is not None
    assert theirs is not None
    assert ours.sampler is not None
    assert theirs.sampler is not None
    ours.order()
    theirs.sampler.take_over(copy.deepcopy(ours.sampler.own()))
    assert theirs.order() == ours.order()
    assert new.rank == 3


class WithoutEnd(Parts):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(every_nth(list(range(SAMPLES)), self))


@pytest.mark.parametrize("sampler", [Parts(0, odd_ones), WithoutEnd(0, every_nth)])
def test_other_divisions_have_no_order(sampler: Parts) -> None:
    assert own_samplers.source_of(loader_over(sampler)) is None
    others = copy.copy(sampler)
    others.rank = 1
    assert parts_of_ranks.digest(loader_over(sampler)) != parts_of_ranks.digest(loader_over(others))


def test_a_batch_sampler_over_a_distributed_sampler_is_dealt_out() -> None:
    sampler = DistributedSampler(range(SAMPLES), RANKS, 0)  # type: ignore[arg-type]
    found = sources.of_distributed_sampler(
        DataLoader(range(SAMPLES), batch_sampler=BatchSampler(sampler, 5, drop_last=True))  # type: ignore[arg-type]
    )
    assert found is not None
    assert (found.per_worker, found.drop_last, found.samples) == (5, True, SAMPLES)


def test_all_ranks_with_the_same_data_have_the_same_digest() -> None:
    data = torch.arange(1000)
    own = [parts_of_ranks.digest(DataLoader(data, shuffle=True)) for _ in range(2)]
    assert own[0] == own[1]
    assert parts_of_ranks.digest(DataLoader(data[1::2])) != parts_of_ranks.digest(DataLoader(data[0::2]))
