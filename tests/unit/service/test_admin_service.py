"""Who may read and who may scale, and how the controller's answers reach the wire."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from loop_in_thread import LoopThread
from service_doubles import PlainAuthenticator

from flexo.controller import BadScale, ControllerStatus, JobView, UnknownJob
from flexo.journal import Event
from flexo.model import ElasticJob, Grant, JobKey, Range, SatelliteState, WorkerShape
from flexo.service.admin_service import AdminService
from flexo.service.authentication import Authentication
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import admin_pb2 as pb
from flexo_protos.v1 import admin_pb2_grpc

OWNER, STRANGER, ADMINISTRATOR = 61_000, 61_001, pwd.getpwnam("games").pw_uid


class Answers:
    """The controller's and the journal's place: one running job, 7, and one that has ended, 6."""

    def __init__(self) -> None:
        self.scaled: list[tuple[JobKey, int | None]] = []

    def status(self) -> ControllerStatus:
        return ControllerStatus(
            1.0, "lab", "22.05.8", "greedy", True, 5.0, 2.0, 0.1, "slow", 4, 16, 3, 5, 2, 1
        )

    def jobs(self) -> tuple[JobView, ...]:
        grant = Grant("g1", JobKey(7, 1), "n2", 3, "flex", 9.0, SatelliteState.WARMING, 8)
        job = ElasticJob(
            JobKey(7, 1), "ann", Range(2, 8), WorkerShape(2, 1), ("n1",), 2, (grant,), 4, True, wanted=6
        )
        return (JobView(job, OWNER, True, 99),)

    def explain(self, job_id: int) -> tuple[str, ...]:
        if job_id != 7:
            raise UnknownJob(f"no elastic job {job_id} runs")
        return ("all idle GPUs are taken",)

    def scale(self, key: JobKey, workers: int | None) -> str:
        if workers == 99:
            raise BadScale("job 7 takes 2-8 workers")
        self.scaled.append((key, workers))
        return "so be it"

    def events(self, job_id: int | None, limit: int) -> tuple[Event, ...]:
        return (Event(5.0, "grow", JobKey(6), "3 workers"),) if job_id == 6 else ()


class Client:
    """Calls the service as any user."""

    def __init__(self, port: int) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self._calls = 0

    def call(self, method: str, request: object, uid: int = STRANGER) -> object:
        self._calls += 1
        credential = f"{uid} /flexo.v1.AdminService/{method}#{self._calls}"
        return getattr(self._stub, method)(request, metadata=((METADATA_KEY, credential),), timeout=5)

    def refused(self, method: str, request: object, uid: int = STRANGER) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, request, uid)
        return caught.value.code(), caught.value.details()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def client(answers: Answers) -> Iterator[Client]:
    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[Authentication(PlainAuthenticator())])
        service = AdminService(answers, answers, ("games",))  # type: ignore[arg-type]
        admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    with LoopThread() as loop:
        server, port = loop.do(start())
        yield Client(port)
        loop.do(server.stop(None))


def test_anybody_authenticated_may_read_status(client: Client) -> None:
    reply = client.call("GetStatus", pb.GetStatusRequest())
    assert (reply.cluster, reply.gpus_idle, reply.trouble, reply.dry_run) == ("lab", 3, "slow", True)


def test_jobs_carry_their_grants_and_cap(client: Client) -> None:
    (job,) = client.call("ListJobs", pb.ListJobsRequest()).jobs
    assert (job.job_id, job.restart_count, job.user, job.workers, job.granted) == (7, 1, "ann", 4, 5)
    assert (job.wanted, job.gpus_per_worker, job.batches_committed, job.attached) == (6, 2, 99, True)
    assert (job.grants[0].state, job.grants[0].slurm_job_id) == ("warming", 8)


def test_nobody_reads_without_a_credential(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client._stub.GetStatus(pb.GetStatusRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("uid", [OWNER, 0, os.getuid(), ADMINISTRATOR])
def test_owner_root_flexods_account_and_administrators_may_scale(
    client: Client, answers: Answers, uid: int
) -> None:
    reply = client.call("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4), uid)
    assert reply.text == "so be it"
    assert answers.scaled == [(JobKey(7, 1), 4)]


def test_zero_workers_mean_automatic(client: Client, answers: Answers) -> None:
    client.call("ScaleJob", pb.ScaleJobRequest(job_id=7), OWNER)
    assert answers.scaled == [(JobKey(7, 1), None)]


def test_a_stranger_may_not_scale_and_is_told_who_may(
    client: Client, answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4), STRANGER)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert all(name in text for name in ("ann", "root", "games", str(STRANGER)))
    assert answers.scaled == []
    assert "scaling denied" in capsys.readouterr().out


def test_scaling_a_job_that_is_not_there_is_not_found(client: Client) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=8), 0)
    assert code is grpc.StatusCode.NOT_FOUND
    assert "8" in text


def test_scaling_out_of_the_range_is_refused_with_the_range(client: Client) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=99), 0)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "2-8" in text


def test_a_running_job_is_explained(client: Client) -> None:
    assert list(client.call("ExplainJob", pb.ExplainJobRequest(job_id=7)).sentences) == [
        "all idle GPUs are taken"
    ]


def test_a_job_that_has_ended_still_has_its_events(client: Client) -> None:
    reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=6))
    assert (reply.events[0].kind, reply.events[0].text) == ("grow", "3 workers")
    assert list(reply.sentences) == ["no elastic job 6 runs"]


def test_a_job_that_never_was_is_not_found(client: Client) -> None:
    code, _ = client.refused("ExplainJob", pb.ExplainJobRequest(job_id=5))
    assert code is grpc.StatusCode.NOT_FOUND
