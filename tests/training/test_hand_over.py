"""A generation begins with newcomers: they are given the state by those who stay, who go on with their own.

The core on torch.distributed has a courier of its own. Horovod's carries nothing between two: beside it a
process group of torch.distributed stands in for one, so that the same is seen on both.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from native_horovod import BOTH_CORES, ON_HOROVOD
from test_state_sync import OPTIMIZERS, in_small_messages, make_state, states_with_ways_of_their_own
from thorough import rare

from flexo_bench import ranks
from flexo_bench.ranks import LOOPBACK, Cluster, Me, Rank, each
from horovod_elastic.worker.state_route import Origin

TRANSPORT_S = 120
COMMITS = 7
SAMPLES = 100  # of make_state's sampler


@dataclass
class GroupTransport:
    """A plain one."""

    group: Any

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        return self.group.send([tensor], to, 0).wait  # type: ignore[no-any-return]

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        return self.group.recv([tensor], source, 0).wait  # type: ignore[no-any-return]


@dataclass
class Counted:
    """A courier, and how much each message was that it carried (bytes)."""

    transport: Any
    carried: list[int] = field(default_factory=list)

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        self.carried.append(tensor.numel() * tensor.element_size())
        return self.transport.send(tensor, to)  # type: ignore[no-any-return]

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        self.carried.append(tensor.numel() * tensor.element_size())
        return self.transport.receive(tensor, source)  # type: ignore[no-any-return]


class DeadLetters:
    """The peer is gone."""

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        raise RuntimeError("Connection closed by peer")

    receive = send


class Session:
    """What boundary.begin asks of one; its own core, too."""

    samples_per_step = 0

    def __init__(self, rank: int, commits: int, transport: Any) -> None:
        self.rank, self.commits = rank, commits
        self.saved = False
        self.core = self
        self.transport: Callable[[], Any] = lambda: transport

    def aggregate_of_this_generation(self) -> int:
        return 0

    def begins(self, commits: int, *, saved: bool) -> None:
        self.commits, self.saved = commits, saved


@dataclass(frozen=True)
class Begun:
    """How a worker stands after the generation has begun."""

    tensors: str
    """A digest of those of models and optimizers."""
    went_on: bool
    """They are what they were before, bit for bit."""
    saved: bool
    """It could come back to them at once, not only after its first commit."""
    restored: bool
    """They are so again after they were spoilt, and restored, at the latest after that."""
    attributes: tuple[Any, ...]
    commits: int
    carried: list[int]


def tensors(me: Me, state: Any) -> str:
    """A digest, bit for bit, of models and optimizer."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if me.torch.is_tensor(value):
            digest.update(value.detach().contiguous().view(-1).view(me.torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for inner in value.values():
                add(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                add(inner)
        else:
            digest.update(repr(value).encode())

    for part in (state.model, state.second, state.optimizer):
        add(part.state_dict())
    return digest.hexdigest()


def meet(me: Me, folder: str) -> None:
    """Connect those of this generation with each other, if their core has not."""
    me.kept["courier"] = Counted(me.core.transport() or group_transport(me, folder))


def group_transport(me: Me, folder: str) -> GroupTransport:
    dist = me.torch.distributed
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=TRANSPORT_S)
    Path(folder).mkdir(exist_ok=True)
    store = dist.FileStore(f"{folder}/store", me.hvd.size())
    return GroupTransport(dist.ProcessGroupGloo(store, me.hvd.rank(), me.hvd.size(), options))


def train(me: Me, kind: str, newcomers: int) -> None:
    """A state as workers have it that train together, or the fresh one of a newcomer."""
    rank = me.hvd.rank()
    me.kept["new"] = rank >= me.hvd.size() - newcomers
    if me.kept["new"]:
        me.kept["state"] = make_state(me, kind, 90 + rank, 0)
        return
    state = me.kept["state"] = make_state(me, kind, 10, 3)
    # In these even they differ: batch normalisation sees other samples, and a script may note what it likes.
    state.model.norm.running_mean.fill_(rank)
    state.notes = {"by": rank}
    state.save()


def begin_in_small_messages(me: Me) -> Begun:
    with in_small_messages():
        return begin(me)


def begin(me: Me, of_those_who_train: Origin = Origin.STAYS, commits: int = COMMITS) -> Begun:
    """The generation, in which `train` has said who is new."""
    from horovod_elastic.worker import boundary

    state = me.kept["state"]
    origin = Origin.NEW if me.kept["new"] else of_those_who_train
    session: Any = Session(me.hvd.rank(), 0 if me.kept["new"] else commits, me.kept["courier"])
    before = tensors(me, state)
    boundary.begin(session, state, origin=origin, sync=True)
    after = tensors(me, state)
    if not session.saved:
        state.save()
    for parameter in state.model.parameters():
        parameter.data.fill_(77)
    state.optimizer.param_groups[0]["lr"] = 77
    state.restore()
    return Begun(
        tensors=after,
        went_on=after == before,
        saved=session.saved,
        restored=tensors(me, state) == after,
        attributes=(state.epoch, state.notes, state.sampler.state_dict()),
        commits=session.commits,
        carried=getattr(me.kept["courier"], "carried", []),
    )


@pytest.fixture(scope="module", params=BOTH_CORES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Four; each test forms a generation of as many as it needs."""
    running = Cluster(request.param)
    running.start(4)
    yield running
    running.close()


def formed(cluster: Cluster, folder: Path, count: int) -> list[Rank]:
    members, others = cluster.all[:count], cluster.all[count:]
    generation = cluster.prepare(members)
    for rank in members:
        rank.begin(ranks.switch, generation)
    each(others, ranks.leave)
    for rank in members:
        rank.answer()
    each(members, meet, str(folder))
    return members


@pytest.mark.parametrize("kind", [each if each in ("Adam", "LBFGS") else rare(each) for each in OPTIMIZERS])
def test_each_newcomer_is_given_all_by_one_of_those_who_stay_and_can_go_back_to_it(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    members = formed(cluster, tmp_path, 4)
    each(members, train, kind, 2)
    first, second, one, other = begun = each(members, begin)
    assert one.tensors == first.tensors != second.tensors == other.tensors
    assert [told.went_on for told in begun] == [True, True, False, False]
    assert [told.saved for told in begun] == [True, True, False, False]
    assert all(told.restored for told in begun)
    assert {told.commits for told in begun} == {COMMITS}


def test_attributes_and_samplers_are_rank_0s_on_all(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    epoch, notes, sampler = zip(*(told.attributes for told in each(members, begin)), strict=True)
    assert epoch == (10,) * 3
    assert notes == ({"by": 0},) * 3
    assert sampler[0]["processed_num"] > 0
    assert sampler[0] == sampler[1] == sampler[2]


def test_who_has_no_newcomer_to_look_after_carries_nothing(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    giver, bystander, newcomer = (told.carried for told in each(members, begin))
    assert bystander == []
    assert giver == newcomer != []


def test_what_is_large_goes_in_pieces(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    first, _, newcomer = each(members, begin_in_small_messages)
    assert newcomer.tensors == first.tensors
    assert max(newcomer.carried) <= 500
    assert len(newcomer.carried) > 10


def test_one_gives_it_to_several_of_them(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 2)
    giver, one, other = each(members, begin)
    assert giver.went_on
    assert one.tensors == other.tensors == giver.tensors
    assert giver.carried


def test_before_anything_was_committed_all_can_come_back_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """If only newcomers were left then, nobody could tell that what they trained before is not it."""
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    begun = each(members, begin, Origin.STAYS, 0)
    assert all(told.saved and told.restored for told in begun)


def test_after_a_break_all_take_over_rank_0s(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    begun = each(members, begin, Origin.BACK)
    assert len({told.tensors for told in begun}) == 1
    assert [told.went_on for told in begun] == [True, False, False]
    assert all(told.saved and told.restored for told in begun)
    assert all(told.commits == COMMITS and not told.carried for told in begun)


def lose_the_mail(me: Me) -> None:
    me.kept["courier"] = DeadLetters()


def begin_in_vain(me: Me) -> str:
    from horovod.common.exceptions import HorovodInternalError

    try:
        begin(me)
    except HorovodInternalError as error:
        return str(error)
    return ""


def test_a_peer_that_is_gone_is_one_of_horovods_errors(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    each(members, train, "Adam", 1)
    each(members, lose_the_mail)
    said = each(members, begin_in_vain)
    assert said == ["Connection closed by peer", "", "Connection closed by peer"]


class Faulty(Counted):
    """All arrives, but for one thing."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.begun = self.ended = 0

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        wait, number = super().receive(tensor, source), self.begun
        self.begun += 1

        def fail_or_wait() -> None:
            wait()
            self.ended += 1
            if number == 4:
                raise RuntimeError("Connection closed by peer")

        return fail_or_wait


def begin_with_a_fault(me: Me) -> tuple[str, int, int]:
    """What it comes to; what was begun to be received, and waited for."""
    transport = me.kept["courier"] = Faulty(me.kept["courier"].transport)
    with in_small_messages():
        return begin_in_vain(me), transport.begun, transport.ended


def test_an_error_is_not_told_before_all_that_was_begun_has_ended(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 2)
    each(members, train, "Adam", 1)
    (nothing, *_), (said, begun, ended) = each(members, begin_with_a_fault)
    assert (nothing, said) == ("", "Connection closed by peer")
    assert begun == ended > 10


# --- what a newcomer has made ready -----------------------------------------------------------------------


@pytest.fixture(params=[ON_HOROVOD])
def hooked(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three with the hooks on Horovod's states and samplers."""
    running = Cluster(request.param)
    each(running.start(3), hook)
    yield running
    running.close()


def hook(me: Me) -> None:
    from horovod.torch.elastic import sampler, state

    from horovod_elastic.worker import hooks

    hooks.patch_state(state)
    hooks.patch_sampler(sampler)


def places(me: Me, optimizer_states: Any) -> set[int]:
    tensors = (each for states in optimizer_states.values() for each in states.values())
    return {each.data_ptr() for each in tensors if me.torch.is_tensor(each)}


def begin_ready(me: Me) -> tuple[bool, bool, int, list[int]]:
    """Whether the optimizer's state is where it was to be, and was saved where it was to be.

    And how often samples were shuffled, and which this worker is to take.
    """
    from horovod_elastic.worker import boundary, spare_memory

    state = me.kept["state"]
    handler = state._handlers["optimizer"]
    spare_memory.make(state)
    received = places(me, spare_memory.to_receive(handler))
    saved = places(me, getattr(handler, "_flexo_to_save", {}))
    shuffled: list[int] = []
    shuffle = random.Random.shuffle
    session: Any = Session(me.hvd.rank(), 0 if me.kept["new"] else COMMITS, me.kept["courier"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random.Random, "shuffle", lambda *given: shuffled.append(1) or shuffle(*given))
        origin = Origin.NEW if me.kept["new"] else Origin.STAYS
        boundary.begin(session, state, origin=origin, sync=True)
    if not session.saved:
        state.save()
    assert not [name for name in vars(handler) if name.startswith("_flexo")]
    return (
        bool(received) and places(me, state.optimizer.state) == received,
        bool(saved) and places(me, handler._saved_optimizer_state["state"]) == saved,
        len(shuffled),
        list(state.sampler),
    )


def begin_a_later_epoch(me: Me) -> None:
    if not me.kept["new"]:
        me.kept["state"].sampler.set_epoch(4)
        me.kept["state"].save()


def test_a_newcomer_receives_and_saves_where_it_has_made_room_and_shuffles_nothing(
    hooked: Cluster, tmp_path: Path
) -> None:
    members = formed(hooked, tmp_path, 3)
    each(members, train, "Adam", 1)
    each(members, begin_a_later_epoch)
    *staying, (received, saved, shuffled, samples) = each(members, begin_ready)
    assert (received, saved, shuffled) == (True, True, 0)
    assert {sample for told in (*staying, (0, 0, 0, samples)) for sample in told[3]} == set(range(SAMPLES))
    assert [told[:3] for told in staying] == [(False, False, 0)] * 2


def test_what_was_received_and_saved_there_is_what_it_goes_back_to(hooked: Cluster, tmp_path: Path) -> None:
    members = formed(hooked, tmp_path, 3)
    each(members, train, "Adam", 1)
    each(members, make_room)
    first, _, newcomer = each(members, begin)
    assert newcomer.tensors == first.tensors
    assert newcomer.restored


def make_room(me: Me) -> None:
    from horovod_elastic.worker import spare_memory

    spare_memory.make(me.kept["state"])


# --- samples ----------------------------------------------------------------------------------------------


def take(me: Me, batches: int) -> list[int]:
    """Mini-batches of four, each committed; which samples they were."""
    state = me.kept["state"]
    indices = list(state.sampler)
    seen = []
    for number in range(min(batches, -(-len(indices) // 4))):
        batch = indices[number * 4 : (number + 1) * 4]
        state.sampler.record_batch(number, len(batch))
        state.save()
        seen += batch
    return seen


def train_from_the_start(me: Me) -> None:
    train(me, "SGD", 0)
    me.kept["state"].sampler.set_epoch(0)
    me.kept["state"].save()


def test_what_is_left_of_an_epoch_is_divided_anew_and_nothing_left_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    old = formed(cluster, tmp_path / "old", 2)
    each(old, train_from_the_start)
    seen = Counter(sample for told in each(old, take, 3) for sample in told)
    everybody = formed(cluster, tmp_path / "everybody", 3)
    each(everybody[2:], train, "SGD", 1)
    begun = each(everybody, begin)
    assert [told.went_on for told in begun] == [True, True, False]
    seen.update(sample for told in each(everybody, take, 99) for sample in told)
    assert set(seen) == set(range(SAMPLES))
    assert seen.total() - SAMPLES < 3


# --- states that are not only Horovod's -------------------------------------------------------------------


def begin_in_own_ways(me: Me) -> list[Any]:
    """A handler with a sync of its own is let do that; a state with one is not handed over."""
    from horovod_elastic.worker import boundary

    handled, own = states_with_ways_of_their_own(me)
    told = []
    for state in (handled, own):
        new = me.hvd.rank() == me.hvd.size() - 1
        session: Any = Session(me.hvd.rank(), COMMITS, me.kept["courier"])
        boundary.begin(session, state, origin=Origin.NEW if new else Origin.STAYS, sync=True)
        told.append(len(me.kept["courier"].carried))
    return [handled.counter.value, own.seen, told[1] - told[0]]


def test_whatever_synchronises_in_its_own_way_is_let_do_so(cluster: Cluster, tmp_path: Path) -> None:
    members = formed(cluster, tmp_path, 3)
    assert each(members, begin_in_own_ways) == [[70, "its own sync", 0]] * 3


COPIED_BYTES = 128 * 1024  # more than the first message, less than all

# --- memory -----------------------------------------------------------------------------------------------


def most_under_way(me: Me) -> int:
    """Bytes of messages that were begun and not finished, in a broadcast of nothing but small tensors."""
    from horovod.torch import mpi_ops

    from horovod_elastic.worker import state_messages, state_sync

    begun: dict[int, int] = {}
    most = 0
    begin_one, end_one = mpi_ops.broadcast_async_, mpi_ops.synchronize

    def counted_begin(message: Any, *arguments: Any, **named: Any) -> int:
        nonlocal most
        handle: int = begin_one(message, *arguments, **named)
        begun[handle] = message.numel()
        most = max(most, sum(begun.values()))
        return handle

    def counted_end(handle: int) -> Any:
        begun.pop(handle, None)
        return end_one(handle)

    net = me.torch.nn.ParameterList([me.torch.randn(250) for _ in range(400)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpi_ops, "broadcast_async_", counted_begin)
        patch.setattr(mpi_ops, "synchronize", counted_end)
        patch.setattr(state_messages, "COLLECTED_BYTES", 4096)
        patch.setattr(state_messages, "COPIED_BYTES", COPIED_BYTES)
        state_sync.broadcast(me.hvd.elastic.TorchState(model=net))
    return most


def test_copies_on_their_way_take_bounded_memory(cluster: Cluster, tmp_path: Path) -> None:
    for most in each(formed(cluster, tmp_path, 2), most_under_way):
        assert COPIED_BYTES < most < 1.2 * COPIED_BYTES
