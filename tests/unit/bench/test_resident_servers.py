"""Parameter servers in the benchmark update a model as torch.optim.SGD does, also when partitions move."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

import torch

from flexo_bench.service.resident.client import Address, ResidentClient
from flexo_bench.service.resident.frames import Cycle, Introduction, Work
from flexo_bench.service.resident.job import Mover, begin_cycle, servers
from flexo_bench.service.resident.partitions import Partition, partitions_of, spread

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

SHAPES = [(1301, 1001), (1001,), (7, 3, 5), (1,)]
"""The first tensor has more than 4 MB."""
RANKS, STEPS = 3, 9
RATE, MOMENTUM = 0.05, 0.9


def gradients(rank: int, step: int, job: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * job + 100 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def first_parameters(job: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(job)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def momentum_of(job: int) -> float:
    return MOMENTUM / job


def trained_locally(job: int) -> list[torch.Tensor]:
    """The same steps by torch.optim.SGD, with the mean of gradients that are added in the order of ranks."""
    parameters = [torch.nn.Parameter(each) for each in first_parameters(job)]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=momentum_of(job))
    for step in range(STEPS):
        total, *others = (gradients(rank, step, job) for rank in range(RANKS))
        for other in others:
            total = [one + another for one, another in zip(total, other, strict=True)]
        for parameter, summed in zip(parameters, total, strict=True):
            parameter.grad = summed / RANKS
        optimizer.step()
    return [each.detach() for each in parameters]


def trained(
    addresses: list[Address],
    holders: tuple[int, ...],
    between: Callable[[int], None] = lambda step: None,
    job: int = 1,
) -> list[list[torch.Tensor]]:
    """The parameters of each rank. `between`: called by rank 0 before each step, with its number."""
    found: list[list[torch.Tensor]] = [[] for _ in range(RANKS)]
    together = threading.Barrier(RANKS, timeout=30)

    def work(rank: int) -> None:
        parameters = first_parameters(job) if rank == 0 else [torch.empty(shape) for shape in SHAPES]
        words = Introduction(job, rank, RANKS, RATE, momentum_of(job))
        client = ResidentClient(words, parameters, addresses, holders)
        for step in range(STEPS):
            together.wait()
            if rank == 0:
                between(step)
            client.step(gradients(rank, step, job))
        client.close()
        found[rank] = parameters

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def assert_same_bits(found: list[list[torch.Tensor]], job: int = 1) -> None:
    expected = trained_locally(job)
    for parameters in found:
        assert [bool(torch.equal(a, b)) for a, b in zip(parameters, expected, strict=True)] == [True] * 4


@pytest.mark.parametrize("count", [1, 2])
def test_servers_give_every_rank_the_bits_of_torchs_sgd(count: int) -> None:
    with servers(range(count)) as (_, addresses):
        holders = spread(partitions_of(SHAPES), range(count))
        assert_same_bits(trained(addresses, holders))


def test_jobs_on_the_same_servers_have_models_momentum_and_cycles_of_their_own() -> None:
    """The first job is told to last longer than it does, so that its cycle postpones requests."""
    works = {"1": Work(50_000_000, 1_000_000), "2": Work(20_000_000, 1_000_000)}
    with servers(range(2)) as (_, addresses), ThreadPoolExecutor() as threads:
        for address in addresses:
            begin_cycle(address, Cycle(50_000_000, works))
        holders = spread(partitions_of(SHAPES), range(2))
        training = {job: threads.submit(trained, addresses, holders, job=job) for job in (1, 2, 3)}
        for job, found in training.items():
            assert_same_bits(found.result(), job)


def test_a_job_may_come_again_once_all_of_its_workers_have_left() -> None:
    with servers([0]) as (_, addresses):
        for _ in range(2):
            assert_same_bits(trained(addresses, spread(partitions_of(SHAPES), [0])))


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
