"""A raw HTTP/2 client attacks flexod, active and standing by; honest callers are served meanwhile.

It says what no gRPC client says: calls without a message, half of one, frames without end, and it does not
read its answers. Each attack is bounded in number and time, and stays on this machine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import h2.settings
import pytest
from controller_world import ADA, BOB, FakeCluster
from loop_in_thread import LoopThread
from service_doubles import PlainAuthenticator

from flexo.availability.leadership_guard import ALONE
from flexo.config import Settings
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.service.admin_service import AdminService
from flexo.service.budgets import Budgets
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.server import ServiceRouter, all_services, listen
from flexo.service.standing_by import StandingBy
from flexo_bench.abuse.raw_http2 import RawConnection, frame
from flexo_protos.connections import ConnectionGuard
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import admin_pb2

STATUS = "/flexo.v1.AdminService/GetStatus"
EVENTS = "/flexo.v1.AdminService/ListEvents"
ATTACH = "/flexo.v1.JobService/Attach"
OK, DEADLINE_EXCEEDED, EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 0, 4, 8, 12, 16
BOUND_S = 20.0
"""An honest caller waits no longer, on a machine however busy."""
BUDGETS = Budgets(
    message_within_s=2.0,
    answer_within_s=2.0,
    silent_connections_of_a_host=50,
    streams_of_a_connection=100,
    connections=20,
)
PING, SETTINGS, RST, HEADERS, CONTINUATION = 6, 4, 3, 1, 9


@dataclass
class Flexod:
    """A running one, with an honest caller and raw ones."""

    port: int
    guard: ConnectionGuard
    _calls: int = field(default=0)

    def proof(self, method: str, uid: int) -> tuple[str, str]:
        """A credential, as metadata."""
        self._calls += 1
        return METADATA_KEY, f"{uid} {method}#{self._calls}"

    def dial(self, *, window: int = 65_535, generous: bool = True) -> RawConnection:
        return RawConnection(("127.0.0.1", self.port), window=window, generous=generous)

    def honest(self) -> None:
        """One honest call of ADA's, on a connection of its own. Raises grpc.RpcError."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            channel.unary_unary(STATUS)(b"", metadata=(self.proof(STATUS, ADA),), timeout=BOUND_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, *, active: bool = True) -> Iterator[Flexod]:
    """A flexod with one elastic job of ADA's and a long event store; or one that stands by."""
    cluster, registry = FakeCluster(), LeaderRegistry()
    cluster.base(1, "1-8")
    event_store = EventStore(folder / "journal.sqlite", 30)
    event_store.record(1.0, tuple(Event(1.0, "grow", None, "x" * 500) for _ in range(3000)))
    controller = Controller(Settings(), cluster, registry, event_store, clock=cluster.clock)
    controller.cycle()
    port = _free_port()
    guard = ConnectionGuard(BUDGETS.silent_connections_of_a_host, BUDGETS.connections)

    async def start() -> grpc.aio.Server:
        jobs = JobService(registry, controller, ServiceTimeouts(observed_within_s=0.05))
        admin = AdminService(controller, event_store, registry, (), budgets=BUDGETS)
        board = ServiceRouter(StandingBy(lambda: admin_pb2.Availability(address="here")))
        if active:
            board.activate(
                all_services(jobs, admin, InferenceService(None, frozenset(), registry.wake.set)), ALONE
            )
        return await listen(f"127.0.0.1:{port}", PlainAuthenticator(), board, guard=guard, budgets=BUDGETS)

    with LoopThread() as loop, guard.watching():
        server = loop.do(start())
        yield Flexod(port, guard)
        loop.do(server.stop(None))
    event_store.close()


@pytest.fixture
def flexod(tmp_path: Path) -> Iterator[Flexod]:
    with running(tmp_path) as made:
        yield made


def heedless(connection: RawConnection) -> RawConnection:
    """One that opens more streams than the server allows."""
    code = h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS
    connection.h2.remote_settings._settings[code].append(1 << 20)
    connection.h2.remote_settings.acknowledge()
    return connection


Attack = Callable[[Flexod, ExitStack], None]


def headers_only(flexod: Flexod, stack: ExitStack) -> None:
    stack.enter_context(flexod.dial()).calls(STATUS, 8192)


def headers_only_of_many_connections(flexod: Flexod, stack: ExitStack) -> None:
    for _ in range(30):
        stack.enter_context(flexod.dial()).calls(ATTACH, 100)


def proven_headers_only(flexod: Flexod, stack: ExitStack) -> None:
    connection = stack.enter_context(flexod.dial())
    for _ in range(100):
        connection.call(STATUS, [flexod.proof(STATUS, BOB)])
    connection.flush()


def half_messages(flexod: Flexod, stack: ExitStack) -> None:
    connection = stack.enter_context(flexod.dial())
    for _ in range(50):
        stream = connection.call(EVENTS, [flexod.proof(EVENTS, BOB)])
        connection.say(stream, bytes(1000), part=0.5)
    connection.flush()


def slow_reads(flexod: Flexod, stack: ExitStack) -> None:
    request = admin_pb2.ListEventsRequest(limit=1000).SerializeToString()
    for _ in range(4):
        connection = stack.enter_context(flexod.dial(window=1, generous=False))
        for _ in range(50):
            connection.say(connection.call(EVENTS, [flexod.proof(EVENTS, BOB)]), request)
        connection.flush()


def silent_connections(flexod: Flexod, stack: ExitStack) -> None:
    for _ in range(300):
        stack.enter_context(socket.create_connection(("127.0.0.1", flexod.port)))


def frames(kind: int, payload: bytes, *, flags: int = 0) -> Attack:
    """A flood of one kind of frame."""

    def flood(flexod: Flexod, stack: ExitStack) -> None:
        connection = stack.enter_context(flexod.dial())
        for _ in range(200):
            connection.raw(frame(kind, flags, 0, payload) * 100)

    return flood


def opened_and_reset(flexod: Flexod, stack: ExitStack) -> None:
    connection = stack.enter_context(flexod.dial())
    for number in range(5000):
        connection.h2.reset_stream(connection.call(STATUS))
        if number % 100 == 0:
            connection.flush()
    connection.flush()


def oversized_headers(flexod: Flexod, stack: ExitStack) -> None:
    stack.enter_context(flexod.dial()).calls(STATUS, 20, [("flexo-filler", "x" * 100_000)])


def headers_without_end(flexod: Flexod, stack: ExitStack) -> None:
    connection = stack.enter_context(flexod.dial())
    connection.raw(frame(HEADERS, 0, 1, b"\x00"))
    for _ in range(500):
        connection.raw(frame(CONTINUATION, 0, 1, b"\x40\x01a\x7f\x81\x7f" + b"x" * 256) * 20)


def nonsense(flexod: Flexod, stack: ExitStack) -> None:
    for number in range(100):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", flexod.port)))
        connection.sendall(bytes((number * 7 + each) % 256 for each in range(3000)))


ATTACKS: dict[str, Attack] = {
    "headers only": headers_only,
    "headers only, of many connections": headers_only_of_many_connections,
    "proven headers only": proven_headers_only,
    "half messages": half_messages,
    "slow reads": slow_reads,
    "silent connections": silent_connections,
    "pings": frames(PING, bytes(8)),
    "settings": frames(SETTINGS, b"\x00\x04\x00\x00\xff\xff"),
    "resets of no stream": frames(RST, bytes(4)),
    "opened and reset": opened_and_reset,
    "oversized headers": oversized_headers,
    "headers without end": headers_without_end,
    "nonsense": nonsense,
}


@pytest.mark.parametrize("active", [True, False], ids=["active", "standing by"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_honest_callers_are_served_while_somebody_attacks(tmp_path: Path, attack: str, active: bool) -> None:
    with running(tmp_path, active=active) as flexod, ExitStack() as stack:
        flexod.honest()
        for _ in range(2):
            with suppress(OSError):  # hung up on in the middle of it
                ATTACKS[attack](flexod, stack)
            for _ in range(3):
                flexod.honest()


def test_a_call_without_a_credential_ends_at_its_headers(flexod: Flexod) -> None:
    with flexod.dial() as connection:
        stream = connection.call(STATUS)
        connection.flush()
        assert connection.outcome(stream, BOUND_S).status == UNAUTHENTICATED


def test_a_proven_call_whose_message_does_not_come_ends_and_says_so(flexod: Flexod) -> None:
    with flexod.dial() as connection:
        silent = connection.call(STATUS, [flexod.proof(STATUS, BOB)])
        half = connection.call(STATUS, [flexod.proof(STATUS, BOB)])
        connection.say(half, bytes(100), part=0.5)
        connection.flush()
        for stream in (silent, half):
            seen = connection.outcome(stream, BOUND_S)
            assert seen.status == DEADLINE_EXCEEDED
            assert "message" in seen.headers["grpc-message"]


def test_one_user_has_so_many_open_reads_and_is_told_which_limit_that_is(flexod: Flexod) -> None:
    with flexod.dial() as connection:
        streams = [connection.call(STATUS, [flexod.proof(STATUS, BOB)]) for _ in range(BUDGETS.reads + 5)]
        connection.flush()
        ended = [connection.outcome(stream, BOUND_S) for stream in streams[BUDGETS.reads :]]
        assert {seen.status for seen in ended} == {EXHAUSTED}
        assert f"uid {BOB}" in ended[0].headers["grpc-message"]
        assert str(BUDGETS.reads) in ended[0].headers["grpc-message"]
        flexod.honest()


@pytest.mark.thorough
def test_who_does_not_read_its_answers_loses_the_connection(flexod: Flexod) -> None:
    request = admin_pb2.ListEventsRequest(limit=1000).SerializeToString()
    with flexod.dial(window=1, generous=False) as connection:
        connection.say(connection.call(EVENTS, [flexod.proof(EVENTS, BOB)]), request)
        connection.flush()
        connection.read(BOUND_S)
        assert connection.closed


@pytest.mark.thorough
def test_who_opens_more_streams_than_allowed_gets_no_more(flexod: Flexod) -> None:
    with heedless(flexod.dial()) as connection:
        assert connection.most_streams is not None
        streams = [connection.call(ATTACH, [flexod.proof(ATTACH, BOB)]) for _ in range(200)]
        connection.flush()
        connection.read(2.0, until=lambda: connection.closed)
        refused = sum(connection.streams[stream].reset is not None for stream in streams)
        assert connection.closed or refused >= 200 - BUDGETS.streams_of_a_connection


@pytest.mark.parametrize("method", [STATUS, "/flexo.v1.AdminService/GetNothing", "/x.Y/Z"])
def test_a_connection_of_calls_without_credentials_is_closed(flexod: Flexod, method: str) -> None:
    with flexod.dial() as connection:
        deadline = time.monotonic() + BOUND_S
        while not connection.closed and time.monotonic() < deadline:
            streams = [connection.call(method) for _ in range(50)]
            connection.flush()
            connection.outcome(streams[-1], 5.0)
        assert connection.closed


def test_a_method_that_there_is_not_is_named_so_to_who_proves_who_calls(flexod: Flexod) -> None:
    method = "/flexo.v1.AdminService/GetNothing"
    with flexod.dial() as connection:
        streams = [connection.call(method, more) for more in ([], [flexod.proof(method, BOB)])]
        connection.flush()
        ends = [connection.outcome(stream, BOUND_S).status for stream in streams]
        assert ends == [UNAUTHENTICATED, UNIMPLEMENTED]


def test_silent_connections_of_one_host_are_closed_but_for_so_many(flexod: Flexod) -> None:
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", flexod.port))) for _ in range(200)
        ]
        deadline = time.monotonic() + BOUND_S

        def kept() -> int:
            return sum(_is_open(each) for each in opened)

        while kept() > 2 * BUDGETS.silent_connections_of_a_host and time.monotonic() < deadline:
            time.sleep(0.2)
        assert kept() <= 2 * BUDGETS.silent_connections_of_a_host
        flexod.honest()


def test_a_user_who_proves_himself_on_many_connections_keeps_some_of_them(flexod: Flexod) -> None:
    with ExitStack() as stack:
        opened = []
        for _ in range(2 * BUDGETS.connections):
            connection = stack.enter_context(flexod.dial())
            connection.say(connection.call(STATUS, [flexod.proof(STATUS, BOB)]), b"")
            connection.flush()
            opened.append(connection)
        deadline = time.monotonic() + BOUND_S

        def kept() -> int:
            for connection in opened:
                with suppress(OSError):
                    connection.read(0.001)
            return sum(not connection.closed for connection in opened)

        while kept() > BUDGETS.connections and time.monotonic() < deadline:
            time.sleep(0.2)
        assert 0 < kept() <= BUDGETS.connections
        flexod.honest()


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while data := connection.recv(4096):
            pass
        return data != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
