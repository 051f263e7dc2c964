"""Who may speak with a job's ApplicationMaster, and whom a leader believes to be it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from flexo_protos.credentials import METADATA_KEY
from flexo_protos.hadoop import yarn_pb2 as hadoop
from flexo_protos.job_secret import JobSecret
from flexo_protos.resources import Resources
from flexo_protos.v1 import yarn_pb2 as pb
from flexo_protos.v1 import yarn_pb2_grpc as rpc
from horovod_elastic.job_plan import BaseJob, JobPlan
from horovod_elastic.platforms.base import Found, Refused, Site
from horovod_elastic.platforms.yarn.job_control import YarnJobControl
from horovod_elastic.platforms.yarn.master_control import Announcements
from horovod_elastic.platforms.yarn.master_service import SERVICE, MasterService
from horovod_elastic.proofs import callers_proof, servers_proof
from horovod_elastic.streams import listen_on

SECRET, OTHER = bytes(range(32)), bytes(32)
METHODS = ("Submit", "Find", "GetStatus", "Cancel", "TerminateBase", "GetBaseState", "AttachLeader")
BOUND_S = 20.0
FLEX = pb.FlexApplication(application="application_1700000000000_0008", token=b"a token", ends_at=1.0)


def plan() -> JobPlan:
    base = BaseJob(
        job_id="7",
        restart_count=0,
        nodes=(),
        shape=Resources(1.0, 64.0, 1.0),
        minimum=1,
        maximum=4,
        account="q",
    )
    site = Site(binds_cpus=False, signals_reach_all=False, controller="rm")
    return JobPlan(base, site, output="", daemon="flexod:1", leases="flexod://flexod:1")


class Manager:
    """A ResourceManager that says where the ApplicationMaster listens."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")

    def application(self, _: hadoop.ApplicationId) -> hadoop.ApplicationReport:
        return hadoop.ApplicationReport(host=self._host, rpc_port=int(self._port), state=hadoop.RUNNING)

    def close(self) -> None: ...


class Control:
    """What an ApplicationMaster has done for its leader."""

    def __init__(self) -> None:
        self.announcements = Announcements()
        self.asked: list[str] = []

    def find(self) -> list[Found]:
        self.asked.append("find")
        return [Found("9", "g00000001", "h1", 2, runs=True)]

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *_: self.asked.append(name)


def leader(address: str, secret: bytes = SECRET) -> YarnJobControl:
    return YarnJobControl(plan(), JobSecret(secret), lambda: Manager(address))  # type: ignore[arg-type,return-value]


@pytest.fixture
def master() -> Iterator[tuple[MasterService, Control]]:
    service, control = MasterService("127.0.0.1", JobSecret(SECRET)), Control()
    service.control = control  # type: ignore[assignment]
    yield service, control
    service.close()


def test_a_leader_and_its_application_master_understand_each_other(
    master: tuple[MasterService, Control],
) -> None:
    service, control = master
    control.announcements.preemption("9", "YARN takes it")
    leads = leader(service.endpoint)
    assert leads.find() == [Found("9", "g00000001", "h1", 2, runs=True)]
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    leads.on_preemption(lambda satellite, why: told.put((satellite, why)))
    assert told.get(timeout=BOUND_S) == ("9", "YARN takes it")
    assert service.hellos.get(timeout=BOUND_S).plan == plan().to_text()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("proof", ["none", "another secret", "another address", "the server's own"])
def test_nobody_without_the_jobs_secret_has_an_application_master_do_anything(
    master: tuple[MasterService, Control], method: str, proof: str
) -> None:
    service, control = master
    metadata = {
        "none": "",
        "another secret": JobSecret(OTHER).credential(callers_proof(SERVICE + method, service.endpoint)),
        "another address": JobSecret(SECRET).credential(callers_proof(SERVICE + method, "10.0.0.1:1")),
        "the server's own": JobSecret(SECRET).credential(servers_proof(SERVICE + method, service.endpoint)),
    }[proof]
    with grpc.insecure_channel(service.endpoint) as channel:
        call = channel.stream_stream(SERVICE + method)(
            iter([b""]), metadata=((METADATA_KEY, metadata),), timeout=BOUND_S
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert control.asked == []
    assert service.hellos.empty()


class Impostor(rpc.ApplicationMasterServiceServicer):
    """Listens where an ApplicationMaster was, and takes down what a leader says."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer
        self.heard: list[pb.LeaderHello] = []
        self.asked = threading.Event()

    def Find(  # noqa: N802
        self, request: pb.FindSatellitesRequest, context: grpc.ServicerContext
    ) -> pb.FindSatellitesResponse:
        self._pretend("Find", context)
        return pb.FindSatellitesResponse()

    def AttachLeader(  # noqa: N802
        self, request_iterator: Iterator[pb.LeaderHello], context: grpc.ServicerContext
    ) -> Iterator[pb.FromMaster]:
        self._pretend("AttachLeader", context)
        yield pb.FromMaster(state=pb.MasterState())
        self.asked.set()
        self.heard.extend(request_iterator)

    def _pretend(self, method: str, context: grpc.ServicerContext) -> None:
        answer = self._answer(SERVICE + method)
        context.send_initial_metadata(((METADATA_KEY, answer),) if answer else ())


@pytest.mark.parametrize("proof", ["none", "another secret", "the caller's own"])
def test_a_leader_tells_nobody_its_token_who_does_not_prove_to_be_its_jobs_application_master(
    proof: str,
) -> None:
    def answer(method: str) -> str:
        if proof == "none":
            return ""
        of_server = proof == "another secret"
        purpose = (servers_proof if of_server else callers_proof)(method, address)
        return JobSecret(OTHER if of_server else SECRET).credential(purpose)

    impostor = Impostor(answer)
    server, address = listen_on("127.0.0.1")
    rpc.add_ApplicationMasterServiceServicer_to_server(impostor, server)
    server.start()
    leads = leader(address)
    leads._state = pb.MasterState(flex=FLEX)
    with pytest.raises(Refused):
        leads.find()
    noticed: list[str] = []
    leads.on_preemption(lambda satellite, _: noticed.append(satellite))
    assert impostor.asked.wait(BOUND_S)
    time.sleep(0.3)
    server.stop(None).wait()
    assert impostor.heard == []
    assert noticed == []
    assert leads._state.flex == FLEX
