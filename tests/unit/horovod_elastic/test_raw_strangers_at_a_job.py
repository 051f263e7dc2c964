"""A raw client attacks every server inside a job; the job's own processes are served meanwhile.

The lease server of `flexo run`, the leader's and the agent's speak HTTP/2, the rendezvous HTTP/1. What a raw
client does to rank 0 stands in test_core_lines.py. Attacks are bounded, and stay on this machine.
"""

from __future__ import annotations

import os
import queue
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from trusting import Trusting

from flexo_bench.abuse.raw_http2 import Address, RawConnection, frame
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import leases_pb2, leases_pb2_grpc, workers_pb2
from horovod_elastic import open_files, rendezvous
from horovod_elastic.agent.local_service import LocalService
from horovod_elastic.agent.parked_link import ParkedLink
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.leader.leader_service import LeaderPort
from horovod_elastic.proofs import callers_proof
from horovod_elastic.rendezvous import Rendezvous
from horovod_elastic.wire import ATTACH_AGENT, SECRET_KEY

LOOK = "/flexo.v1.LeaseService/Look"
ATTACH_WORKER = "/flexo.v1.AgentService/AttachWorker"
SECRET = "s3cret"
BOUND_S = 20.0
UNAUTHENTICATED = 16
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING, SETTINGS, HEADERS, CONTINUATION = 6, 4, 1, 9


class Job:
    """Leader and agent, as far as their servers need them: they end every stream at once."""

    def post(self, event: Callable[[], None]) -> None:
        event()

    def agent_attached(self, name: str, hello: object, outbox: queue.SimpleQueue[object]) -> None:
        outbox.put(None)

    def agent_said(self, name: str, outbox: object, message: object) -> None:
        """Nothing follows from it."""

    def agent_detached(self, name: str, outbox: object) -> None:
        """Nothing follows from it."""

    def worker_attached(self, worker_id: str, outbox: queue.SimpleQueue[object]) -> None:
        outbox.put(None)

    worker_said = worker_detached = agent_detached


class Server:
    """One of them: where raw clients reach it, and what one of the job's own does there."""

    def __init__(self, address: Address, method: str, honest: Callable[[], object]) -> None:
        self.address, self.method, self.honest = address, method, honest


@contextmanager
def lease_server(folder: Path) -> Iterator[Server]:
    with LeaseServer("127.0.0.1", Trusting()) as server:

        def look() -> None:
            with grpc.insecure_channel(server.endpoint) as channel:
                request = leases_pb2.LookRequest(job=leases_pb2.JobKey(job_id=7, run="r"))
                metadata = ((METADATA_KEY, f"{os.getuid()} {LOOK}"),)
                leases_pb2_grpc.LeaseServiceStub(channel).Look(request, metadata=metadata, timeout=BOUND_S)

        yield Server(_tcp(server.endpoint), LOOK, look)


@contextmanager
def leader_port(folder: Path) -> Iterator[Server]:
    port = LeaderPort("127.0.0.1", Trusting())
    port.start_serving(Job())  # type: ignore[arg-type]
    hello = workers_pb2.FromAgent(hello=workers_pb2.AgentHello(node="n1", slots=1))

    def attach() -> None:
        metadata = [(METADATA_KEY, f"{os.getuid()} {callers_proof(ATTACH_AGENT, port.endpoint)}")]
        _converse(port.endpoint, ATTACH_AGENT, hello.SerializeToString(), metadata)

    yield Server(_tcp(port.endpoint), ATTACH_AGENT, attach)
    port.close()


@contextmanager
def agents_socket(folder: Path) -> Iterator[Server]:
    path = folder / "agent"
    service = LocalService(Job(), f"unix:{path}", SECRET, ParkedLink(Trusting(), lambda: ""))  # type: ignore[arg-type]
    hello = workers_pb2.FromWorker(hello=workers_pb2.WorkerHello(worker_id="w"))

    def attach() -> None:
        _converse(f"unix:{path}", ATTACH_WORKER, hello.SerializeToString(), [(SECRET_KEY, SECRET)])

    yield Server(str(path), ATTACH_WORKER, attach)
    service.close()


def _converse(target: str, method: str, said: bytes, metadata: list[tuple[str, str]]) -> None:
    with grpc.insecure_channel(target) as channel:
        for _ in channel.stream_stream(method)(iter([said]), metadata=metadata, timeout=BOUND_S):
            pass


def _tcp(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def headers_only(server: Server, stack: ExitStack) -> None:
    for _ in range(4):
        stack.enter_context(RawConnection(server.address)).calls(server.method, 2000)


def half_messages(server: Server, stack: ExitStack) -> None:
    for _ in range(10):
        connection = stack.enter_context(RawConnection(server.address))
        for _ in range(16):
            connection.say(connection.call(server.method), bytes(1000), part=0.5)
        connection.flush()


def slow_reads(server: Server, stack: ExitStack) -> None:
    for _ in range(10):
        connection = stack.enter_context(RawConnection(server.address, window=0, generous=False))
        for _ in range(16):
            connection.say(connection.call(server.method), b"")
        connection.flush()


def many_connections(server: Server, stack: ExitStack) -> None:
    for _ in range(200):
        kind = socket.AF_UNIX if isinstance(server.address, str) else socket.AF_INET
        connection = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
        connection.connect(server.address)


def floods(server: Server, stack: ExitStack) -> None:
    for kind, payload in ((PING, bytes(8)), (SETTINGS, b"\x00\x04\x00\x00\xff\xff")):
        connection = stack.enter_context(RawConnection(server.address))
        for _ in range(100):
            connection.raw(frame(kind, 0, 0, payload) * 100)


def opened_and_reset(server: Server, stack: ExitStack) -> None:
    connection = stack.enter_context(RawConnection(server.address))
    for number in range(2000):
        connection.h2.reset_stream(connection.call(server.method))
        if number % 16 == 15:
            connection.flush()


def large_headers(server: Server, stack: ExitStack) -> None:
    stack.enter_context(RawConnection(server.address)).calls(server.method, 10, [("filler", "x" * 100_000)])
    connection = stack.enter_context(RawConnection(server.address))
    connection.raw(frame(HEADERS, 0, 1, b"\x00"))
    for _ in range(300):
        connection.raw(frame(CONTINUATION, 0, 1, b"\x40\x01a\x7f\x81\x7f" + b"x" * 256) * 20)


ATTACKS = (
    headers_only, half_messages, slow_reads, many_connections, floods, opened_and_reset, large_headers,
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize(
    "serving", [lease_server, leader_port, agents_socket], ids=["lease server", "leader", "agent"]
)
def test_the_job_is_served_while_somebody_attacks(
    tmp_path: Path,
    serving: Callable[[Path], contextmanager[Server]],  # type: ignore[valid-type]
    attack: Callable[[Server, ExitStack], None],
) -> None:
    with serving(tmp_path) as server, ExitStack() as stack:  # type: ignore[attr-defined]
        server.honest()
        with suppress(OSError):  # hung up on in the middle of it
            attack(server, stack)
        for _ in range(3):
            server.honest()


def test_eight_calls_without_a_message_do_not_hold_the_lease_server(tmp_path: Path) -> None:
    with lease_server(tmp_path) as server, RawConnection(server.address) as connection:
        streams = [connection.call(server.method) for _ in range(8)]
        connection.flush()
        server.honest()
        assert {connection.outcome(stream, BOUND_S).status for stream in streams} == {UNAUTHENTICATED}


@pytest.mark.parametrize("serving", [lease_server, leader_port], ids=["lease server", "leader"])
def test_connections_on_which_nobody_proves_anything_make_room_for_the_jobs_own(
    tmp_path: Path,
    serving: Callable[[Path], contextmanager[Server]],  # type: ignore[valid-type]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_files, "MOST_CONNECTIONS", 100)
    with serving(tmp_path) as server, ExitStack() as stack:  # type: ignore[attr-defined]
        for _ in range(120):
            stranger = stack.enter_context(socket.create_connection(server.address, timeout=BOUND_S))
            stranger.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        for _ in range(3):
            _served_within(BOUND_S, server.honest)


def _served_within(bound_s: float, honest: Callable[[], object]) -> None:
    """Agents dial again for as long."""
    deadline = time.monotonic() + bound_s
    while True:
        try:
            honest()
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _fetch(server: Rendezvous, path: str) -> bytes:
    with urllib.request.urlopen(
        f"http://{server.address.partition('/')[0]}{path}", timeout=BOUND_S
    ) as answer:
        return bytes(answer.read())


def test_members_meet_while_strangers_hold_half_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_HALF_READ", 20)
    server = Rendezvous("127.0.0.1", {"n1-17:0": "0,1,0,1,0,1"}, secret="5ecret")
    prefix = f"/5ecret:{server.port}/"
    with ExitStack() as stack:
        for _ in range(200):
            stranger = socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S)
            stack.enter_context(stranger).sendall(b"GET /")
        halves = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S))
        request = f"GET {prefix}rank_and_size/n1-17:0 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        halves.sendall(request[:20])  # one of the job's own, in two parts
        time.sleep(0.3)
        halves.sendall(request[20:])
        assert b"0,1,0,1,0,1" in halves.recv(4096)
        assert _fetch(server, f"{prefix}rank_and_size/n1-17:0") == b"0,1,0,1,0,1"
    server.close()
