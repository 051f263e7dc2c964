"""The torch core on a real GPU and a real NCCL: collectives, resizes, and workers that die or stand still."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_gpu import as_machine  # noqa: E402

from flexo_bench import ranks  # noqa: E402
from flexo_bench.ranks import Cluster, Me, Rank, each, eventually  # noqa: E402
from horovod_elastic.core.choice import TORCH  # noqa: E402

GPU = "cuda"
NOTICED_S = 5.0
"""A death is, by all others, even on a GPU that they share."""


class OneGpu(Cluster):
    """Ranks on pretended machines that share a GPU."""

    def start(self, count: int, **_: Any) -> list[Rank]:  # type: ignore[override]
        new = [
            rank for _ in range(count) for rank in super(OneGpu, self).start(1, **as_machine(len(self.all)))
        ]
        each(new, warm_up)
        return new


@pytest.fixture
def cluster() -> Iterator[OneGpu]:
    running = OneGpu(TORCH)
    yield running
    running.close()


def warm_up(me: Me) -> None:
    """Make this process's context on the GPU, which takes long."""
    me.torch.ones(1, device=GPU).sum().item()


def timed(what: str, began: float) -> None:
    print(f"{what}: {1e3 * (time.monotonic() - began):.0f} ms")


# --- collectives --------------------------------------------------------------------------------------------


def values(me: Me, rank: int, dtype: str, count: int) -> Any:
    torch = me.torch
    return (torch.arange(count, device=GPU) % 5 + rank).to(getattr(torch, dtype))


def collectives(me: Me, dtype: str) -> list[str]:
    """Every collective of Horovod on the GPU; the names of those with a wrong result."""
    torch, hvd = me.torch, me.hvd
    rank, size = hvd.rank(), hvd.size()
    all_values = [values(me, each, dtype, 12) for each in range(size)]
    own, wrong = all_values[rank], []

    def check(name: str, found: Any, wanted: Any) -> None:
        if not (found.is_cuda and found.dtype == own.dtype and torch.equal(found, wanted)):
            wrong.append(f"{name} {dtype}: {found} instead of {wanted}")

    check("sum", hvd.allreduce(own, op=hvd.Sum), sum(all_values))
    check("min", hvd.allreduce(own, op=hvd.Min), torch.stack(all_values).amin(0))
    check("max", hvd.allreduce(own, op=hvd.Max), torch.stack(all_values).amax(0))
    check("broadcast", hvd.broadcast(own, root_rank=size - 1), all_values[-1])
    rows = [each[: 4 * (number + 1)].reshape(-1, 4) for number, each in enumerate(all_values)]
    check("allgather", hvd.allgather(rows[rank]), torch.cat(rows))
    splits = torch.tensor([1] * (size - 1) + [12 - (size - 1)], dtype=torch.int32)
    parts = [each.split(splits.tolist())[rank] for each in all_values]
    check("alltoall", hvd.alltoall(own, splits)[0], torch.cat(parts))
    mine = slice(rank * (12 // size), (rank + 1) * (12 // size))
    check("reducescatter", hvd.reducescatter(own, op=hvd.Sum), sum(all_values)[mine])
    grouped = hvd.grouped_allreduce([own, own[:5]], op=hvd.Sum)
    check("grouped", grouped[0], sum(all_values))
    check("grouped, the second", grouped[1], sum(all_values)[:5])
    if own.is_floating_point():
        average = (sum(each.double() for each in all_values) / size).to(own.dtype)
        if not torch.allclose(hvd.allreduce(own), average):
            wrong.append(f"average {dtype}")
    return wrong


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64"])
def test_collectives_have_the_results_of_horovods(three: list[Rank], dtype: str) -> None:
    assert each(three, collectives, dtype) == [[]] * 3


@pytest.fixture(scope="module")
def three() -> Iterator[list[Rank]]:
    running = OneGpu(TORCH)
    members = running.start(3)
    began = time.monotonic()
    running.form(members)
    each(members, sums, 1)
    timed("three ranks meet and make a sum", began)
    yield members
    running.close()


def join_after(me: Me) -> int:
    """Rank 1 joins early; the others have its zeros."""
    torch, hvd = me.torch, me.hvd
    if hvd.rank() != 1:
        found = hvd.allreduce(torch.ones(4, device=GPU), op=hvd.Sum)
        assert found.tolist() == [2.0] * 4
    return int(hvd.join())


def test_who_has_joined_adds_zeros(three: list[Rank]) -> None:
    assert len(set(each(three, join_after))) == 1


# --- training -----------------------------------------------------------------------------------------------


def sums(me: Me, count: int) -> float:
    """The last of so many sums of ones."""
    for _ in range(count):
        found = me.hvd.allreduce(me.torch.ones(1000, device=GPU), op=me.hvd.Sum, name="sums")
    return float(found[0])


def take_over(me: Me) -> None:
    me.hvd.broadcast_parameters(me.kept["model"].state_dict(), root_rank=0)
    me.hvd.broadcast_optimizer_state(me.kept["optimizer"], root_rank=0)


def alike(members: list[Rank], batches: int) -> bool:
    return len(set(each(members, ranks.train, batches))) == 1


def test_a_job_grows_and_shrinks_and_the_gpus_are_connected_beforehand(cluster: OneGpu) -> None:
    members = cluster.start(1)
    cluster.form(members)
    each(members, ranks.make_model, 0, GPU)
    assert alike(members, 5)
    for size in (2, 4, 3, 1, 3):
        if size > len(cluster.all):
            new = cluster.start(size - len(cluster.all))
            each(new, ranks.make_model, 1, GPU)
        leaving, members = members[size:], cluster.all[:size]
        began = time.monotonic()
        generation = cluster.prepare(members)
        timed(f"{size} ranks connect", began)
        began = time.monotonic()
        for rank in leaving:
            rank.begin(ranks.leave)
        each(members, ranks.switch, generation)
        for rank in leaving:
            rank.answer()
        timed("  the switch", began)
        began = time.monotonic()
        each(members, take_over)
        timed("  the state goes round", began)
        began = time.monotonic()
        assert alike(members, 1)
        timed("  the first step", began)
        began = time.monotonic()
        assert alike(members, 20)
        timed("  20 steps", began)


# --- ranks that die or stand still --------------------------------------------------------------------------


def train_until_it_fails(me: Me) -> float:
    from horovod.common.exceptions import HorovodInternalError

    ranks.make_model(me, 0, GPU)  # one of its own: its optimizer waits for gradients that never come
    try:
        while True:
            ranks.train(me, 1)
    except HorovodInternalError:
        return time.time()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_is_noticed_and_the_others_go_on(cluster: OneGpu, victim: int) -> None:
    members = cluster.start(3)
    cluster.form(members)
    each(members, ranks.make_model, 0, GPU)
    each(members, take_over)
    assert alike(members, 5)
    for rank in members:
        rank.begin(train_until_it_fails)
    time.sleep(1.0)
    killed = time.time()
    members.pop(victim).kill()
    noticed = [rank.answer(30.0) - killed for rank in members]
    print(f"noticed after {', '.join(f'{1e3 * each:.0f}' for each in noticed)} ms")
    assert max(noticed) < NOTICED_S
    cluster.form(members)
    each(members, ranks.make_model, 0, GPU)
    each(members, take_over)
    assert alike(members, 20)


def abandon(me: Me, generation: int) -> None:
    me.core.abandon(generation)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_a_newcomer_that_stands_still_costs_the_others_that_switch_only(
    cluster: OneGpu, after_s: float
) -> None:
    both = cluster.start(2)
    cluster.form(both)
    each(both, ranks.make_model, 0, GPU)
    each(both, take_over)
    assert alike(both, 5)
    (newcomer,) = cluster.start(1)
    newcomer.do(ranks.make_model, 1, GPU)
    server = cluster.offer([*both, newcomer])
    time.sleep(after_s)
    newcomer.signal(ranks.signal.SIGSTOP)
    began = time.monotonic()
    assert alike(both, 10)
    timed("10 steps beside a newcomer that stands still", began)
    began = time.monotonic()
    each(both, abandon, cluster.generation)
    timed("it is abandoned", began)
    print([rank.do(Me.prepared) for rank in both])
    timed("the build has ended", began)
    assert time.monotonic() - began < NOTICED_S
    server.close()
    assert alike(both, 10)
    newcomer.kill()
    cluster.form(both)
    each(both, take_over)
    assert alike(both, 5)


def test_a_newcomer_that_dies_costs_the_others_that_switch_only(cluster: OneGpu) -> None:
    both = cluster.start(2)
    cluster.form(both)
    each(both, ranks.make_model, 0, GPU)
    each(both, take_over)
    assert alike(both, 5)
    (newcomer,) = cluster.start(1)
    newcomer.do(ranks.make_model, 1, GPU)
    cluster.prepare([*both, newcomer])
    newcomer.kill()
    assert alike(both, 20)
    eventually(lambda: all(each(both, knows_of_the_death)))
    assert alike(both, 20)
    cluster.form(both)
    each(both, take_over)
    assert alike(both, 5)


def knows_of_the_death(me: Me) -> bool:
    return bool(me.core._prepared.is_broken())
