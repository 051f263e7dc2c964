"""What horovod.torch offers gives the same on both cores: on ours, and on Horovod's own beside it.

The same ranks live through all tests of a core, unless one goes wrong: what it leaves behind, the next see.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from native_horovod import TORCH_MOSTLY

from flexo_bench.ranks import Cluster, Me, Rank, each, eventually
from horovod_elastic.core.choice import TORCH

RANKS = 3


@pytest.fixture(scope="module", params=TORCH_MOSTLY)
def formed(request: pytest.FixtureRequest) -> Iterator[list[Cluster]]:
    """None yet, or the last one."""
    clusters: list[Cluster] = []
    yield clusters
    for running in clusters:
        running.close()


@pytest.fixture
def trio(request: pytest.FixtureRequest, formed: list[Cluster]) -> list[Rank]:
    """Three ranks in one generation."""
    if formed and any(rank.busy for rank in formed[0].all):
        formed.pop().close()
    if not formed:
        formed.append(Cluster(request.node.callspec.params["formed"]))
        allowed = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_TIMELINE": "DYNAMIC"}
        formed[0].form(formed[0].start(RANKS, **allowed))
    return formed[0].all


def started(me: Me) -> Any:
    """The same few numbers on every rank, plus its rank."""
    return me.torch.arange(4.0) + me.hvd.rank()


# --- reductions ------------------------------------------------------------------------------------------

DTYPES = ("int32", "int64", "float16", "float32", "float64")
REDUCED = {
    "Average": [2, 3, 4, 5],
    "Sum": [6, 9, 12, 15],
    "Min": [1, 2, 3, 4],
    "Max": [3, 4, 5, 6],
    "Product": [6, 24, 60, 120],
}


def reductions(me: Me) -> dict[str, dict[str, list[float]]]:
    """By type and operation: of the numbers from rank + 1 on."""
    found = {}
    for dtype in DTYPES:
        mine = (me.torch.arange(4) + me.hvd.rank() + 1).to(getattr(me.torch, dtype))
        found[dtype] = {op: me.hvd.allreduce(mine, op=getattr(me.hvd, op)).tolist() for op in REDUCED}
        assert mine.tolist() == [n + me.hvd.rank() + 1 for n in range(4)], "the input is left as it is"
    return found


def test_every_reduction_of_every_type(trio: list[Rank]) -> None:
    for found in each(trio, reductions):
        for dtype in DTYPES:
            assert found[dtype] == {op: pytest.approx(values) for op, values in REDUCED.items()}, dtype


def scaled(me: Me) -> list[list[float]]:
    hvd, mine = me.hvd, started(me)
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    squeezed = hvd.allreduce(mine, compression=hvd.Compression.fp16)
    assert squeezed.dtype == mine.dtype
    hvd.allreduce_(mine, op=hvd.Sum)
    return [scaled.tolist(), squeezed.tolist(), mine.tolist()]


def test_factors_compression_and_in_place(trio: list[Rank]) -> None:
    sums = [3, 6, 9, 12]
    for found in each(trio, scaled):
        assert found == [pytest.approx([2 * n for n in sums]), pytest.approx([1, 2, 3, 4]), sums]


def grouped(me: Me) -> list[list[float]]:
    tensors = [me.torch.full((n, 2), float(me.hvd.rank() + n)) for n in (1, 2, 3)]
    out_of_place = me.hvd.grouped_allreduce(tensors, name="group")
    me.hvd.grouped_allreduce_(tensors, op=me.hvd.Sum)
    return [each.flatten().tolist() for each in (*out_of_place, *tensors)]


def test_groups_are_reduced_together(trio: list[Rank]) -> None:
    averages = [[float(n + 1)] * 2 * n for n in (1, 2, 3)]
    sums = [[float(3 * (n + 1))] * 2 * n for n in (1, 2, 3)]
    for found in each(trio, grouped):
        assert found == [pytest.approx(values) for values in averages + sums]


def out_of_order(me: Me) -> list[float]:
    """Many at once, asked for in another order on every rank, waited for in yet another."""
    import random

    names = list(range(60))
    random.Random(me.hvd.rank()).shuffle(names)
    handles = {
        n: me.hvd.allreduce_async(me.torch.full((n + 1,), float(n)), op=me.hvd.Sum, name=f"t{n}")
        for n in names
    }
    random.Random(9 + me.hvd.rank()).shuffle(names)
    sums = {n: me.hvd.synchronize(handles[n]) for n in names}
    assert all(len(sums[n]) == n + 1 for n in names)
    return [float(sums[n].mean()) for n in sorted(sums)]


def test_the_order_in_which_a_rank_asks_is_its_own_affair(trio: list[Rank]) -> None:
    assert each(trio, out_of_order) == [[3.0 * n for n in range(60)]] * RANKS


def ask_twice(me: Me) -> str:
    refused = ""
    if me.hvd.rank() == 0:
        handle = me.hvd.allreduce_async(me.torch.ones(2), name="twice")
        try:
            me.hvd.synchronize(me.hvd.allreduce_async(me.torch.ones(2), name="twice"))
        except Exception as error:
            refused = str(error)
    me.hvd.barrier()
    if me.hvd.rank() > 0:
        handle = me.hvd.allreduce_async(me.torch.ones(2), name="twice")
    while not me.hvd.poll(handle):
        time.sleep(0.001)
    assert me.hvd.synchronize(handle).tolist() == [1.0, 1.0]
    return refused


def test_a_name_that_is_still_under_way_is_refused_and_nothing_else(
    trio: list[Rank], formed: list[Cluster]
) -> None:
    refused, *others = each(trio, ask_twice)
    assert re.search("same name|Duplicate tensor name", refused)
    assert others == ["", ""]
    formed.pop().close()  # Horovod calls unnamed tensors after their number, and rank 0 is one ahead now


# --- what is gathered, sent and split --------------------------------------------------------------------


def gather(me: Me) -> list[Any]:
    torch, rank = me.torch, me.hvd.rank()
    mine = torch.full((2 * rank, 2), float(rank))  # rank 0 has nothing to give
    whole = me.hvd.allgather(mine)
    flags = me.hvd.allgather(torch.tensor([rank == 1]).byte())
    first, second = me.hvd.grouped_allgather([mine, torch.tensor([rank, rank])], name="both")
    assert torch.equal(first, whole)
    return [whole.tolist(), flags.tolist(), second.tolist()]


def test_what_is_gathered_may_differ_in_length(trio: list[Rank]) -> None:
    whole = [[1.0, 1.0]] * 2 + [[2.0, 2.0]] * 4
    assert each(trio, gather) == [[whole, [0, 1, 0], [0, 0, 1, 1, 2, 2]]] * RANKS


def broadcast(me: Me) -> list[Any]:
    torch, hvd = me.torch, me.hvd
    mine = started(me)
    given = hvd.broadcast(mine, root_rank=1)
    assert mine.tolist() == started(me).tolist()
    flag = torch.tensor([hvd.rank() == 2]).byte()
    hvd.broadcast_(flag, root_rank=2)
    whole = torch.full((3, 3), float(hvd.rank()), dtype=torch.float64)
    hvd.broadcast_(whole, root_rank=0)
    return [given.tolist(), flag.tolist(), float(whole.sum()), hvd.broadcast(torch.empty(0), 0).shape[0]]


def test_any_rank_may_broadcast(trio: list[Rank]) -> None:
    assert each(trio, broadcast) == [[[1.0, 2.0, 3.0, 4.0], [1], 0.0, 0]] * RANKS


def objects(me: Me) -> list[Any]:
    thing = {"rank": me.hvd.rank(), "long": "x" * 1000 * me.hvd.rank()}
    sent = me.hvd.broadcast_object(thing, root_rank=2, name="thing")
    return [sent["rank"], len(sent["long"]), [each["rank"] for each in me.hvd.allgather_object(thing)]]


def test_objects_are_broadcast_and_gathered(trio: list[Rank]) -> None:
    assert each(trio, objects) == [[2, 2000, [0, 1, 2]]] * RANKS


def exchange(me: Me) -> list[Any]:
    torch, rank = me.torch, me.hvd.rank()
    even = me.hvd.alltoall(torch.arange(6) + 10 * rank)
    splits = torch.tensor([rank, 0, 1], dtype=torch.int32)  # `rank` rows to 0, nothing to 1, one to 2
    rows, received = me.hvd.alltoall(torch.full((rank + 1, 2), float(rank)), splits=splits)
    return [even.tolist(), rows[:, 0].tolist(), received.tolist()]


def test_everybody_sends_to_everybody(trio: list[Rank]) -> None:
    first, second, third = each(trio, exchange)
    assert first == [[0, 1, 10, 11, 20, 21], [1.0, 2.0, 2.0], [0, 1, 2]]
    assert second == [[2, 3, 12, 13, 22, 23], [], [0, 0, 0]]
    assert third == [[4, 5, 14, 15, 24, 25], [0.0, 1.0, 2.0], [1, 1, 1]]


def scatter(me: Me) -> list[Any]:
    torch, hvd = me.torch, me.hvd
    rows = torch.arange(7.0).repeat(2, 1).t().contiguous() + hvd.rank()  # 7 rows of 2
    mine = hvd.reducescatter(rows, op=hvd.Sum)
    some, one = hvd.grouped_reducescatter([torch.ones(3), torch.arange(6.0)], op=hvd.Average, name="two")
    return [mine[:, 1].tolist(), some.tolist(), one.tolist()]


def test_what_is_reduced_is_scattered_in_shares_that_differ_by_one_at_most(trio: list[Rank]) -> None:
    found = each(trio, scatter)
    assert [rows for rows, _, _ in found] == [[3.0, 6.0, 9.0], [12.0, 15.0], [18.0, 21.0]]
    assert [some for _, some, _ in found] == [pytest.approx([1.0])] * RANKS
    assert [two for _, _, two in found] == [pytest.approx([2 * n, 2 * n + 1]) for n in range(RANKS)]


def come_late(me: Me) -> tuple[float, float]:
    """When it came to the barrier, and when it went on."""
    time.sleep(0.3 * (me.hvd.rank() == 1))
    came = time.time()
    me.hvd.barrier()
    return came, time.time()


def test_nobody_passes_a_barrier_before_the_last_one_is_there(trio: list[Rank]) -> None:
    came, went = zip(*each(trio, come_late), strict=True)
    assert min(went) >= max(came)


def uneven(me: Me) -> tuple[list[float], int]:
    """A batch more on every further rank; what came of each, and who joined last."""
    sums = []
    for batch in range(me.hvd.rank() + 1):
        handles = [
            me.hvd.allreduce_async(me.torch.full((3,), float(10**n)), op=me.hvd.Sum, name=f"{batch}.{n}")
            for n in range(2)
        ]
        sums += [float(me.hvd.synchronize(handle).mean()) for handle in handles]
    last = me.hvd.join()
    return sums, last


def test_ranks_that_run_out_of_data_join_and_count_as_zero(trio: list[Rank]) -> None:
    for _ in range(2):  # and it can be done again
        found = each(trio, uneven)
        everything = [3.0, 30.0, 2.0, 20.0, 1.0, 10.0]
        assert [sums for sums, _ in found] == [everything[: 2 * (rank + 1)] for rank in range(RANKS)]
        assert {last for _, last in found} == {2}


# --- process sets ----------------------------------------------------------------------------------------

dynamic = pytest.mark.parametrize("formed", [TORCH], indirect=True)
"""Horovod's core would have to find its rendezvous again, which here is closed once all have met."""


def use_a_process_set(me: Me) -> list[Any]:
    hvd, torch = me.hvd, me.torch
    outer = hvd.add_process_set([0, 2])
    assert outer.included() == (hvd.rank() != 1)
    try:
        hvd.add_process_set(hvd.ProcessSet([2, 0]))
        twice = "allowed"
    except ValueError as error:
        twice = str(error)
    told: list[Any] = [outer.size(), twice.split(":")[0]]
    if outer.included():
        reduced = hvd.allreduce(torch.ones(2) * hvd.rank(), op=hvd.Sum, process_set=outer)
        gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=outer)
        given = hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=2, process_set=outer)
        hvd.barrier(process_set=outer)
        told += [outer.rank(), reduced.tolist(), gathered.tolist(), given.tolist()]
    told += [hvd.remove_process_set(outer), outer.process_set_id, hvd.remove_process_set(outer)]
    return [*told, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]


@dynamic
def test_process_sets_come_and_go_while_all_are_there(trio: list[Rank]) -> None:
    twice = "Attempted to add a duplicate process set"
    for _ in range(2):
        for rank, told in enumerate(each(trio, use_a_process_set)):
            inside = [] if rank == 1 else [rank // 2, [2.0, 2.0], [0, 2], [2]]
            assert told == [2, twice, *inside, True, None, False, 3.0]


def train_in_a_process_set(me: Me) -> list[float]:
    torch, hvd = me.torch, me.hvd
    outer = hvd.add_process_set([0, 2])
    torch.manual_seed(1)
    net = torch.nn.Linear(3, 2)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters(), process_set=outer)
    torch.manual_seed(hvd.rank())
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    hvd.remove_process_set(outer)
    return [float(value) for parameter in net.parameters() for value in parameter.detach().flatten()]


@dynamic
def test_an_optimizer_of_a_process_set_trains_its_members_only(trio: list[Rank]) -> None:
    first, outside, third = each(trio, train_in_a_process_set)
    assert first == third
    assert first != outside


# --- optimizers and states -------------------------------------------------------------------------------

STEPS, RATE = 4, 0.05
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"op": "Sum"},
    "predivided": {"gradient_predivide_factor": 2.0},
    "two passes a step": {"backward_passes_per_step": 2},
    "two groups": {"groups": 2},
    "two passes in groups": {"backward_passes_per_step": 2, "groups": 2},
    "halved": {"compression": "fp16"},
    "sparse": {},
    "sparse as dense": {"sparse_as_dense": True},
}


def network(torch: Any, how: str) -> Any:
    """The same everywhere."""
    torch.manual_seed(5)
    embedding = torch.nn.Embedding(12, 4, sparse="sparse" in how)
    return torch.nn.Sequential(embedding, torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def loss(torch: Any, net: Any, rank: int, step: int, turn: int) -> Any:
    """Of data that nobody else has."""
    words = torch.randint(12, (6,), generator=torch.Generator().manual_seed(100 * step + 10 * turn + rank))
    return net(words).square().sum()


def values(net: Any) -> list[float]:
    return [float(value) for each in net.parameters() for value in each.detach().flatten()]


def train_with(me: Me, how: str) -> list[float]:
    torch, hvd = me.torch, me.hvd
    options = dict(OPTIMIZERS[how])
    if "op" in options:
        options["op"] = getattr(hvd, options["op"])
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    net = network(torch, how)
    plain = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.0 if how == "sparse" else 0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters(), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for turn in range(options.get("backward_passes_per_step", 1)):
            loss(torch, net, hvd.rank(), step, turn).backward()
        optimizer.step()
    return values(net)


def trained_without_horovod(how: str) -> list[float]:
    """The same steps by plain PyTorch in this process, on everybody's data."""
    import torch

    net = network(torch, how)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.0 if how == "sparse" else 0.5)
    share = 1.0 if how == "sum" else 1.0 / RANKS
    for step in range(STEPS):
        optimizer.zero_grad()
        for turn in range(OPTIMIZERS[how].get("backward_passes_per_step", 1)):
            for rank in range(RANKS):
                (share * loss(torch, net, rank, step, turn)).backward()
        optimizer.step()
    return values(net)


@pytest.mark.parametrize("how", OPTIMIZERS)
def test_horovods_optimizer_takes_the_step_of_one_process_with_all_data(trio: list[Rank], how: str) -> None:
    first, *others = each(trio, train_with, how)
    assert others == [first] * (RANKS - 1)
    close = {"rel": 1e-2, "abs": 1e-3} if how == "halved" else {"rel": 1e-4, "abs": 1e-5}
    assert first == pytest.approx(trained_without_horovod(how), **close)


def run_out_of_data(me: Me, how: str) -> list[float]:
    """A step more on every further rank; the last one's values go to all."""
    torch, hvd = me.torch, me.hvd
    net = network(torch, how)
    plain = torch.optim.SGD(net.parameters(), lr=RATE)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
    for step in range(hvd.rank() + 1):
        optimizer.zero_grad()
        loss(torch, net, hvd.rank(), step, 0).backward()
        optimizer.step()
    hvd.broadcast_parameters(net.state_dict(), root_rank=hvd.join())
    return values(net)


def test_ranks_that_run_out_of_data_have_gradients_of_zero_from_then_on(trio: list[Rank]) -> None:
    import torch

    net = network(torch, "plain")
    for step in range(RANKS):
        net.zero_grad()
        for rank in range(step, RANKS):
            (loss(torch, net, rank, step, 0) / RANKS).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= RATE * parameter.grad
    first, *others = each(trio, run_out_of_data, "plain")
    assert others == [first] * (RANKS - 1)
    assert first == pytest.approx(values(net), rel=1e-4, abs=1e-5)


def sync_a_state(me: Me) -> tuple[list[float], float, int]:
    torch, hvd = me.torch, me.hvd
    torch.manual_seed(hvd.rank())
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    plain = torch.optim.Adam(net.parameters(), lr=0.1 * (hvd.rank() + 1))
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, epoch=hvd.rank())
    state.sync()
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return values(net), optimizer.param_groups[0]["lr"], state.epoch


def test_horovods_own_sync_of_a_state(trio: list[Rank]) -> None:
    first, *others = each(trio, sync_a_state)
    assert others == [first] * (RANKS - 1)
    assert first[1:] == (0.1, 0)


def synchronise_norms(me: Me) -> None:
    me.hvd.SyncBatchNorm(3)(me.torch.ones(2, 3))


def test_synchronised_batch_norms_are_refused_without_a_gpu(trio: list[Rank]) -> None:
    """As PyTorch's kernels for them are."""
    with pytest.raises(ValueError, match="GPU"):
        trio[0].do(synchronise_norms)


# --- the rest --------------------------------------------------------------------------------------------


def note_a_timeline(me: Me, folder: Path) -> None:
    me.hvd.start_timeline(str(folder / f"{me.hvd.rank()}.json"))
    for batch in range(3):
        me.hvd.allreduce(me.torch.ones(4), name=f"gradient{batch}")
    me.hvd.stop_timeline()
    me.hvd.barrier()  # rank 0 writes down what others ask for, too, until it has stopped itself
    me.hvd.allreduce(me.torch.ones(4), name="unseen")


def test_a_timeline_tells_of_what_was_reduced_while_it_was_on(trio: list[Rank], tmp_path: Path) -> None:
    for turn in ("first", "second"):
        (tmp_path / turn).mkdir()
        each(trio, note_a_timeline, tmp_path / turn)
        path = tmp_path / turn / "0.json"
        eventually(lambda path=path: {"B", "E"} <= {event["ph"] for event in timeline(path)})
        text = path.read_text()
        assert all(f"gradient{batch}" in text for batch in range(3))
        assert "unseen" not in text


def timeline(path: Path) -> list[dict[str, Any]]:
    """Its events; none while a thread is still writing the file."""
    text = path.read_text().rstrip().rstrip(",")
    try:
        found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else f"{text}]")
    except ValueError:
        return []
    return found


def adasum(me: Me) -> str:
    try:
        me.hvd.allreduce(me.torch.ones(4), op=me.hvd.Adasum, name="wise")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_adasum_is_refused_by_name_on_torch() -> None:
    running = Cluster(TORCH)
    try:
        running.form(running.start(2))  # of three, Horovod's Python layer itself refuses it
        for refused in each(running.all, adasum):
            assert "Adasum" in refused
            assert "--core" in refused, "what to do about it"
        assert each(running.all, reduce_one) == [2.0, 2.0]
    finally:
        running.close()


def reduce_one(me: Me) -> float:
    return float(me.hvd.allreduce(me.torch.ones(1), op=me.hvd.Sum))
