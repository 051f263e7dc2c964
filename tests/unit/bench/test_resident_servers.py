"""Parameter servers in the benchmark update a model as torch.optim.SGD does, also when partitions move."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from flexo_bench.service.resident.client import Address, ResidentClient
from flexo_bench.service.resident.frames import Introduction
from flexo_bench.service.resident.job import Mover, servers
from flexo_bench.service.resident.partitions import Partition, partitions_of, spread

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

SHAPES = [(1301, 1001), (1001,), (7, 3, 5), (1,)]
"""The first tensor has more than 4 MB."""
RANKS, STEPS = 3, 9
RATE, MOMENTUM = 0.05, 0.9


def gradients(rank: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def first_parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def trained_locally() -> list[torch.Tensor]:
    """The same steps by torch.optim.SGD, with the mean of gradients that are added in the order of ranks."""
    parameters = [torch.nn.Parameter(each) for each in first_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)
    for step in range(STEPS):
        total, *others = (gradients(rank, step) for rank in range(RANKS))
        for other in others:
            total = [one + another for one, another in zip(total, other, strict=True)]
        for parameter, summed in zip(parameters, total, strict=True):
            parameter.grad = summed / RANKS
        optimizer.step()
    return [each.detach() for each in parameters]


def trained(
    addresses: list[Address], holders: tuple[int, ...], between: Callable[[int], None]
) -> list[list[torch.Tensor]]:
    """The parameters of each rank. `between`: called by rank 0 before each step, with its number."""
    found: list[list[torch.Tensor]] = [[] for _ in range(RANKS)]
    together = threading.Barrier(RANKS, timeout=30)

    def work(rank: int) -> None:
        parameters = first_parameters() if rank == 0 else [torch.empty(shape) for shape in SHAPES]
        client = ResidentClient(Introduction(rank, RANKS, RATE, MOMENTUM), parameters, addresses, holders)
        for step in range(STEPS):
            together.wait()
            if rank == 0:
                between(step)
            client.step(gradients(rank, step))
        client.close()
        found[rank] = parameters

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def assert_same_bits(found: list[list[torch.Tensor]]) -> None:
    expected = trained_locally()
    for parameters in found:
        assert [bool(torch.equal(a, b)) for a, b in zip(parameters, expected, strict=True)] == [True] * 4


@pytest.mark.parametrize("count", [1, 2])
def test_servers_give_every_rank_the_bits_of_torchs_sgd(count: int) -> None:
    with servers(range(count)) as (_, addresses):
        holders = spread(partitions_of(SHAPES), range(count))
        assert_same_bits(trained(addresses, holders, lambda step: None))


def test_partitions_that_move_while_a_job_trains_change_no_bit() -> None:
    """All go from the first two servers to the last two, and one of them back."""
    with servers(range(4)) as (_, addresses):
        holders = spread(partitions_of(SHAPES), (0, 1))
        mover = Mover(addresses, list(holders))
        elsewhere = [holder + 2 for holder in holders]
        moved: list[float] = []

        def move() -> None:
            moved.append(mover.move(elsewhere))
            moved.append(mover.move([holders[0], *elsewhere[1:]]))

        mover_thread = threading.Thread(target=move)

        def between(step: int) -> None:
            if step == 2:
                mover_thread.start()
            if step == STEPS - 1:
                mover_thread.join(20)

        assert_same_bits(trained(addresses, holders, between))
        assert len(moved) == 2
        assert mover.holders == [holders[0], *elsewhere[1:]]


def test_no_partition_is_above_4_mb_and_together_they_are_the_model() -> None:
    found = partitions_of(SHAPES)
    assert found[:2] == (Partition(0, 0, 651150), Partition(0, 651150, 651151))
    assert max(each.count for each in found) * 4 <= 4_000_000
    counted = Counter[int]()
    for each in found:
        assert each.first == counted[each.tensor]
        counted[each.tensor] += each.count
    assert dict(counted) == {0: 1301 * 1001, 1: 1001, 2: 105, 3: 1}


def test_servers_hold_about_the_same() -> None:
    found = partitions_of([(1000, 1000), (800, 1000), (700, 1000), (500, 1000)])
    assert spread(found, (4, 9)) == (4, 9, 9, 4)
