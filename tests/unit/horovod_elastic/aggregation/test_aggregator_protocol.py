"""An Aggregator whose peers a test plays: frames that cross, connections that end at the worst instant."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from raw_peers import Peer, PretendedNode, RawWorker, to_node
from summing_world import (
    BOUND_S,
    SEVERAL,
    AggregatorProcess,
    Ranks,
    aggregators,
    begin,
    plan_of,
    sums,
)

from horovod_elastic.aggregation.client import AggregationClient
from horovod_elastic.aggregation.frames import Frame, Kind, header
from horovod_elastic.aggregation.memory import mask_of
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, Role, to_bytes

pytestmark = pytest.mark.processes

KEY = sums(("float32", 3 * 1024))[0]
"""A key of three parts: with three nodes, one part for each root."""
ONES = np.ones(1024, dtype=np.float32)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with aggregators(tmp_path_factory.mktemp("node"), 1, hasty=True) as started:
        yield started[0]


class Star:
    """Node 0 is real, with one worker. A test plays nodes 1 and 2."""

    def __init__(self, node: AggregatorProcess) -> None:
        self.node = node
        self.pretended = [PretendedNode(), PretendedNode()]
        self.plan = plan_of([node, *self.pretended], 1)
        self.failed: list[str] = []
        self.client = AggregationClient(node.socket(), self.plan, 0, self.failed.append)
        meeting = threading.Thread(target=self.client.connect, args=(BOUND_S, lambda: False))
        meeting.start()
        self.down = {index: self.pretended[index - 1].accept(self.plan) for index in (1, 2)}
        """The connections that node 0 has made: it pushes there, and results go back."""
        self.up = {index: self.reconnect(index) for index in (1, 2)}
        """The connections to node 0, with pushes for the parts whose root it is."""
        meeting.join(BOUND_S)
        self.key = self.client.key(KEY)
        for peer in self.up.values():
            peer.register(0, KEY)

    def reconnect(self, index: int) -> Peer:
        peer = to_node(self.plan, index, 0)
        peer.until(Kind.READY)
        return peer

    def begin(self) -> Callable[[], None]:
        self.key.input.numbers[:] = 1
        return begin(self.client, self.key)

    def finish(self, *parts: int) -> None:
        """Give node 0 the results of the parts whose roots the test plays."""
        for part in parts:
            self.down[part].result(0, part, 1, range(3), 3 * ONES)

    def result(self, part: int) -> float:
        assert self.key.result is not None
        return float(self.key.result.numbers[1024 * part])

    def close(self) -> None:
        self.client.close(in_order=True)
        for each in (*self.down.values(), *self.up.values(), *self.pretended):
            each.close()


@pytest.fixture
def star(node: AggregatorProcess) -> Iterator[Star]:
    with contextlib.closing(Star(node)) as made:
        yield made


def test_a_root_asks_again_for_a_result_when_the_node_that_has_it_comes_back(star: Star) -> None:
    wait = star.begin()
    star.up[1].have(0, 0, 1)
    star.up[2].push(0, 0, 1, [2], ONES)
    assert star.up[1].until(Kind.FETCH)[0][1:4] == (0, 0, 1)
    star.up[1].close()
    star.up[1] = star.reconnect(1)
    star.up[1].register(0, KEY)
    star.up[1].have(0, 0, 1)
    star.up[1].until(Kind.FETCH)
    star.up[1].result(0, 0, 1, range(3), 5 * ONES)
    assert star.up[2].until(Kind.RESULT)[0].round == 1
    star.finish(1, 2)
    wait()
    assert star.result(0) == 5


def test_a_root_asks_another_node_when_the_one_that_has_the_result_is_lost(star: Star) -> None:
    wait = star.begin()
    star.up[1].have(0, 0, 1)
    star.up[1].until(Kind.FETCH)
    star.up[2].have(0, 0, 1)
    star.up[1].close()
    star.up[2].until(Kind.FETCH)
    star.up[2].result(0, 0, 1, range(3), 5 * ONES)
    star.finish(1, 2)
    wait()
    assert star.result(0) == 5


def test_a_result_that_only_the_dead_had_is_summed_anew(star: Star) -> None:
    wait = star.begin()
    star.up[1].have(0, 0, 1)
    star.up[1].until(Kind.FETCH)
    star.up[2].push(0, 0, 1, [2], ONES)
    star.up[2].drop(1)
    star.up[1].close()
    star.up[2].until(Kind.RESULT)
    star.down[2].result(0, 1, 1, [0, 2], 2 * ONES)
    star.down[2].result(0, 2, 1, [0, 2], 2 * ONES)
    wait()
    assert star.result(0) == 2
    assert star.client.contributors(star.key)[0] == {0, 2}


def test_after_a_part_has_another_root_the_old_ones_late_result_is_no_result(star: Star) -> None:
    wait = star.begin()
    star.down[1].until(Kind.PUSH)
    star.up[2].push(0, 0, 1, [2], ONES)
    star.up[2].drop(1)
    assert [star.down[2].until(Kind.PUSH)[0].part for _ in range(2)] == [2, 1]
    with contextlib.suppress(OSError):
        star.finish(1)
    time.sleep(0.2)
    star.down[2].result(0, 1, 1, [0, 2], 2 * ONES)
    star.down[2].result(0, 2, 1, [0, 2], 2 * ONES)
    wait()
    assert star.result(1) == 2
    assert star.client.contributors(star.key)[1] == {0, 2}


def test_a_half_received_result_of_the_old_root_does_not_spoil_the_new_ones(star: Star) -> None:
    wait = star.begin()
    star.down[1].until(Kind.PUSH)
    star.up[2].push(0, 0, 1, [2], ONES)
    size = 1 + ONES.nbytes
    half = mask_of([0, 1, 2], 3) + (9 * ONES).tobytes()[:2048]
    star.down[1].connection.sendall(header(Frame(Kind.RESULT, 0, 1, 1, size)) + half)
    time.sleep(0.1)
    star.up[2].drop(1)
    assert [star.down[2].until(Kind.PUSH)[0].part for _ in range(2)] == [2, 1]
    star.down[2].result(0, 1, 1, [0, 2], 2 * ONES)
    star.down[2].result(0, 2, 1, [0, 2], 2 * ONES)
    wait()
    with contextlib.suppress(OSError):
        star.down[1].connection.sendall((9 * ONES).tobytes()[2048:])
    time.sleep(0.1)
    assert star.key.result is not None
    assert set(star.key.result.numbers[1024:2048]) == {2.0}


def test_a_new_root_that_has_the_result_sends_it_to_whoever_pushed_before_it_knew(star: Star) -> None:
    """Part 2 has node 2 as its root, and node 0 after node 2's death."""
    star.begin()
    star.down[2].until(Kind.PUSH)
    star.up[1].push(0, 2, 1, [1], ONES)
    star.finish(2)
    time.sleep(0.2)
    star.up[1].drop(2)
    frame, _ = star.up[1].until(Kind.RESULT)
    assert (frame.part, frame.round) == (2, 1)


def test_a_node_that_connects_again_is_heard_once_its_old_connection_is_over(star: Star) -> None:
    star.begin()
    size = 1 + ONES.nbytes
    old = star.up[1]
    old.connection.sendall(header(Frame(Kind.PUSH, 0, 0, 1, size)) + b"\x02" + (7 * ONES).tobytes()[:2048])
    time.sleep(0.1)
    star.up[1] = star.reconnect(1)
    star.up[1].register(0, KEY)
    star.up[1].push(0, 0, 1, [1], ONES)
    star.up[2].push(0, 0, 1, [2], ONES)
    frame, payload = star.up[2].until(Kind.RESULT)
    assert frame.part == 0
    with contextlib.suppress(OSError):
        old.connection.sendall((7 * ONES).tobytes()[2048:])
    time.sleep(0.1)
    assert set(np.frombuffer(payload, dtype=np.float32, offset=1)) == {3.0}
    assert old.closed()


def test_a_root_that_nobody_lives_for_may_be_away_for_ever(star: Star) -> None:
    star.up[2].drop(1)
    star.down[1].close()
    star.up[1].close()
    star.pretended[0].close()
    time.sleep(2.5)
    assert not star.failed


def test_without_a_root_for_a_while_the_workers_hear_why(star: Star) -> None:
    began = time.monotonic()
    star.down[1].close()
    star.pretended[0].close()
    while not star.failed and time.monotonic() - began < BOUND_S:
        time.sleep(0.05)
    assert 1.4 < time.monotonic() - began < 4
    assert "n1" in star.failed[0]


def test_a_root_whose_workers_are_late_is_waited_for(node: AggregatorProcess) -> None:
    other = PretendedNode()
    plan = plan_of([node, other], 1)
    client = AggregationClient(node.socket(), plan, 0, lambda why: None)
    meeting = threading.Thread(target=client.connect, args=(BOUND_S, lambda: False))
    meeting.start()
    down = other.accept(plan, ready=False)
    up = to_node(plan, 1, 0)
    time.sleep(2.5)
    down.send(Frame(Kind.READY))
    meeting.join(BOUND_S)
    client.check()
    client.close(in_order=True)
    up.close()
    other.close()


def test_deaths_are_told_before_a_node_without_workers_leaves(node: AggregatorProcess) -> None:
    for _ in range(20):
        other = PretendedNode()
        plan = plan_of([node, other], 1)
        client = AggregationClient(node.socket(), plan, 0, lambda why: None)
        meeting = threading.Thread(target=client.connect, args=(BOUND_S, lambda: False))
        meeting.start()
        down, up = other.accept(plan), to_node(plan, 1, 0)
        meeting.join(BOUND_S)
        client.close(in_order=False)
        assert down.until(Kind.DROP)[1] == mask_of([0], 2)
        up.until(Kind.BYE)
        for each in (down, up, other):
            each.close()


def test_deaths_are_told_on_whichever_connection_there_is(node: AggregatorProcess) -> None:
    other = PretendedNode()
    plan = plan_of([node, other], 2)
    workers = [RawWorker(node.socket(), plan, rank, KEY) for rank in (0, 1)]
    for each in workers:
        each.connect()
    up = to_node(plan, 1, 0)
    up.until(Kind.READY)
    workers[0].peer.close()
    assert up.until(Kind.DROP)[1] == mask_of([0], 4)
    up.close()
    up = to_node(plan, 1, 0)
    assert up.until(Kind.DROP)[1] == mask_of([0], 4)
    workers[1].peer.close()
    assert up.until(Kind.DROP)[1] == mask_of([1], 4)
    up.close()
    other.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_node_whose_workers_all_died_while_nobody_heard_it_says_so_to_who_comes_again(
    tmp_path_factory: pytest.TempPathFactory, is_killed: bool
) -> None:
    with aggregators(tmp_path_factory.mktemp("late"), 1, hasty=True) as nodes:
        other = PretendedNode()
        plan = plan_of([*nodes, other], 1)
        worker = RawWorker(nodes[0].socket(), plan, 0, KEY)
        worker.connect()
        down, up = other.accept(plan), to_node(plan, 1, 0)
        worker.peer.until(Kind.READY)
        down.close()
        up.close()
        if is_killed:
            nodes[0].kill()
        worker.peer.close()
        time.sleep(0.3)
        if is_killed:
            nodes[0].start()
            nodes[0].wait()
        again = to_node(plan, 1, 0, keys=0)
        again.until(Kind.READY)
        while True:
            with contextlib.suppress(EOFError, ConnectionError):
                assert other.accept(plan).until(Kind.DROP)[1] == mask_of([0], 2)
                break
        again.close()
        other.close()


def test_workers_share_one_memory_though_a_new_aggregator_met_the_one_without_it_first(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with aggregators(tmp_path_factory.mktemp("split"), 1, hasty=True) as nodes:
        plan = plan_of(nodes, 2)
        first, second = (RawWorker(nodes[0].socket(), plan, rank, KEY) for rank in (0, 1))
        for each in (first, second):
            each.connect()
        for each in (first, second):
            each.peer.until(Kind.READY)
        first.register()
        first.registered()
        nodes[0].restart()
        _wait_for(second.connect, keys=0)
        second.register()
        time.sleep(0.2)
        first.connect(keys=1)
        first.register()
        for each in (first, second):
            each.registered()
            each.input.numbers[:] = 1
            each.push(1)
        for each in (first, second):
            assert each.done() == 1
            assert each.result is not None
            assert set(each.result.numbers) == {2.0}


def _wait_for(connect: Callable[..., None], **options: int) -> None:
    limit = time.monotonic() + BOUND_S
    while True:
        try:
            return connect(**options)
        except OSError:
            assert time.monotonic() < limit
            time.sleep(0.01)


# --- strangers, and frames that nobody sends by the rules -------------------------------------------------


@pytest.fixture
def summing(node: AggregatorProcess) -> Iterator[Ranks]:
    """Two workers of the node, whose sums have to go on whatever the test does."""
    ranks = Ranks([node], 2, SEVERAL, 20, 0.02)
    yield ranks
    ranks.end()
    ranks.check_undisturbed()


def hello_of(plan: Plan, role: Role = Role.NODE, number: int = 0, token: str = "") -> bytes:
    return to_bytes(Hello(role, number, 0, token or plan.nodes[0].token, plan, NEW))


def stranger(node: AggregatorProcess, plan: Plan, *, local: bool = False) -> Peer:
    if not local:
        at = node.place()
        return Peer(socket.create_connection((at.host, at.port), 5), plan)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(node.socket())
    return Peer(connection, plan)


def refusal(peer: Peer) -> str:
    return peer.until(Kind.FAILED)[1].decode()


@pytest.mark.parametrize("local", [False, True])
def test_whoever_has_another_token_or_plan_is_refused(
    node: AggregatorProcess, summing: Ranks, local: bool
) -> None:
    wrong = stranger(node, summing.plan, local=local)
    wrong.send(Frame(Kind.HELLO), hello_of(summing.plan, token="guessed"))
    assert "token" in refusal(wrong)
    surrogate = stranger(node, summing.plan, local=local)
    surrogate.send(Frame(Kind.HELLO), hello_of(summing.plan, token="\ud800"))
    assert "token" in refusal(surrogate)
    other = stranger(node, summing.plan, local=local)
    plan = plan_of([node], 3, generation=summing.plan.generation)
    other.send(Frame(Kind.HELLO), hello_of(plan, Role.WORKER if local else Role.NODE))
    assert "another plan" in refusal(other)


def test_a_worker_comes_by_the_nodes_socket_only_and_with_a_rank_of_the_node(
    node: AggregatorProcess, summing: Ranks
) -> None:
    far = stranger(node, summing.plan)
    far.send(Frame(Kind.HELLO), hello_of(summing.plan, Role.WORKER))
    assert "socket" in refusal(far)
    other = PretendedNode()
    plan = plan_of([node, other], 1)
    near = stranger(node, plan, local=True)
    near.send(Frame(Kind.HELLO), hello_of(plan, Role.WORKER, 1))
    assert "rank 1" in refusal(near)
    itself = stranger(node, plan)
    itself.send(Frame(Kind.HELLO), hello_of(plan, Role.NODE, 0))
    assert "node" in refusal(itself)
    other.close()


BAD = {
    "an unknown kind": b"\xff" + bytes(23),
    "PUSH before HELLO": bytes([Kind.PUSH]) + bytes(23),
    "a hello of 2**60 bytes": bytes([Kind.HELLO]) + bytes(15) + (1 << 60).to_bytes(8, "little"),
    "a hello that is no JSON": bytes([Kind.HELLO]) + bytes(15) + (4).to_bytes(8, "little") + b"\xff{[(",
    "a deep hello": bytes([Kind.HELLO]) + bytes(15) + (100_000).to_bytes(8, "little") + b"[" * 100_000,
}


@pytest.mark.parametrize("what", BAD)
def test_bad_frames_end_their_own_connection_only(node: AggregatorProcess, summing: Ranks, what: str) -> None:
    for local in (False, True):
        peer = stranger(node, summing.plan, local=local)
        peer.connection.sendall(BAD[what])
        assert refusal(peer)
        assert peer.closed()
    assert "Traceback" not in node.log()


def test_silent_strangers_keep_nobody_out(node: AggregatorProcess) -> None:
    plan = plan_of([node], 1)
    crowd = [stranger(node, plan) for _ in range(200)]
    crowd += [stranger(node, plan, local=True) for _ in range(100)]
    ranks = Ranks([node], 2, SEVERAL, 3)
    ranks.end()
    ranks.check_undisturbed()
    assert all(each.closed() for each in crowd[:50])
    for each in crowd:
        each.close()


def test_a_frame_of_an_unknown_key_or_part_or_size_ends_a_nodes_connection(star: Star) -> None:
    for spoil in (
        lambda peer: peer.push(7, 0, 1, [1], ONES),
        lambda peer: peer.push(0, 9, 1, [1], ONES),
        lambda peer: peer.push(0, 0, 1, [1], ONES[:10]),
        lambda peer: peer.send(Frame(Kind.DROP), bytes(1 << 16)),
        lambda peer: peer.send(Frame(Kind.REGISTER, 3), b'["a", [], 1]'),
        lambda peer: peer.send(Frame(Kind.REGISTER, 3), b"[" * 100_000),
        lambda peer: peer.send(Frame(Kind.REGISTER, 3), b'["a", "float64", 17179869184]'),
        lambda peer: peer.send(Frame(Kind.REGISTER, 1 << 30), b'["a", "float64", 1]'),
        lambda peer: peer.send(Frame(Kind.DONE)),
    ):
        peer = to_node(star.plan, 2, 0)
        peer.until(Kind.READY)
        with contextlib.suppress(BrokenPipeError):  # its header is refused already
            spoil(peer)
        assert refusal(peer)
        assert peer.closed()
    assert "Traceback" not in star.node.log()


def test_a_truncated_push_is_no_push(star: Star) -> None:
    wait = star.begin()
    size = 1 + ONES.nbytes
    star.up[1].connection.sendall(header(Frame(Kind.PUSH, 0, 0, 1, size)) + b"\x02" + bytes(100))
    star.up[1].close()
    star.up[2].push(0, 0, 1, [2], ONES)
    assert star.up[2].silent(Kind.RESULT)
    star.up[1] = star.reconnect(1)
    star.up[1].push(0, 0, 1, [1], ONES)
    assert star.up[2].until(Kind.RESULT)[0].round == 1
    star.finish(1, 2)
    wait()
    assert star.result(0) == 3


# --- what stays when a generation is over -----------------------------------------------------------------


def test_nothing_stays_of_a_generation_that_is_over(tmp_path_factory: pytest.TempPathFactory) -> None:
    with aggregators(tmp_path_factory.mktemp("rest"), 2, hasty=True) as nodes:
        Ranks(nodes, 2, SEVERAL, 2).end()
        _settled(nodes)
        before = [(each.files(), each.threads()) for each in nodes]
        for _ in range(5):
            ranks = Ranks(nodes, 2, SEVERAL, 2)
            ranks.dies(3)
            ranks.end()
        limit = time.monotonic() + 5
        while [(each.files(), each.threads()) for each in nodes] != before and time.monotonic() < limit:
            time.sleep(0.1)
        assert [(each.files(), each.threads()) for each in nodes] == before
        assert [each.shared_bytes() for each in nodes] == [0, 0]


def _settled(nodes: list[AggregatorProcess]) -> None:
    limit = time.monotonic() + 5
    while any(each.shared_bytes() for each in nodes) and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(0.3)


def test_a_generation_whose_workers_never_come_leaves_nothing(node: AggregatorProcess) -> None:
    other = PretendedNode()
    time.sleep(0.5)
    before = node.files(), node.threads()
    for _ in range(20):
        to_node(plan_of([node, other], 2), 1, 0).close()
    lonely = plan_of([node, other], 2)
    client = AggregationClient(node.socket(), lonely, 0, lambda why: None)
    with pytest.raises(RuntimeError, match="in time"):
        client.connect(0.3, lambda: False)
    client.close(in_order=False)
    limit = time.monotonic() + 5
    while (node.files(), node.threads()) != before and time.monotonic() < limit:
        time.sleep(0.1)
    assert (node.files(), node.threads()) == before
    other.close()


def test_a_node_gets_back_into_a_generation_older_than_one_that_is_over(star: Star) -> None:
    Ranks([star.node], 1, SEVERAL, 1).end()
    time.sleep(0.2)
    star.up[1].close()
    star.up[1] = star.reconnect(1)


def test_nobody_gets_into_a_generation_that_is_over(node: AggregatorProcess) -> None:
    ranks = Ranks([node], 1, SEVERAL, 1)
    ranks.end()
    time.sleep(0.2)
    late = stranger(node, ranks.plan, local=True)
    late.send(Frame(Kind.HELLO), hello_of(ranks.plan, Role.WORKER))
    assert "over" in refusal(late)
