"""What the service's tests share: a server in the test's own loop, with doubles where a process ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest
from flat_records import make_job, make_node
from loop_in_thread import LoopThread

from flexo.availability.leadership_guard import ALONE, LeadershipGuard
from flexo.clusters.base import ClusterState
from flexo.model.queue import ElasticRequest, JobState, Principal, QueuedJob, WaitReason
from flexo.model.ranges import Range
from flexo.service.admin_service import AdminService
from flexo.service.authentication import Authentication
from flexo.service.budgets import STANDARD, Budgets
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.server import MAX_MESSAGE_BYTES
from flexo_protos.credentials import METADATA_KEY, Caller, NotAuthentic
from flexo_protos.v1 import admin_pb2_grpc, jobs_pb2, jobs_pb2_grpc

ATTACH = "/flexo.v1.JobService/Attach"
QUICK = ServiceTimeouts(report_interval_s=5, hello_within_s=5, observed_within_s=1)


class PlainAuthenticator:
    """MUNGE's place: a credential is "uid method", believed once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def credential(self, method: str) -> str:
        raise NotImplementedError

    def verify(self, credential: str, method: str) -> Caller:
        uid, _, named = credential.partition(" ")
        if named.partition("#")[0] != method or not uid.isdigit():
            raise NotAuthentic(f"the credential was not made for {method}")
        if credential in self._seen:
            raise NotAuthentic("replayed")
        self._seen.add(credential)
        return Caller(int(uid), int(uid))


@dataclass
class Observed:
    """The controller's last look at the cluster."""

    observation: ClusterState | None = None


STRANGER = 61_001
"""The uid of somebody without a name, and without a job."""


class Client:
    """Calls the service as any user."""

    def __init__(self, port: int) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self._calls = 0

    def call(self, method: str, request: object, uid: int = STRANGER) -> object:
        self._calls += 1
        credential = f"{uid} /flexo.v1.AdminService/{method}#{self._calls}"
        return getattr(self._stub, method)(request, metadata=((METADATA_KEY, credential),), timeout=60)

    def stream(self, method: str, request: object, uid: int = STRANGER) -> list[object]:
        self._calls += 1
        credential = f"{uid} /flexo.v1.AdminService/{method}#{self._calls}"
        return list(getattr(self._stub, method)(request, metadata=((METADATA_KEY, credential),), timeout=60))

    def refused(self, method: str, request: object, uid: int = STRANGER) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            (self.stream if method == "ProfileJob" else self.call)(method, request, uid)
        return caught.value.code(), caught.value.details()


@contextlib.contextmanager
def served_admin(service: AdminService, budgets: Budgets = STANDARD) -> Iterator[Client]:
    """A client of `service`, which a server in another thread serves."""

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[Authentication(PlainAuthenticator(), budgets)])
        admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    with LoopThread() as loop:
        server, port = loop.do(start())
        yield Client(port)
        loop.do(server.stop(None))


ANN = Principal("1000")


def slurm_job(job_id: int = 7, owner: Principal = ANN, **changes: object) -> QueuedJob:
    said: dict[str, object] = {
        "job_id": job_id, "owner": owner, "user": "ann", "partitions": ("train",),
        "state": JobState.RUNNING, "wait": WaitReason.NONE, "reason": "None", "priority": 1,
        "submitted_at": 0.0, "started_at": 0.0, "time_limit_s": None,
        "nodes": ("n1",), "num_nodes": 1, "cpus": 2, "gpus": 2, "memory_mib": 0,
        "elastic": ElasticRequest(Range(2, 8)),
    }  # fmt: skip
    return make_job(**{**said, **changes})  # type: ignore[arg-type]


def cluster(*jobs: QueuedJob, at: float | None = None) -> ClusterState:
    nodes = tuple(make_node(name, 4, 0, 8, 0, 1000, 0, frozenset({"train"})) for name in ("n1", "n2", "n3"))
    return ClusterState(time.time() if at is None else at, nodes, (), jobs, 0.01)


def hello(job_id: int = 7, **changes: object) -> jobs_pb2.FromLeader:
    said: dict[str, object] = {
        "job_id": job_id,
        "workers": jobs_pb2.WorkerRange(min=2, max=8),
        "shape": jobs_pb2.WorkerShape(gpus=1, cpus=1),
        "base_nodes": ["n1"],
        "report": jobs_pb2.Report(workers=2),
    }
    return jobs_pb2.FromLeader(hello=jobs_pb2.Hello(**{**said, **changes}))


@dataclass
class House:
    """A running JobService with what stands around it."""

    registry: LeaderRegistry
    observed: Observed
    service: JobService
    stub: jobs_pb2_grpc.JobServiceAsyncStub
    _calls: int = field(default=0)

    def dial(self, uid: int = 1000, credential: str | None = None) -> grpc.aio.StreamStreamCall:
        """A leader's stream, opened by `uid`."""
        self._calls += 1
        made = f"{uid} {ATTACH}#{self._calls}" if credential is None else credential
        return self.stub.Attach(metadata=((METADATA_KEY, made),))


@contextlib.asynccontextmanager
async def house(
    *jobs: QueuedJob,
    timeouts: ServiceTimeouts = QUICK,
    leadership: LeadershipGuard = ALONE,
    budgets: Budgets = STANDARD,
) -> AsyncIterator[House]:
    """A JobService over a cluster in which `jobs` run."""
    registry, observed = LeaderRegistry(), Observed(cluster(*jobs))
    service = JobService(registry, observed, timeouts, leadership, budgets)
    server = grpc.aio.server(
        interceptors=[Authentication(PlainAuthenticator(), budgets)],
        options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)],
    )
    jobs_pb2_grpc.add_JobServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield House(registry, observed, service, jobs_pb2_grpc.JobServiceStub(channel))
    finally:
        await server.stop(None)


async def end_of(call: grpc.aio.StreamStreamCall) -> tuple[grpc.StatusCode, str]:
    """How a stream ends, whatever it says before."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()
