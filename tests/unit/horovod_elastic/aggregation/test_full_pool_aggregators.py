"""A pool's Aggregator whose threads, descriptors or memory one job would take: it serves the other jobs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from pool_processes import wait_for
from raw_peers import Peer

from flexo_protos.aggregation_token import KEY_BYTES, AggregationToken, sign
from horovod_elastic.aggregation import server as servers
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.plan import Hello, Plan, PlannedNode, Role, to_bytes
from horovod_elastic.aggregation.server import Server

pytestmark = pytest.mark.processes
KEY = b"k" * KEY_BYTES
MIB = 1 << 20


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
