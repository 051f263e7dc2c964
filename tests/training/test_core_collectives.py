"""What the core on torch.distributed carries out, with real processes on loopback: results, breaks, deaths.

The processes are kept from test to test; each test makes its own groups among some of them.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from horovod_elastic.core.c10d import tensor_transport  # noqa: E402
from horovod_elastic.core.c10d.collectives import Collectives  # noqa: E402
from horovod_elastic.core.c10d.groups import Groups  # noqa: E402
from horovod_elastic.core.c10d.requests import GLOBAL_SET, Operation, Reduction, Request, Response  # noqa: E402
from horovod_elastic.core.c10d.tensor_transport import GlooTransport  # noqa: E402
from horovod_elastic.core.c10d.work import Work  # noqa: E402

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60.0
ANSWER_S = 120.0
PATIENCE_S = 10.0
"""Of groups that strangers are let into: so long their members wait for each other."""
SOON_S = 20.0
"""Far below TIMEOUT_S: who notices so early was told. The machine may be busy."""
SOME_SET = 3
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]


# --- the processes ------------------------------------------------------------------------------------------


@dataclass
class Member:
    """What a process has at hand."""

    rank: int
    size: int
    groups: Groups
    collectives: Collectives
    kept: dict[str, Any] = field(default_factory=dict)


class Process:
    """One of them, seen from the test."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_live, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, what: Callable[..., Any], *arguments: Any) -> None:
        self._connection.send((what, arguments))

    def answer(self) -> Any:
        """What came of it. Raises what was raised there."""
        if not self._connection.poll(ANSWER_S):
            raise TimeoutError(f"no answer within {ANSWER_S} s")
        result, error = self._connection.recv()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _live(connection: Connection) -> None:
    torch.set_num_threads(1)
    member: list[Member] = []
    while True:
        what, arguments = connection.recv()
        try:
            connection.send((what(member, *arguments), None))
        except Exception as error:
            connection.send((None, error))


def form(member: list[Member], rank: int, size: int, port: int, name: str) -> None:
    """A communicator's groups, with the set of all ranks."""
    for old in member:
        old.groups.close()
    groups = new_groups(rank, size, port, name)
    member[:] = [Member(rank, size, groups, Collectives(groups, rank))]
    groups.build(GLOBAL_SET, tuple(range(size)))


def new_groups(rank: int, size: int, port: int, name: str) -> Groups:
    return Groups(rank, size, LOOPBACK, None if size == 1 else store_at(port, name), TIMEOUT_S)


def store_at(port: int, name: str) -> Any:
    return dist.PrefixStore(name, _connected_to(port))


@functools.cache
def _connected_to(port: int) -> Any:
    """Once a process: now and then it takes PyTorch five seconds."""
    return dist.TCPStore(LOOPBACK, port, None, False, timedelta(seconds=TIMEOUT_S))


class Cluster:
    """Processes that form groups."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._store = dist.TCPStore(LOOPBACK, 0, None, True, wait_for_workers=False)
        self._formed = itertools.count()

    def form(self, size: int) -> list[Process]:
        """The members, by rank."""
        while len(self._idle) < size:
            self._idle.append(Process())
        members = self._idle[:size]
        name = self.new_name()
        for rank, process in enumerate(members):
            process.begin(form, rank, size, self.port, name)
        for process in members:
            process.answer()
        return members

    @property
    def port(self) -> int:
        """Of the store."""
        return int(self._store.port)

    def new_name(self) -> str:
        """Under which groups meet in the store."""
        return f"groups{next(self._formed)}"

    def end(self, process: Process) -> None:
        self._idle.remove(process)
        process.end()

    def close(self) -> None:
        for process in self._idle:
            process.end()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = Cluster()
    yield running
    running.close()


def each(members: Sequence[Process], what: Callable[..., Any], *arguments: Any) -> list[Any]:
    """All at once; what came of it, by rank."""
    for process in members:
        process.begin(what, *arguments)
    return [process.answer() for process in members]


def outcomes(members: Sequence[Process]) -> list[str]:
    """The first line of what was raised by each, or nothing."""
    found = []
    for process in members:
        try:
            process.answer()
            found.append("")
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])
    return found


# --- what they do -------------------------------------------------------------------------------------------


def request(operation: Operation, tensors: Sequence[torch.Tensor], **more: Any) -> Request:
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    return Request(operation, "t", dtype=str(tensors[0].dtype), shapes=shapes, **more)


def values(rank: int, dtype: str, *shape: int) -> torch.Tensor:
    """Small whole numbers that differ from rank to rank and from element to element."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 5 + rank + 1).to(getattr(torch, dtype)).view(shape)


def allreduce(
    member: list[Member], dtype: str, shapes: list[tuple[int, ...]], more: dict[str, Any], in_place: bool
) -> list[torch.Tensor]:
    """Each tensor a request of its own, fused."""
    (me,) = member
    inputs = [values(me.rank, dtype, *shape) for shape in shapes]
    before = [tensor.clone() for tensor in inputs]
    outputs = inputs if in_place else [torch.empty_like(tensor) for tensor in inputs]
    requests = tuple(request(Operation.ALLREDUCE, [tensor], **more) for tensor in inputs)
    works = [Work(asked, (i,), (o,)) for asked, i, o in zip(requests, inputs, outputs, strict=True)]
    me.collectives.carry_out(Response(requests), works)
    assert all(work.done() for work in works)
    assert in_place or all(map(torch.equal, inputs, before))
    return outputs


def allreduce_after_joining(member: list[Member], joined: list[int], on_set: int) -> list[torch.Tensor]:
    (me,) = member
    tensors = [values(me.rank, "float32", 4), values(me.rank, "float32", 2, 3)]
    asked = request(Operation.ALLREDUCE, tensors, reduction=Reduction.AVERAGE, process_set=on_set)
    work = None if me.rank in joined else Work(asked, tuple(tensors), tuple(tensors))
    me.collectives.carry_out(Response((asked,)), [work])
    return tensors


def allgather(member: list[Member], dtype: str, rows: list[list[int]], width: tuple[int, ...]) -> Any:
    """rows[t][r] rows of tensor t at rank r."""
    (me,) = member
    tensors = [values(me.rank, dtype, dimensions[me.rank], *width) for dimensions in rows]
    outputs = [tensor.new() for tensor in tensors]
    asked = request(Operation.ALLGATHER, tensors)
    response = Response((asked,), first_dimensions=tuple(map(tuple, rows)))
    me.collectives.carry_out(response, [Work(asked, tuple(tensors), tuple(outputs))])
    return outputs


def allgather_scalars(member: list[Member]) -> torch.Tensor:
    (me,) = member
    tensor = torch.tensor(float(me.rank))
    output = tensor.new()
    asked = request(Operation.ALLGATHER, [tensor])
    response = Response((asked,), first_dimensions=((1,) * me.size,))
    me.collectives.carry_out(response, [Work(asked, (tensor,), (output,))])
    return output


def broadcast(member: list[Member], dtype: str, shape: tuple[int, ...], root: int, in_place: bool) -> Any:
    (me,) = member
    tensor = values(me.rank, dtype, *shape).requires_grad_(dtype in FLOATS)
    output = tensor if in_place else torch.zeros_like(tensor)
    asked = request(Operation.BROADCAST, [tensor], root=root)
    me.collectives.carry_out(Response((asked,)), [Work(asked, (tensor,), (output,))])
    assert output._version == 0
    return output.detach()


def alltoall(member: list[Member], dtype: str, splits: list[list[int]]) -> tuple[Any, list[int]]:
    (me,) = member
    mine = splits[me.rank]
    tensor = values(me.rank, dtype, sum(mine), 3)
    output, received = tensor.new(), torch.empty(0, dtype=torch.int32)
    asked = request(Operation.ALLTOALL, [tensor], splits=tuple(mine))
    response = Response((asked,), splits=tuple(map(tuple, splits)))
    me.collectives.carry_out(response, [Work(asked, (tensor,), (output,), received)])
    return output, received.tolist()


def reducescatter(
    member: list[Member], dtype: str, shapes: list[tuple[int, ...]], more: dict[str, Any]
) -> Any:
    (me,) = member
    tensors = [values(me.rank, dtype, *shape) for shape in shapes]
    outputs = [tensor.new() for tensor in tensors]
    asked = request(Operation.REDUCESCATTER, tensors, **more)
    me.collectives.carry_out(Response((asked,)), [Work(asked, tuple(tensors), tuple(outputs))])
    return outputs


def random_sums(member: list[Member], dtype: str) -> list[torch.Tensor]:
    """Of numbers whose sum depends on the order of adding."""
    (me,) = member
    torch.manual_seed(me.rank)
    tensors = [torch.randn(n, dtype=getattr(torch, dtype)) for n in (7, 40_000, 1000)]
    asked = request(Operation.ALLREDUCE, tensors, reduction=Reduction.AVERAGE)
    me.collectives.carry_out(Response((asked,)), [Work(asked, tuple(tensors), tuple(tensors))])
    return tensors


def build_set(member: list[Member], process_set: int, ranks: tuple[int, ...]) -> None:
    member[0].groups.build(process_set, ranks)


def remove_set(member: list[Member], process_set: int) -> None:
    member[0].groups.remove(process_set)


def members_of(member: list[Member], process_set: int) -> tuple[int, ...]:
    return member[0].groups.members(process_set)


def carry(member: list[Member], route: list[tuple[int, int]], size: int, dtype: str) -> torch.Tensor:
    """A tensor along each of these ways, one after the other."""
    (me,) = member
    tensor_transport.CHUNK_BYTES = 1000
    carrier = GlooTransport(me.groups)
    tensor = values(me.rank, dtype, size)
    for source, target in route:
        if me.rank == source:
            carrier.send(tensor, target)()
        elif me.rank == target:
            carrier.receive(tensor, source)()
    return tensor


def wait_for_all(member: list[Member], times: int = 1) -> None:
    """Collectives on which everybody depends."""
    for _ in range(times):
        allreduce(member, "float32", [(10,)], {}, True)


def wait_for_neighbour(member: list[Member], source: int) -> None:
    GlooTransport(member[0].groups).receive(torch.empty(3), source)()


def break_soon(member: list[Member], after_s: float) -> None:
    threading.Timer(after_s, member[0].groups.break_connections).start()


def form_another(member: list[Member], port: int, name: str) -> None:
    """A second communicator in the same process, with the ranks the other way round."""
    (me,) = member
    rank = me.size - 1 - me.rank
    me.kept["another"] = another = new_groups(rank, me.size, port, name)
    another.build(GLOBAL_SET, tuple(range(me.size)))


def allreduce_in_another(member: list[Member]) -> None:
    another = member[0].kept["another"]
    another.gloo(GLOBAL_SET).allreduce(torch.ones(3)).wait()


def break_another(member: list[Member]) -> None:
    member[0].kept["another"].break_connections()


class Wrapped(dist.Store):  # type: ignore[misc]
    """A store, as its members see it."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))


class HalfStore(Wrapped):
    """Who meets here tells the others where it is, and hears nothing of rank 0 for a while."""

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if keys[0].endswith("/0"):
            time.sleep(3.0)  # long after it was broken
            raise RuntimeError("enough")
        self._store.wait(keys)


def come_but_never_connect(member: list[Member], port: int, name: str) -> None:
    groups = Groups(1, 2, LOOPBACK, HalfStore(store_at(port, name)), TIMEOUT_S)
    with pytest.raises(RuntimeError, match="enough"):
        groups.build(GLOBAL_SET, (0, 1))


def build_and_break(member: list[Member], port: int, name: str, after_s: float) -> tuple[float, str]:
    """How long it has built, and why it did not succeed."""
    groups = new_groups(0, 2, port, name)
    timer = threading.Timer(after_s, groups.break_connections)
    timer.start()
    began = time.monotonic()
    error = ""
    try:
        groups.build(GLOBAL_SET, (0, 1))
    except RuntimeError as raised:
        error = str(raised)
    seconds = time.monotonic() - began
    timer.join()
    groups.close()
    return seconds, error or "connections were broken"


def build_beside_strangers(member: list[Member], rank: int, port: int, name: str) -> str:
    """All three listen, and connect when they are told to; why the group did not come to be.

    Where it did, it is kept until end_builds(): another member may still be connecting.
    """
    groups = Groups(rank, 3, LOOPBACK, WaitingStore(store_at(port, name)), PATIENCE_S)
    try:
        groups.build(GLOBAL_SET, (0, 1, 2))
    except RuntimeError as error:
        groups.close()
        return str(error)
    member[0].kept["built"] = groups
    return ""


def end_builds(member: list[Member]) -> None:
    """Close the group that was kept, if there is one."""
    if groups := member[0].kept.pop("built", None):
        groups.close()


class WaitingStore(Wrapped):
    """Who has learned where the others listen goes on when the test says so."""

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._store.wait([*keys, "go"])


class KnowsNoSecret(WaitingStore):
    """Of a stranger who knows where everybody listens, and speaks as Gloo does."""

    def get(self, key: str) -> bytes:
        value = super().get(key)
        return bytes(len(value)) if "secret" in key else value


class OfBefore(WaitingStore):
    """Of a flexo that knows nothing of secrets."""

    def set(self, key: str, value: bytes) -> None:
        if "secret" not in key:
            super().set(key, value)


def build_as_before(member: list[Member], port: int, name: str) -> str:
    member[0].kept["built"] = groups = Groups(2, 3, LOOPBACK, OfBefore(store_at(port, name)), PATIENCE_S)
    groups.build(GLOBAL_SET, (0, 1, 2))
    return ""


def pretend_to_be_the_third(member: list[Member], port: int, name: str) -> None:
    groups = Groups(2, 3, LOOPBACK, KnowsNoSecret(store_at(port, name)), PATIENCE_S)
    with pytest.raises(RuntimeError):
        groups.build(GLOBAL_SET, (0, 1, 2))
    groups.close()


def close(member: list[Member]) -> None:
    member[0].groups.close()


def open_sockets_of_a_script(member: list[Member]) -> None:
    """A connection that looks like Gloo's in everything but its ports, and a server."""
    (me,) = member
    server = socket.create_server((LOOPBACK, 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    near.set_inheritable(True)
    server.set_inheritable(True)
    near.settimeout(TIMEOUT_S)
    me.kept["sockets"] = server, near, far


def sockets_work(member: list[Member]) -> bool:
    server, near, far = member[0].kept["sockets"]
    near.sendall(b"x")
    socket.create_connection(server.getsockname()).close()
    return bool(far.recv(1) == b"x")


# --- all-reduce ---------------------------------------------------------------------------------------------


def expected(size: int, dtype: str, shape: tuple[int, ...], reduction: Reduction) -> torch.Tensor:
    """Computed here, in double precision or whole numbers, and converted once."""
    wide = "float64" if dtype in FLOATS else "int64"
    stacked = torch.stack([values(rank, dtype, *shape).to(getattr(torch, wide)) for rank in range(size)])
    if reduction is Reduction.AVERAGE:
        result = (stacked.sum(0).double() * (1.0 / size)).to(stacked.dtype)
    elif reduction is Reduction.SUM:
        result = stacked.sum(0)
    elif reduction is Reduction.PRODUCT:
        result = stacked.prod(0)
    else:
        result = stacked.amin(0) if reduction is Reduction.MIN else stacked.amax(0)
    return result.to(getattr(torch, dtype))


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Of one type and shape, and equal but for the last bits."""
    torch.testing.assert_close(found, wanted)
    return True


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "reduction", [Reduction.SUM, Reduction.AVERAGE, Reduction.MIN, Reduction.MAX, Reduction.PRODUCT]
)
def test_everybody_gets_the_reduced_tensors(cluster: Cluster, size: int, reduction: Reduction) -> None:
    members = cluster.form(size)
    shapes: list[tuple[int, ...]] = [(5, 3), (), (0, 2), (7,)]
    for dtype in FLOATS + INTEGERS:
        wanted = [expected(size, dtype, shape, reduction) for shape in shapes]
        for some, in_place in ((shapes, True), (shapes, False), (shapes[:1], True), (shapes[:1], False)):
            results = each(members, allreduce, dtype, some, {"reduction": reduction}, in_place)
            assert all(same(f, w) for found in results for f, w in zip(found, wanted, strict=False))
            assert all(torch.equal(a, b) for found in results for a, b in zip(found, results[0], strict=True))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("shapes", [[(6,)], [(6,), (3,)]], ids=["alone", "fused"])
def test_tensors_are_scaled_before_and_after(
    cluster: Cluster, size: int, shapes: list[tuple[int, ...]]
) -> None:
    members = cluster.form(size)
    scales = {"prescale": 0.5, "postscale": 3.0}
    for dtype in ("float16", "float32", "float64"):
        wanted = sum(values(rank, dtype, 6) for rank in range(size)) * 1.5
        for found in each(members, allreduce, dtype, shapes, scales, False):
            assert torch.equal(found[0], wanted)
    for found in each(members, allreduce, "int32", shapes, scales, True):
        # Whole numbers lose their halves twice.
        wanted = sum((values(rank, "int32", 6) * 0.5).int() for rank in range(size)) * 3
        assert torch.equal(found[0], wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_averaged_in_single_precision(cluster: Cluster, dtype: str) -> None:
    shapes: list[tuple[int, ...]] = [(500,), (3,)]
    more = {"reduction": Reduction.AVERAGE}
    for some in (shapes, shapes[:1]):
        for found in each(cluster.form(3), allreduce, dtype, some, more, True):
            wanted = (expected(3, dtype, (500,), Reduction.SUM).float() * (1 / 3)).to(found[0].dtype)
            assert torch.equal(found[0], wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_same_bits_everywhere_and_again(cluster: Cluster, dtype: str) -> None:
    results = [found for _ in range(2) for found in each(cluster.form(3), random_sums, dtype)]
    for found in results:
        assert all(map(torch.equal, found, results[0]))


def test_large_tensors_are_reduced_whole(cluster: Cluster) -> None:
    for shapes in ([(300, 401)], [(300, 401), (5,), (70_000,)]):
        for found in each(cluster.form(2), allreduce, "float32", shapes, {"postscale": 2.0}, False):
            for tensor, shape in zip(found, shapes, strict=True):
                assert torch.equal(tensor, 2 * expected(2, "float32", shape, Reduction.SUM))


def test_buffers_serve_many_combinations_of_tensors(cluster: Cluster) -> None:
    members = cluster.form(2)
    for count in [*range(2, 90, 3), 5, 50]:
        shapes: list[tuple[int, ...]] = [(count,), (3,), (2, count)]
        for found in each(members, allreduce, "float32", shapes, {}, True):
            wanted = [expected(2, "float32", shape, Reduction.SUM) for shape in shapes]
            assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("joined", [[0], [2], [0, 1]])
def test_who_has_joined_adds_zeros(cluster: Cluster, joined: list[int]) -> None:
    results = each(cluster.form(3), allreduce_after_joining, joined, GLOBAL_SET)
    working = [rank for rank in range(3) if rank not in joined]
    for shape, place in (((4,), 0), ((2, 3), 1)):
        wanted = sum(values(rank, "float32", *shape) for rank in working) / 3
        for rank in range(3):
            mine = values(rank, "float32", *shape) if rank in joined else wanted
            assert same(results[rank][place], mine)


def test_a_reduction_that_is_not_known_is_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="ADASUM"):
        each(cluster.form(1), allreduce, "float32", [(3,)], {"reduction": Reduction.ADASUM}, True)


# --- the others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_everybody_gets_all_rows(cluster: Cluster, size: int) -> None:
    members = cluster.form(size)
    rows = [[1, 4, 2][:size], [0, 3, 0][:size], [0, 0, 0][:size], [2, 2, 2][:size]]
    for dtype, width in (("float32", (3,)), ("uint8", ()), ("bool", (2, 2)), ("float64", (0,))):
        for found in each(members, allgather, dtype, rows, width):
            for tensor, dimensions in zip(found, rows, strict=True):
                parts = [values(rank, dtype, count, *width) for rank, count in enumerate(dimensions)]
                assert torch.equal(tensor, torch.cat(parts))


def test_scalars_are_gathered_as_one_row_each(cluster: Cluster) -> None:
    for found in each(cluster.form(2), allgather_scalars):
        assert found.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_everybody_gets_the_roots_tensor(cluster: Cluster, size: int) -> None:
    members = cluster.form(size)
    for root, dtype, in_place in itertools.product(range(size), ["float32", "bool", "int16"], [True, False]):
        for shape in ((4, 2), (), (0,)):
            for found in each(members, broadcast, dtype, shape, root, in_place):
                assert torch.equal(found, values(root, dtype, *shape))


@pytest.mark.parametrize(
    "splits", [[[4]], [[1, 2], [0, 3]], [[0, 1, 2], [3, 0, 0], [0, 0, 0]], [[2, 2, 2]] * 3], ids=str
)
def test_rows_go_where_the_splits_say(cluster: Cluster, splits: list[list[int]]) -> None:
    members = cluster.form(len(splits))
    for dtype in ("float32", "int8"):
        sent = [values(rank, dtype, sum(row), 3).split(row) for rank, row in enumerate(splits)]
        for rank, (found, received) in enumerate(each(members, alltoall, dtype, splits)):
            assert torch.equal(found, torch.cat([parts[rank] for parts in sent]))
            assert received == [row[rank] for row in splits]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_keeps_its_rows_of_the_reduced_tensors(cluster: Cluster, size: int) -> None:
    members = cluster.form(size)
    for reduction, dtype in itertools.product([Reduction.SUM, Reduction.AVERAGE], ["float32", "int16"]):
        shapes: list[tuple[int, ...]] = [(5, 3), (1,), (6, 2), (0, 2)]
        more = {"reduction": reduction, "prescale": 2.0}
        results = each(members, reducescatter, dtype, shapes, more)
        for place, shape in enumerate(shapes):
            whole = 2 * sum(values(rank, dtype, *shape).double() for rank in range(size))
            wanted = whole / size if reduction is Reduction.AVERAGE else whole
            parts = [found[place] for found in results]
            assert same(torch.cat(parts), wanted.to(getattr(torch, dtype)))
            # The first ones have one row more.
            assert [len(part) for part in parts] == [len(part) for part in whole.tensor_split(size)]


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_a_courier_carries_tensors_between_two(cluster: Cluster, dtype: str) -> None:
    members = cluster.form(3)
    for size in (0, 3, 2500):
        found = each(members, carry, [(2, 0), (0, 1)], size, dtype)
        assert all(torch.equal(tensor, values(2, dtype, size)) for tensor in found)


# --- process sets -------------------------------------------------------------------------------------------


def test_a_process_set_works_beside_the_set_of_all(cluster: Cluster) -> None:
    members = cluster.form(3)
    each(members, build_set, SOME_SET, (0, 2))
    assert each(members, members_of, SOME_SET) == [(0, 2)] * 3
    results = each([members[0], members[2]], allreduce_after_joining, [], SOME_SET)
    wanted = (values(0, "float32", 4) + values(2, "float32", 4)) / 2
    assert all(torch.equal(found[0], wanted) for found in results)
    each(members, wait_for_all)


def test_a_set_of_one_needs_nobody(cluster: Cluster) -> None:
    members = cluster.form(2)
    members[1].begin(build_set, SOME_SET, (1,))
    members[1].answer()
    members[1].begin(allreduce_after_joining, [], SOME_SET)
    assert torch.equal(members[1].answer()[0], values(1, "float32", 4))


def test_numbers_of_removed_sets_are_used_again(cluster: Cluster) -> None:
    members = cluster.form(2)
    for _ in range(3):
        each(members, build_set, SOME_SET, (0, 1))
        each(members, allreduce_after_joining, [], SOME_SET)
        each(members, remove_set, SOME_SET)
        with pytest.raises(KeyError):
            each(members[:1], members_of, SOME_SET)
    each(members, wait_for_all)


# --- ends ---------------------------------------------------------------------------------------------------


def test_breaking_wakes_all_members_and_no_socket_of_the_script(cluster: Cluster) -> None:
    members = cluster.form(3)
    each(members, open_sockets_of_a_script)
    each(members, build_set, SOME_SET, (0, 1, 2))
    each(members[:1], break_soon, 0.3)
    began = time.monotonic()
    for process, source in zip(members, (1, 0, 0), strict=True):  # on the set of all
        process.begin(wait_for_neighbour, source)
    assert all(outcomes(members))
    assert time.monotonic() - began < 0.3 + SOON_S
    assert each(members, sockets_work) == [True] * 3
    members[0].begin(wait_for_all)
    [error] = outcomes(members[:1])
    assert "connections were broken" in error


def test_another_communicator_of_the_process_is_not_broken(cluster: Cluster) -> None:
    members = cluster.form(2)
    each(members, form_another, cluster.port, cluster.new_name())
    each(members, allreduce_in_another)
    each(members[:1], break_another)
    each(members, wait_for_all)
    for process in members:
        process.begin(allreduce_in_another)
    assert all(outcomes(members))
    each(members, form_another, cluster.port, cluster.new_name())
    each(members[:1], break_soon, 0.0)
    each(members, allreduce_in_another)


def test_a_build_ends_soon_when_it_is_broken(cluster: Cluster) -> None:
    """Of who waits for a member to connect, that is: who of two connects is a matter of chance."""
    first, second = cluster.form(2)
    waited = []
    while not any(waited):
        assert len(waited) < 20
        name = cluster.new_name()
        second.begin(come_but_never_connect, cluster.port, name)
        first.begin(build_and_break, cluster.port, name, 0.3)
        seconds, error = first.answer()
        second.answer()
        assert "connections were broken" in error
        assert seconds < 0.3 + SOON_S
        waited.append(seconds >= 0.3)
    each([first, second], wait_for_all)


def test_a_member_that_dies_fails_the_others(cluster: Cluster) -> None:
    members = cluster.form(3)
    for process in members[:2]:
        process.begin(wait_for_all)
    time.sleep(0.3)
    began = time.monotonic()
    cluster.end(members[2])
    assert all("closed by peer" in found or "reset" in found for found in outcomes(members[:2]))
    assert time.monotonic() - began < SOON_S


def test_who_closes_first_takes_nothing_from_those_who_still_read(cluster: Cluster) -> None:
    members = cluster.form(3)
    for process in members:
        process.begin(wait_for_all, 20)
        process.begin(close)
    assert outcomes(members) == ["", "", ""]
    assert outcomes(members) == ["", "", ""]


def test_a_group_with_a_stranger_in_it_does_not_come_to_be(cluster: Cluster) -> None:
    """He finds the ports (/proc/net/tcp shows them to everybody) and is faster than the members."""
    members, name = cluster.form(3), cluster.new_name()
    for rank, process in enumerate(members):
        process.begin(build_beside_strangers, rank, cluster.port, name)
    store = store_at(cluster.port, name)
    strangers = [socket.create_connection(listening(store, place)) for place in range(3) for _ in range(3)]
    for number, stranger in enumerate(strangers):
        stranger.sendall(struct.pack("@n", number % 3))  # I am that rank
    store.set("go", b"")
    failures = [process.answer() for process in members]
    for stranger in strangers:
        stranger.close()
    assert all(failures), failures
    name = cluster.new_name()
    store_at(cluster.port, name).set("go", b"")
    for rank, process in enumerate(members):
        process.begin(build_beside_strangers, rank, cluster.port, name)
    assert [process.answer() for process in members] == ["", "", ""]
    each(members, end_builds)


def listening(store: Any, place: int) -> tuple[str, int]:
    """Where a member of the group of three listens."""
    address, port = store.get(f"gloo.0-1-2.1/listens.{place}").decode().split()
    return address, int(port)


def test_a_stranger_who_speaks_as_gloo_does_is_told_from_a_member(cluster: Cluster) -> None:
    members, name = cluster.form(3), cluster.new_name()
    store_at(cluster.port, name).set("go", b"")
    for rank, process in enumerate(members[:2]):
        process.begin(build_beside_strangers, rank, cluster.port, name)
    members[2].begin(pretend_to_be_the_third, cluster.port, name)
    failures = [process.answer() for process in members[:2]]
    members[2].answer()
    assert all(failures), failures
    assert any("no member" in failure for failure in failures)


def test_members_that_prove_nothing_yet_are_taken_in(cluster: Cluster) -> None:
    """A job that outlives an update has workers of both flexos."""
    members, name = cluster.form(3), cluster.new_name()
    store_at(cluster.port, name).set("go", b"")
    for rank, process in enumerate(members[:2]):
        process.begin(build_beside_strangers, rank, cluster.port, name)
    members[2].begin(build_as_before, cluster.port, name)
    assert [process.answer() for process in members] == ["", "", ""]
    each(members, end_builds)
