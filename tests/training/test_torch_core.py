"""The core on torch.distributed trains as Horovod's does, whatever order ranks ask in and whoever dies."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thorough import rare

from flexo_bench import ranks
from flexo_bench.ranks import Cluster, Me, Rank, each, eventually
from horovod_elastic.core.choice import HOROVOD, TORCH

NOTICED_S = 2.0
"""A death is, by all others, on a machine that lets them run."""
STEPS_BEHIND = 5
"""On one that does not, steps take long too: so many of the longest one are allowed for besides."""
TOLD_S = 30.0
"""Whoever asks for something else is told within it: far below the time after which anything gives up."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(TORCH)
    yield running
    running.close()


@pytest.fixture
def trio(cluster: Cluster) -> list[Rank]:
    """Three in one generation."""
    cluster.form(cluster.start(3))
    return cluster.all


def digest(tensors: Any) -> str:
    """Bit for bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


# --- training is the same --------------------------------------------------------------------------------

STEPS = 200


def learn(me: Me, pauses: int | None) -> tuple[list[float], str]:
    """Losses of STEPS steps on this rank's own data, and a digest of the parameters.

    With `pauses`, a seed, this rank dawdles at random moments, also in the middle of backward.
    """
    torch, hvd = me.torch, me.hvd
    dice = random.Random(f"{pauses} {hvd.rank()}")

    def dawdle(*_: Any) -> None:
        if pauses is not None and dice.random() < 0.1:
            time.sleep(dice.uniform(0, 0.02))

    torch.manual_seed(3)
    layers = torch.nn
    net = layers.Sequential(
        layers.Linear(20, 300), layers.Tanh(), layers.Linear(300, 300), layers.Tanh(), layers.Linear(300, 4)
    )
    for layer in net:
        layer.register_full_backward_hook(dawdle)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    generator = torch.Generator().manual_seed(hvd.rank())
    teacher = torch.randn(20, 4, generator=torch.Generator().manual_seed(77))
    losses = []
    for _ in range(STEPS):
        dawdle()
        batch = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(batch), (batch @ teacher).argmax(dim=1))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses, digest(net.parameters())


def learned(core: str, pauses: int | None) -> tuple[list[list[float]], str]:
    """Each rank's losses, and the digest that all three have."""
    running = Cluster(core)
    try:
        running.form(running.start(3))
        losses, digests = zip(*each(running.all, learn, pauses), strict=True)
        assert len(set(digests)) == 1
        return list(losses), digests[0]
    finally:
        running.close()


@pytest.mark.native
def test_losses_are_those_of_horovods_core_and_the_same_bit_for_bit_again() -> None:
    theirs, _ = learned(HOROVOD, None)
    first, digest_of_first = learned(TORCH, None)
    assert first[0][-1] < 0.5 * first[0][0], "it learns something"
    for ours, native in zip(first, theirs, strict=True):
        assert ours == pytest.approx(native, abs=1e-4)
    for pauses in (1, 2):
        again, digest_of_again = learned(TORCH, pauses)
        assert again == first
        assert digest_of_again == digest_of_first


def learn_in_another_order(me: Me) -> tuple[str, float]:
    """Branches that every rank adds up, and so goes back through, in an order of its own."""
    torch, hvd = me.torch, me.hvd
    torch.manual_seed(3)
    net = torch.nn.ModuleDict({f"branch{n}": torch.nn.Linear(6, n + 1) for n in range(9)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    dice = random.Random(hvd.rank())
    before = digest(net.parameters())
    for step in range(60):
        optimizer.zero_grad()
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(3 * step + hvd.rank()))
        names = list(net)
        dice.shuffle(names)
        for name in names:
            net[name](data).square().mean().backward()
        optimizer.step()
    after = digest(net.parameters())
    assert after != before
    return after, sum(float(each.detach().sum()) for each in net.parameters())


def sum_without_horovod() -> float:
    """Of the parameters, after the same steps in one process."""
    import torch

    torch.manual_seed(3)
    net = torch.nn.ModuleDict({f"branch{n}": torch.nn.Linear(6, n + 1) for n in range(9)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for step in range(60):
        optimizer.zero_grad()
        for rank in range(3):
            data = torch.randn(4, 6, generator=torch.Generator().manual_seed(3 * step + rank))
            for layer in net.values():
                (layer(data).square().mean() / 3).backward()
        optimizer.step()
    return sum(float(each.detach().sum()) for each in net.parameters())


def test_gradients_that_ranks_have_in_different_orders_are_those_of_the_same_parameters(
    trio: list[Rank],
) -> None:
    digests, sums = zip(*each(trio, learn_in_another_order), strict=True)
    assert len(set(digests)) == 1
    assert sums[0] == pytest.approx(sum_without_horovod(), abs=1e-3)


def reduce_while_going_back(me: Me) -> bool:
    """Whether the last layer's gradient was reduced before backward had come to the first layer.

    Seen by its values, which change in place; nobody asks the core for anything meanwhile.
    """
    torch, hvd = me.torch, me.hvd
    net = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(8)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    own, seen = [], []

    def remember(*_: Any) -> None:
        own.append(net[-1].weight.grad.clone())

    def wait_for_the_last(*_: Any) -> None:
        deadline = time.monotonic() + TOLD_S
        while time.monotonic() < deadline and torch.equal(net[-1].weight.grad, own[0]):
            time.sleep(0.001)
        seen.append(not torch.equal(net[-1].weight.grad, own[0]))

    data = torch.randn(4, 400, generator=torch.Generator().manual_seed(hvd.rank()), requires_grad=True)
    net[-1].weight.register_post_accumulate_grad_hook(remember)
    net[1].register_full_backward_hook(wait_for_the_last)
    net(data).square().sum().backward()
    optimizer.step()
    return bool(seen[0])


def test_gradients_are_reduced_while_backward_goes_on(cluster: Cluster) -> None:
    cluster.form(cluster.start(3, HOROVOD_FUSION_THRESHOLD=str(2**20)))
    assert each(cluster.all, reduce_while_going_back) == [True] * 3


# --- ranks that ask for different things -----------------------------------------------------------------


def other_shape(me: Me) -> Any:
    return me.hvd.allreduce(me.torch.ones(3 if me.hvd.rank() == 1 else 2), name="odd")


def other_dtype(me: Me) -> Any:
    dtype = me.torch.float64 if me.hvd.rank() == 1 else me.torch.float32
    return me.hvd.allreduce(me.torch.ones(2, dtype=dtype), name="odd")


def other_operation(me: Me) -> Any:
    asked = me.hvd.allgather if me.hvd.rank() == 1 else me.hvd.allreduce
    return asked(me.torch.ones(2), name="odd")


def other_reduction(me: Me) -> Any:
    return me.hvd.allreduce(me.torch.ones(2), op=me.hvd.Min if me.hvd.rank() == 1 else me.hvd.Sum, name="odd")


def other_factor(me: Me) -> Any:
    return me.hvd.allreduce(me.torch.ones(2), prescale_factor=1.0 + (me.hvd.rank() == 1), name="odd")


def other_root(me: Me) -> Any:
    return me.hvd.broadcast(me.torch.ones(2), root_rank=int(me.hvd.rank() == 1), name="odd")


def other_number_of_dimensions(me: Me) -> Any:
    return me.hvd.allgather(me.torch.ones((2, 2) if me.hvd.rank() == 1 else (2, 3)), name="odd")


def other_name(me: Me) -> Any:
    return me.hvd.allreduce(me.torch.ones(2), name="odd" if me.hvd.rank() == 1 else "even")


def other_group(me: Me) -> Any:
    tensors = [me.torch.ones(2)] * (3 if me.hvd.rank() == 1 else 2)
    return me.hvd.grouped_allreduce(tensors, name="odd")


DISAGREEMENTS = {
    what.__name__: what
    for what in (
        other_shape, other_dtype, other_reduction, other_factor, other_root, other_number_of_dimensions,
        other_operation, other_name, other_group,
    )
}  # fmt: skip


def disagree(me: Me, how: str) -> tuple[str, str, float]:
    """What is raised: its type, its words; after how many seconds."""
    from horovod.common.exceptions import HorovodInternalError

    began = time.monotonic()
    try:
        DISAGREEMENTS[how](me)
    except HorovodInternalError as error:
        return type(error.args[0]).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


@pytest.mark.parametrize("how", DISAGREEMENTS)
def test_whoever_asks_for_something_else_is_named_to_all_and_nobody_hangs(trio: list[Rank], how: str) -> None:
    for kind, words, seconds in each(trio, disagree, how):
        assert kind == "Disagreement"
        assert "odd" in words
        assert "rank 1" in words or "ranks 1" in words, words
        assert seconds < TOLD_S
    assert each(trio, ranks.all_sum, 1.0) == [3.0] * 3, "and they may go on"


def ask_after_a_while(me: Me) -> float:
    """One is late, which is nobody's error."""
    time.sleep(5 * (me.hvd.rank() == 2))
    return ranks.all_sum(me, 1.0)


def test_waiting_for_one_that_computes_is_no_error(trio: list[Rank]) -> None:
    assert each(trio, ask_after_a_while) == [3.0] * 3


# --- ranks that die --------------------------------------------------------------------------------------


def train_until_it_fails(me: Me, layers: int, trains: str) -> tuple[float, float]:
    """When (time.time) a step of a larger model failed, and what the longest one before took (seconds).

    The file `trains` is there as soon as one was done.
    """
    from horovod.common.exceptions import HorovodInternalError

    torch = me.torch
    torch.manual_seed(me.hvd.rank())
    net = torch.nn.Sequential(*[torch.nn.Linear(500, 500) for _ in range(layers)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    optimizer = me.hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    longest_s = 0.0
    try:
        while True:
            began = time.perf_counter()
            optimizer.zero_grad()
            net(torch.randn(8, 500)).square().mean().backward()
            optimizer.step()
            longest_s = max(longest_s, time.perf_counter() - began)
            Path(trains).touch()
    except HorovodInternalError:
        return time.time(), longest_s


@pytest.mark.parametrize("victim", [rare(0), 1, rare(2)])
def test_a_rank_killed_in_the_middle_of_a_step_is_noticed_by_all_and_they_go_on(
    cluster: Cluster, victim: int, tmp_path: Path
) -> None:
    dice = random.Random(victim)
    members = cluster.start(4)
    cluster.form(members)
    each(members, ranks.make_model, 0)
    while len(members) > 2:
        train = [tmp_path / f"{rank.name} of {len(members)}" for rank in members]
        for rank, trains in zip(members, train, strict=True):
            rank.begin(train_until_it_fails, 6, str(trains))
        eventually(lambda train=train: all(each.exists() for each in train))
        time.sleep(0.5 + dice.uniform(0, 0.2))
        killed = time.time()
        members[min(victim, len(members) - 1)].kill()
        members.pop(min(victim, len(members) - 1))
        failed_at, longest_s = zip(*(rank.answer() for rank in members), strict=True)
        noticed = [at - killed for at in failed_at]
        print(f"\nnoticed after {', '.join(f'{1e3 * each:.0f}' for each in noticed)} ms")
        assert max(noticed) < NOTICED_S + STEPS_BEHIND * max(longest_s)
        cluster.form(members)
        each(members, take_over)
        assert len(set(each(members, ranks.train, 5))) == 1
    assert [rank.process.is_alive() for rank in members] == [True, True]


def knows_of_the_death(me: Me) -> bool:
    return bool(me.core._prepared.is_broken())


def take_over(me: Me) -> None:
    me.hvd.broadcast_parameters(me.kept["model"].state_dict(), root_rank=0)
    me.hvd.broadcast_optimizer_state(me.kept["optimizer"], root_rank=0)


def test_a_newcomer_killed_before_the_switch_costs_the_others_that_switch_only(cluster: Cluster) -> None:
    first, second, newcomer = members = cluster.start(3)
    both = [first, second]
    cluster.form(both)
    each(both, ranks.make_model, 0)
    cluster.prepare(members)
    newcomer.kill()
    assert len(set(each(both, ranks.train, 20))) == 1
    eventually(lambda: all(each(both, knows_of_the_death)))
    for rank in both:
        with pytest.raises(Exception, match="broke before it began"):
            rank.do(ranks.switch, cluster.generation)
    assert len(set(each(both, ranks.train, 20))) == 1
    cluster.form(both)
    each(both, take_over)
    assert len(set(each(both, ranks.train, 5))) == 1


def test_a_newcomer_stopped_at_any_moment_of_a_build_costs_the_others_nothing(cluster: Cluster) -> None:
    both = cluster.start(2)
    cluster.form(both)
    each(both, ranks.make_model, 0)
    dice = random.Random(5)
    built: list[bool] = []
    while len(built) < 3 or all(built):  # else it was stopped too late to prove anything
        assert len(built) < 30
        (newcomer,) = cluster.start(1)
        newcomer.do(ranks.make_model, 1)
        server = cluster.offer([*both, newcomer])
        time.sleep(dice.uniform(0, 0.01))
        newcomer.signal(ranks.signal.SIGSTOP)
        began = time.monotonic()
        assert len(set(each(both, ranks.train, 10))) == 1
        each(both, abandon, cluster.generation)
        assert time.monotonic() - began < TOLD_S
        failures = each(both, Me.prepared)
        for failure in failures:
            assert failure == "" or "abandoned" in failure or "was not built" in failure  # who speaks first
        built.append(not all(failures))
        server.close()
        assert len(set(each(both, ranks.train, 10))) == 1
        newcomer.kill()
    cluster.form(both)
    each(both, take_over)
    assert len(set(each(both, ranks.train, 5))) == 1


def abandon(me: Me, generation: int) -> None:
    me.core.abandon(generation)
