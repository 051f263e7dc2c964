"""What a job's own servers answer to others: other users of the same network and node, and nonsense.

Every one of them listens where anybody can connect. The users are numbers here; that MUNGE proves them is
shown on a real cluster, and what rank 0 answers in test_core_lines.py.
"""

from __future__ import annotations

import os
import queue
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from protobuf_strategies import messages
from thorough import examples
from trusting import Trusting

from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import leases_pb2, workers_pb2, workers_pb2_grpc
from horovod_elastic.agent import supervisor
from horovod_elastic.agent.leader_link import LeaderLink
from horovod_elastic.agent.local_service import LocalService, WorkerOutbox
from horovod_elastic.agent.parked_link import ParkedLink
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.leader.leader_service import LeaderPort
from horovod_elastic.proofs import callers_proof, servers_proof
from horovod_elastic.rendezvous import Rendezvous
from horovod_elastic.streams import listen_on
from horovod_elastic.wire import SECRET_KEY, server_options

BOUND_S = 20.0
ATTACH_AGENT = "/flexo.v1.LeaderService/AttachAgent"
ATTACH_WORKER = "/flexo.v1.AgentService/AttachWorker"
LOOK = "/flexo.v1.LeaseService/Look"
SECRET = "s3cret"
CHOSEN = frozenset(grpc.StatusCode) - {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


@dataclass
class Overheard:
    """The leader's or the agent's place: what their servers let through to them."""

    posted: list[object] = field(default_factory=list)

    def post(self, event: Callable[[], None]) -> None:
        event()

    def agent_attached(self, name: str, hello: Message, outbox: queue.SimpleQueue[object]) -> None:
        self.posted.append(hello)

    def agent_said(self, name: str, outbox: object, message: Message) -> None:
        self.posted.append(message)

    def agent_detached(self, name: str, outbox: object) -> None:
        """No word of the agent's."""

    def worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        self.posted.append(worker_id)

    def worker_said(self, worker_id: str, message: Message) -> None:
        self.posted.append(message)

    def worker_detached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """No word of the worker's."""


def ends_with(
    address: str, method: str, metadata: list[tuple[str, str]], said: list[bytes]
) -> grpc.StatusCode:
    """How a stream ends that says these, and then no more."""
    with grpc.insecure_channel(address) as channel:
        try:
            for _ in channel.stream_stream(method)(iter(said), metadata=metadata, timeout=BOUND_S):
                pass
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def leader() -> Iterator[tuple[LeaderPort, Overheard]]:
    port, heard = LeaderPort("127.0.0.1", Trusting()), Overheard()
    port.start_serving(heard)  # type: ignore[arg-type]
    yield port, heard
    port.close()


@settings(max_examples=examples(40))
@given(
    said=st.lists(st.one_of(messages(workers_pb2.FromAgent.DESCRIPTOR), st.binary(max_size=50)), max_size=4),
    uid=st.one_of(st.none(), st.integers(1, 70_000).filter(lambda uid: uid != os.getuid())),
)
def test_no_other_user_says_a_word_to_a_leader(
    leader: tuple[LeaderPort, Overheard], said: list[Message | bytes], uid: int | None
) -> None:
    port, heard = leader
    metadata = [] if uid is None else [(METADATA_KEY, f"{uid} {callers_proof(ATTACH_AGENT, port.endpoint)}")]
    data = [each if isinstance(each, bytes) else each.SerializeToString() for each in said]
    assert ends_with(port.endpoint, ATTACH_AGENT, metadata, data) in REFUSALS
    assert heard.posted == []


def test_who_only_connects_to_a_leader_cannot_take_all_of_its_files() -> None:
    (most,) = (value for name, value in server_options() if name == "grpc.max_allowed_incoming_connections")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < most < files
    options = dict(server_options()) | {"grpc.max_allowed_incoming_connections": 5}
    server = grpc.server(ThreadPoolExecutor(1), options=tuple(options.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    kept = sum(_says_something(connection) for connection in connections)
    for connection in connections:
        connection.close()
    server.stop(None)
    assert 0 < kept <= 5


def _says_something(connection: socket.socket) -> bool:
    """A server that keeps a connection begins with its settings."""
    connection.settimeout(0.5)
    try:
        return connection.recv(1) != b""
    except OSError:
        return False


def test_a_credential_that_was_made_for_another_leader_is_of_no_use_at_this_one(
    leader: tuple[LeaderPort, Overheard],
) -> None:
    port, heard = leader
    for purpose in (
        callers_proof(ATTACH_AGENT, "10.0.0.1:7000"),
        servers_proof(ATTACH_AGENT, port.endpoint),
        LOOK,
        "",
    ):
        metadata = [(METADATA_KEY, f"{os.getuid()} {purpose}")]
        code = ends_with(port.endpoint, ATTACH_AGENT, metadata, [])
        assert code is grpc.StatusCode.UNAUTHENTICATED
    assert heard.posted == []


@pytest.mark.parametrize("proof", ["another user", "another address", "none"])
def test_an_agent_obeys_no_leader_of_another_user(proof: str) -> None:
    class Impostor(workers_pb2_grpc.LeaderServiceServicer):
        def AttachAgent(  # noqa: N802
            self, request_iterator: object, context: grpc.ServicerContext
        ) -> Iterator[workers_pb2.ToAgent]:
            uid = os.getuid() + (proof == "another user")
            purpose = servers_proof(ATTACH_AGENT, "10.0.0.1:1" if proof == "another address" else address)
            if proof != "none":
                context.send_initial_metadata(((METADATA_KEY, f"{uid} {purpose}"),))
            yield workers_pb2.ToAgent(start_worker=workers_pb2.StartWorker(worker_id="w"))
            time.sleep(0.2)

    server, address = listen_on("127.0.0.1")
    workers_pb2_grpc.add_LeaderServiceServicer_to_server(Impostor(), server)
    server.start()
    heard: list[object] = []
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    hello = workers_pb2.AgentHello(node="n1", slots=1)
    LeaderLink(address, hello, lambda _, word: heard.append(word), lambda _, why: ended.put(why), Trusting())
    why = ended.get(timeout=BOUND_S)
    server.stop(None)
    assert heard == []
    assert any(words in why for words in ("another user's", "was not made for", "does not prove")), why


@settings(max_examples=examples(40))
@given(said=st.lists(messages(workers_pb2.FromAgent.DESCRIPTOR), max_size=4))
def test_an_agent_may_say_anything_and_its_stream_ends_in_order(
    leader: tuple[LeaderPort, Overheard], said: list[Message]
) -> None:
    port, heard = leader
    metadata = [(METADATA_KEY, f"{os.getuid()} {callers_proof(ATTACH_AGENT, port.endpoint)}")]
    data = [each.SerializeToString() for each in said]
    assert ends_with(port.endpoint, ATTACH_AGENT, metadata, data) in CHOSEN
    heard.posted.clear()


@settings(max_examples=examples(40))
@given(
    said=st.lists(messages(workers_pb2.FromWorker.DESCRIPTOR), max_size=4),
    secret=st.one_of(st.none(), st.text("abc0", max_size=8), st.just(SECRET.upper())),
)
def test_only_who_knows_the_nodes_secret_speaks_with_its_agent(
    tmp_path_factory: pytest.TempPathFactory, said: list[Message], secret: str | None
) -> None:
    host, endpoint = Overheard(), f"unix:{tmp_path_factory.mktemp('agent')}/socket"
    service = LocalService(host, endpoint, SECRET, ParkedLink(Trusting(), lambda: ""))
    data = [each.SerializeToString() for each in said]
    with closing(service):
        metadata = [] if secret is None else [(SECRET_KEY, secret)]
        assert ends_with(endpoint, ATTACH_WORKER, metadata, data) is grpc.StatusCode.UNAUTHENTICATED
        assert host.posted == []
        assert ends_with(endpoint, ATTACH_WORKER, [(SECRET_KEY, SECRET)], data) in CHOSEN


def test_the_lease_that_a_job_keeps_itself_is_its_own_users() -> None:
    request = leases_pb2.LookRequest(job=leases_pb2.JobKey(job_id=7)).SerializeToString()
    with LeaseServer("127.0.0.1", Trusting()) as server, grpc.insecure_channel(server.endpoint) as channel:
        look = channel.unary_unary(LOOK)
        for metadata, code in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            (((METADATA_KEY, f"{os.getuid() + 1} {LOOK}"),), grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                look(request, metadata=metadata, timeout=BOUND_S)
            assert caught.value.code() is code
        assert look(request, metadata=((METADATA_KEY, f"{os.getuid()} {LOOK}"),), timeout=BOUND_S) is not None


@contextmanager
def a_supervisor() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that is one, until its input ends, and where its agents listen."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import supervisor\n"
        "k = supervisor.Supervisor([sys.executable, '-c', 'pass'])\n"
        "print(k._endpoint, flush=True); sys.stdin.read(); k.run()\n"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(Path(supervisor.__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().decode().strip().removeprefix("unix:"))


@pytest.mark.processes
def test_a_nodes_agent_listens_where_no_other_user_can_enter_or_take_its_place() -> None:
    with a_supervisor() as (process, path):
        found = path.parent.stat()
        process.communicate()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == os.getuid()
    assert len(str(path)) < 108
    assert not path.parent.exists(), "it goes with its supervisor"


@pytest.mark.processes
def test_what_a_killed_supervisor_has_left_the_next_one_removes_and_nothing_of_a_living_one() -> None:
    with a_supervisor() as (living, path):
        with a_supervisor() as (killed, left):
            left.touch()
            killed.kill()
        assert left.exists()
        with a_supervisor() as (last, _):
            assert not left.parent.exists()
            assert path.parent.exists()
            last.communicate()
        living.communicate()


def test_the_rendezvous_does_not_listen_to_what_strangers_have_to_say() -> None:
    with (
        closing(Rendezvous("127.0.0.1", {"n1:0": "0,1,0,1,0,1"}, secret="abc")) as rendezvous,
        socket.create_connection(("127.0.0.1", rendezvous.port)) as stranger,
    ):
        stranger.sendall(b"PUT /guess/global/0 HTTP/1.0\r\nContent-Length: 60000\r\n\r\nonly the beginning")
        began = time.monotonic()
        assert b" 404 " in stranger.recv(1000)
        assert time.monotonic() - began < BOUND_S
