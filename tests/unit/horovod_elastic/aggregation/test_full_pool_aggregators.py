"""A pool's Aggregator whose threads, descriptors or memory one job would take: it serves the other jobs."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pool_processes import wait_for
from raw_peers import Peer
from summing_world import BOUND_S

from flexo_protos.aggregation_token import KEY_BYTES, AggregationToken, sign
from horovod_elastic import sockets
from horovod_elastic.aggregation import server as servers
from horovod_elastic.aggregation import session
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.frames import Frame, Kind, header
from horovod_elastic.aggregation.memory import KeyShape
from horovod_elastic.aggregation.outbox import Outbox
from horovod_elastic.aggregation.plan import Hello, Plan, PlannedNode, Role, to_bytes
from horovod_elastic.aggregation.server import Server

pytestmark = pytest.mark.processes
KEY = b"k" * KEY_BYTES
MIB = 1 << 20
A_PLAN = Plan("5", 1, (PlannedNode("n0", (0,)),))


class Pool:
    """A pool's Aggregator in this process, and jobs whose nodes a test plays."""

    def __init__(self) -> None:
        self.door = PoolDoor(KEY)
        self.server = Server("", "127.0.0.1", 0, self.door)
        threading.Thread(target=self.server.serve, daemon=True).start()
        self.peers: list[Peer] = []

    def node(
        self, job: str, number: int = 0, nodes: int = 2, generation: int = 1, quota: int = 64 * MIB
    ) -> Peer:
        """Connect as a node of the job."""
        token = sign(AggregationToken(job, "somebody", quota, int(time.time()) + 600), KEY)
        ranked = tuple(PlannedNode(f"n{index}", (index,)) for index in range(nodes))
        pool = PlannedNode("pool", (), "127.0.0.1", self.server.port, token)
        plan = Plan(job, generation, (*ranked, pool), version=1)
        peer = Peer(socket.create_connection(("127.0.0.1", self.server.port), 10), plan)
        self.peers.append(peer)
        peer.send(Frame(Kind.HELLO), to_bytes(Hello(Role.NODE, number, nodes, token, plan)))
        return peer

    def welcome(self, job: str, **said: int) -> Peer:
        peer = self.node(job, **said)
        peer.until(Kind.READY)
        return peer


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    for peer in made.peers:
        peer.close()


def test_an_aggregator_without_a_thread_for_one_connection_hears_the_next_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoThread:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NoThread)
        assert pool.node("5").closed()
    pool.welcome("6")


def test_one_jobs_connections_are_limited_and_another_job_is_let_in(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST_CONNECTIONS", 3)
    several = [pool.welcome("5", number=0), pool.welcome("5", number=1), pool.welcome("5", generation=2)]
    assert "at most 3" in pool.node("5", number=1, generation=2).until(Kind.FAILED)[1].decode()
    pool.welcome("6")
    for peer in several:
        peer.close()
    wait_for(lambda: "5" not in pool.server.used())
    pool.welcome("5")


@pytest.mark.parametrize(("dtype", "of_a_node"), [("float32", 4), ("bfloat16", 4), ("float64", 8)])
def test_a_token_bounds_the_memory_for_the_sums_of_all_nodes(pool: Pool, dtype: str, of_a_node: int) -> None:
    """What one key takes is a buffer for each node, in which half precision is single, and the result."""
    shape = KeyShape("key", dtype, 1000)
    fits = 5 * 1000 * of_a_node + shape.size
    for job, quota in (("5", fits - 1), ("6", fits)):
        peer = pool.welcome(job, nodes=5, quota=quota)
        peer.register(0, shape)
        peer.send(Frame(Kind.PING))
        answer, text = peer.next()
        if quota < fits:
            assert answer.kind is Kind.FAILED
            assert str(fits).encode() in text
            assert str(quota).encode() in text
        else:
            assert answer.kind is Kind.PONG
            assert pool.server.used()[job].bytes == shape.size


def test_only_nodes_with_workers_push(pool: Pool) -> None:
    """So the nodes for which a job pays are all that it has buffers for."""
    assert "number is '3'" in with_others_of_the_pool(pool).until(Kind.FAILED)[1].decode()


def with_others_of_the_pool(pool: Pool) -> Peer:
    """A connection that says that it is another Aggregator of the pool."""
    peer = pool.welcome("5")
    plan = replace(peer.plan, generation=2, nodes=(*peer.plan.nodes, peer.plan.nodes[-1]))
    other = Peer(socket.create_connection(("127.0.0.1", pool.server.port), 10), plan)
    pool.peers.append(other)
    other.send(Frame(Kind.HELLO), to_bytes(Hello(Role.NODE, 3, 2, plan.nodes[2].token, plan)))
    return other


def test_the_keys_of_a_job_take_no_descriptors_of_other_jobs(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_KEYS", 300)
    small = KeyShape("key", "float32", 1)
    peers = [pool.welcome("5", generation=generation) for generation in (1, 2)]
    before = descriptors()
    for peer in peers:
        for key in range(150):
            peer.register(key, small)
        peer.send(Frame(Kind.PING))
        assert peer.next()[0].kind is Kind.PONG
    assert descriptors() < before + 50
    peers[0].register(299, small)
    assert "at most 300" in peers[0].until(Kind.FAILED)[1].decode()
    other = pool.welcome("6")
    other.register(0, small)
    other.send(Frame(Kind.PING))
    assert other.next()[0].kind is Kind.PONG


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_one_jobs_generations_are_limited(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_SESSIONS", 2)
    for generation in (1, 2):
        pool.welcome("5", generation=generation)
    assert "at most 2" in pool.node("5", generation=3).until(Kind.FAILED)[1].decode()
    pool.welcome("5", generation=2, number=1)
    pool.welcome("6")


def flood(peer: Peer, over: threading.Event) -> None:
    """Ask for ever, until the connection ends."""
    with contextlib.suppress(OSError):
        while not over.is_set():
            peer.connection.sendall(header(Frame(Kind.PING)) * 512)


def read_slowly(peer: Peer, over: threading.Event) -> None:
    """Read less than comes, so that something is always waiting."""
    with contextlib.suppress(OSError):
        while not over.wait(0.1) and peer.connection.recv(1 << 16):
            pass


def test_an_evicted_job_that_asks_for_ever_and_reads_slowly_has_to_leave(pool: Pool) -> None:
    peer, over = pool.welcome("5"), threading.Event()
    peer.connection.settimeout(None)
    both = [threading.Thread(target=each, args=(peer, over), daemon=True) for each in (flood, read_slowly)]
    for each in both:
        each.start()
    try:
        time.sleep(2.0)
        pool.door.refused = frozenset({"5"})
        pool.server.evict("5")
        wait_for(lambda: not pool.server.used())
    finally:
        over.set()
        sockets.close(peer.connection)
        for each in both:
            each.join(BOUND_S)


def test_one_answer_waits_for_all_that_ask_meanwhile() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        outbox = Outbox(one, "test")
        outbox.add(Frame(Kind.RESULT), (bytes(1 << 20),))  # it fills the connection
        for _ in range(1000):
            outbox.answer()
        outbox.end()
        peer = Peer(other, A_PLAN)
        kinds = []
        with contextlib.suppress(EOFError):
            while True:
                kinds.append(peer.next()[0].kind)
        assert kinds == [Kind.RESULT, Kind.PONG]


@pytest.mark.parametrize("nodes", [[["n0", [0], "h", 1, "t", 1]], "which nobody reads"])
@pytest.mark.parametrize("token", ["guessed", "\ud800", None])
def test_a_strangers_plan_is_not_read(pool: Pool, token: str | None, nodes: object) -> None:
    """It may be large, and takes the only core from those who sum."""
    stranger = Peer(socket.create_connection(("127.0.0.1", pool.server.port), 10), A_PLAN)
    pool.peers.append(stranger)
    stranger.send(Frame(Kind.HELLO), json.dumps({"token": token, "nodes": nodes}).encode())
    assert "the token is not signed by flexod" in stranger.until(Kind.FAILED)[1].decode()
