"""Random bytes and random messages to every method of flexod, before a real controller and event store.

Whatever comes: the call ends with a status that somebody has chosen, nothing is raised that nobody expects
(gRPC would answer UNKNOWN and log it), and flexod's own next cycle is in order. FLEXO_FUZZ=100 in the
environment tries a hundred times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from controller_world import ADA, FakeCluster
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_in_thread import LoopThread
from protobuf_strategies import messages
from service_doubles import PlainAuthenticator
from thorough import examples

from flexo.availability.leadership_guard import ALONE
from flexo.config import ControllerSettings, Settings
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.loaning.pushed import PushedDemand
from flexo.model.elastic import FailureReason, GrantFailure
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey
from flexo.service.admin_service import AdminService
from flexo.service.budgets import Budgets
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import MOST_WAITING, LeaderRegistry
from flexo.service.server import FILES_OF_ITS_OWN, ServiceRouter, all_services, listen
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import admin_pb2, inference_pb2, jobs_pb2, leases_pb2

OWNER, STRANGER = ADA, 61_001
JOB_ID = 1
FILES: tuple[FileDescriptor, ...] = (
    admin_pb2.DESCRIPTOR, inference_pb2.DESCRIPTOR, jobs_pb2.DESCRIPTOR, leases_pb2.DESCRIPTOR,
)  # fmt: skip
METHODS = [
    method for file in FILES for service in file.services_by_name.values() for method in service.methods
]
SINGLE = [method for method in METHODS if not method.client_streaming]
ATTACH = next(method for method in METHODS if method.client_streaming)
CHOSEN = frozenset(grpc.StatusCode) - {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
TIMES = int(os.environ.get("FLEXO_FUZZ", "1"))
QUICK = ServiceTimeouts(report_interval_s=5, hello_within_s=2.0, observed_within_s=0.05)
uids = st.sampled_from((OWNER, STRANGER, 0))


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


@dataclass
class Flexod:
    """A running one, and a caller that says whatever bytes it likes."""

    controller: Controller
    cluster: FakeCluster
    channel: grpc.Channel
    logged: list[logging.LogRecord] = field(default_factory=list)
    _calls: int = 0

    def single(self, method: MethodDescriptor, request: bytes, uid: int | None) -> grpc.StatusCode:
        """How a call with one request ends. Without `uid` it carries no credential."""
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        patience_s = 0.3 if method.server_streaming else 20.0
        return self._end_of(lambda **more: kind(path_of(method))(request, **more), method, uid, patience_s)

    def stream(self, requests: Sequence[bytes], uid: int | None) -> grpc.StatusCode:
        """How a leader's stream ends that says these, and then no more."""
        attach = self.channel.stream_stream(path_of(ATTACH))
        return self._end_of(lambda **more: attach(iter(requests), **more), ATTACH, uid, 20.0)

    def _end_of(
        self, call: Any, method: MethodDescriptor, uid: int | None, timeout: float
    ) -> grpc.StatusCode:
        self._calls += 1
        credential = f"{uid} {path_of(method)}#{self._calls}"
        metadata = () if uid is None else ((METADATA_KEY, credential),)
        try:
            answer = call(metadata=metadata, timeout=timeout)
            if not isinstance(answer, bytes):
                for _ in answer:
                    pass
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def go_on(self) -> None:
        """Its own next cycle is in order, whatever was said."""
        self.cluster.now += 2.0
        self.controller.cycle()
        assert self.controller.status().trouble == ""
        said = [record.getMessage() for record in self.logged]
        errors = [text for text in said if text.startswith("Unexpected [")]
        self.logged.clear()
        assert not errors


class _Noting(logging.Handler):
    """gRPC logs what a servicer raises."""

    def __init__(self, into: list[logging.LogRecord]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record)


@pytest.fixture(scope="module")
def flexod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flexod]:
    cluster, registry = FakeCluster(), LeaderRegistry()
    cluster.base(JOB_ID, "1-8")
    event_store = EventStore(tmp_path_factory.mktemp("flexod") / "journal.sqlite", 30)
    controller = Controller(
        Settings(controller=ControllerSettings(min_resize_interval_s=0.0)),
        cluster,
        registry,
        event_store,
        clock=cluster.clock,
    )
    controller.cycle()

    async def start() -> tuple[grpc.aio.Server, JobService, InferenceService, int]:
        # one connection of one caller makes all calls here, and waits for none of them
        budgets = Budgets(
            refusals_of_a_connection=1 << 20,
            misbehaved_burst=1 << 20,
            attached_burst=1 << 20,
            steering_burst=1 << 20,
            job_steering_burst=1 << 20,
        )
        jobs = JobService(registry, controller, QUICK, budgets=budgets)
        admin = AdminService(controller, event_store, registry, (), budgets=budgets)
        pushed = PushedDemand("infer", stale_s=120.0)
        inference = InferenceService(pushed, frozenset(), registry.wake.set, budgets=budgets)
        port = _free_port()
        router = ServiceRouter()
        router.activate(all_services(jobs, admin, inference), ALONE)
        server = await listen(f"127.0.0.1:{port}", PlainAuthenticator(), router, budgets=budgets)
        return server, jobs, inference, port

    with LoopThread() as loop, contextlib.ExitStack() as stack:
        server, jobs, inference, port = loop.do(start())
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
        running = Flexod(controller, cluster, channel)
        handler = _Noting(running.logged)
        logging.getLogger("grpc").addHandler(handler)
        try:
            yield running
        finally:
            logging.getLogger("grpc").removeHandler(handler)
            loop.do(_stop(server, jobs, inference))


async def _stop(server: grpc.aio.Server, jobs: JobService, inference: InferenceService) -> None:
    jobs.close()
    inference.close()
    await asyncio.wait_for(server.stop(None), 30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def hello() -> Message:
    """A proper one, of the job that there is."""
    return jobs_pb2.FromLeader(
        hello=jobs_pb2.Hello(
            job_id=JOB_ID,
            workers=jobs_pb2.WorkerRange(min=1, max=8),
            shape=jobs_pb2.WorkerShape(gpus=1, cpus=1),
            base_nodes=["t1"],
        )
    )


@st.composite
def damaged(draw: st.DrawFn, method: MethodDescriptor) -> bytes:
    """A message of the method's own type with some bytes changed, cut off or added; or no message at all."""
    data = bytearray(draw(messages(method.input_type)).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(data)


@settings(max_examples=examples(200 * TIMES))
@given(data=st.data(), uid=st.one_of(st.none(), uids))
def test_any_bytes_to_any_method_end_with_a_status_that_somebody_chose(
    flexod: Flexod, data: st.DataObject, uid: int | None
) -> None:
    method = data.draw(st.sampled_from(SINGLE).filter(lambda method: not method.server_streaming))
    request = data.draw(st.one_of(st.binary(max_size=200), damaged(method)))
    code = flexod.single(method, request, uid)
    assert code in CHOSEN
    assert (code is grpc.StatusCode.UNAUTHENTICATED) == (uid is None)
    flexod.go_on()


@settings(max_examples=examples(300 * TIMES))
@given(data=st.data(), uid=uids)
def test_any_message_to_any_method_ends_with_a_status_that_somebody_chose(
    flexod: Flexod, data: st.DataObject, uid: int
) -> None:
    method = data.draw(st.sampled_from(SINGLE).filter(lambda method: not method.server_streaming))
    request = data.draw(messages(method.input_type)).SerializeToString()
    assert flexod.single(method, request, uid) in CHOSEN
    flexod.go_on()


@settings(max_examples=examples(12 * TIMES))
@given(data=st.data(), uid=uids)
def test_so_do_methods_that_answer_for_longer(flexod: Flexod, data: st.DataObject, uid: int) -> None:
    method = data.draw(st.sampled_from([method for method in SINGLE if method.server_streaming]))
    request = data.draw(st.one_of(st.binary(max_size=100), damaged(method)))
    assert flexod.single(method, request, uid) in CHOSEN
    flexod.go_on()


@settings(max_examples=examples(150 * TIMES))
@given(
    greeted=st.booleans(),
    said=st.lists(messages(ATTACH.input_type), max_size=5),
    noise=st.lists(st.binary(max_size=60), max_size=1),
    uid=st.sampled_from((OWNER, OWNER, STRANGER)),
)
def test_a_leader_may_say_anything_and_flexod_goes_on(
    flexod: Flexod, greeted: bool, said: list[Message], noise: list[bytes], uid: int
) -> None:
    requests = [hello()] * greeted + said
    code = flexod.stream([each.SerializeToString() for each in requests] + noise, uid)
    assert code in CHOSEN
    flexod.go_on()


def test_a_message_that_grows_when_it_is_unpacked_is_refused_at_its_limit(flexod: Flexod) -> None:
    request = bytes(64 << 20)  # 64 KiB on the wire
    call = flexod.channel.unary_unary(path_of(SINGLE[0]))
    proof = ((METADATA_KEY, f"{OWNER} {path_of(SINGLE[0])}#unpacked"),)
    for metadata, code in (
        (proof, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ((), grpc.StatusCode.UNAUTHENTICATED),  # before anything is unpacked
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(request, metadata=metadata, compression=grpc.Compression.Gzip, timeout=60)
        assert caught.value.code() is code
    flexod.go_on()


def test_what_one_job_has_waiting_for_the_controller_is_bounded() -> None:
    registry, job, other = LeaderRegistry(), JobKey(1), JobKey(2)
    for number in range(MOST_WAITING + 100):
        registry.give_back(GrantFailure(job, f"g{number}", FailureReason.LOST, ""))
        registry.note_slow_gpu(SlowGpuReport(job, "t1", (number,), 2.0))
    registry.give_back(GrantFailure(other, "g1", FailureReason.LOST, ""))
    assert len(registry.take_failures()) == MOST_WAITING + 1, "and another job's is not lost by it"
    assert len(registry.take_slow_gpus()) == MOST_WAITING
    assert not registry.take_failures()


def test_who_only_connects_cannot_take_all_of_flexods_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (FILES_OF_ITS_OWN + 300, 4096))

    async def crowd(address: tuple[str, int]) -> int:
        """Of how many connections the server keeps, that say nothing."""
        server = await listen(f"127.0.0.1:{address[1]}", PlainAuthenticator(), ServiceRouter())
        connections = [socket.create_connection(address) for _ in range(400)]
        kept = await asyncio.to_thread(lambda: sum(_is_kept(each) for each in connections))
        for each in connections:
            each.close()
        await server.stop(None)
        return kept

    assert 0 < asyncio.run(crowd(("127.0.0.1", _free_port()))) <= 300


def _is_kept(connection: socket.socket) -> bool:
    """The other end says something first if it keeps it, and else closes it: one of both, however late."""
    connection.settimeout(60)
    try:
        return connection.recv(1) != b""
    except ConnectionError:
        return False
