"""flexod's place: an AdminService in the test's own process, and a flexo-web that asks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc

from flexo_cli.connection import Address, Daemon
from flexo_protos.credentials import Caller, NotAuthentic
from flexo_protos.v1 import admin_pb2 as pb
from flexo_protos.v1 import admin_pb2_grpc

NOW = 1_700_000_000.0
UID = 3_999_999
"""An account without a name."""


class SayingWho:
    """The authenticator at the process boundary: ``UID METHOD``, of no worth."""

    def credential(self, method: str) -> str:
        return f"{UID} {method}"

    def verify(self, credential: str, method: str) -> Caller:
        uid, _, said = credential.partition(" ")
        if said != method:
            raise NotAuthentic(f"the credential was not made for {method}")
        return Caller(int(uid), 100)


def job(number: int, user: str = "ada", **changes: object) -> pb.ElasticJob:
    """Trains with 4 of 2-8 workers: 2 in its base, 2 on t2."""
    grant = pb.GrantView(grant_id="g1", node="t2", workers=2, state="training", slurm_job_id=9)
    plain = pb.ElasticJob(
        job_id=number, user=user, min=2, max=8, workers=4, granted=4, gpus_per_worker=1, attached=True,
        scalable=True, base_nodes=["t1"], grants=[grant], progress=0.42, left_s=7300, left_by="history",
    )  # fmt: skip
    plain.MergeFrom(pb.ElasticJob(**changes))
    return plain


def event(
    at: float,
    kind: str,
    text: str,
    node: str = "",
    workers: int = 0,
    begins: bool = False,
    number: int = 0,
    job_id: int = 17,
) -> pb.Event:
    change = pb.GrantChange(node=node, workers=workers, begins=begins) if node else None
    return pb.Event(at=at, kind=kind, text=text, job_id=job_id, grant=change, number=number)


class FlexodDouble(admin_pb2_grpc.AdminServiceServicer):
    """Answers while `present`."""

    def __init__(self) -> None:
        self.present = True
        self.asked: Counter[str] = Counter()
        self.status = pb.GetStatusReply(
            cluster="lab", slurm_version="22.05.8", policy="lyra", nodes=3, gpus=12, gpus_idle=3, interval_s=2
        )
        self.jobs = [job(17)]
        self.waiting: list[pb.WaitingJob] = []
        self.nodes = [pb.NodeView(name=f"t{number}", gpus=4, gpus_allocated=number) for number in (1, 2, 3)]
        self.order: list[int] = []
        self.refusal = ""
        self.before_explaining: Callable[[], object] = lambda: None
        self.loans = pb.ListLoansReply()
        self.events: list[pb.Event] = []
        """Oldest first; each has its number."""
        self.scaled: list[tuple[int, int, int]] = []
        """Job, workers and viewer of each call that scales a job."""
        self.denial: tuple[grpc.StatusCode, str] | None = None
        self.before_scaling: Callable[[], object] = lambda: None
        self.explained = {17: pb.ExplainJobReply(sentences=["no idle GPU is left"])}

    def _heard(self, method: str, context: grpc.ServicerContext) -> None:
        self.asked[method] += 1
        if not self.present:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a while")

    def GetStatus(self, request, context):  # noqa: N802
        self._heard("GetStatus", context)
        return self.status

    def ScaleViewersJob(self, request, context):  # noqa: N802
        self._heard("ScaleViewersJob", context)
        self.before_scaling()
        if self.denial:
            context.abort(*self.denial)
        self.scaled.append((request.job_id, request.workers, request.viewer_uid))
        for job in self.jobs:
            if job.job_id == request.job_id:
                job.wanted = request.workers
        return pb.ScaleJobReply(text=f"job {request.job_id} goes to {request.workers or 'its range'}")

    def ListJobs(self, request, context):  # noqa: N802
        self._heard("ListJobs", context)
        return pb.ListJobsReply(jobs=self.jobs, waiting=self.waiting)

    def ListNodes(self, request, context):  # noqa: N802
        self._heard("ListNodes", context)
        return pb.ListNodesReply(nodes=self.nodes, order=self.order)

    def ListLoans(self, request, context):  # noqa: N802
        self._heard("ListLoans", context)
        return self.loans

    def ListEvents(self, request, context):  # noqa: N802
        self._heard("ListEvents", context)
        found = [
            event
            for event in reversed(self.events)
            if event.number > request.after
            and (not request.before or event.number < request.before)
            and (event.kind in request.kinds if request.kinds else event.kind != "extend")
            and request.job_id in (0, event.job_id)
        ]
        shown = found[: request.limit]
        left = shown[-1].number if len(found) > len(shown) else 0
        newest = max((event.number for event in self.events), default=0)
        return pb.ListEventsReply(events=shown, before=left, newest=newest)

    def ExplainJob(self, request, context):  # noqa: N802
        self._heard("ExplainJob", context)
        self.before_explaining()
        if request.job_id not in self.explained:
            context.abort(
                grpc.StatusCode.NOT_FOUND, self.refusal or f"job {request.job_id} is not in the queue"
            )
        return self.explained[request.job_id]


@contextmanager
def serving(service: FlexodDouble) -> Iterator[Address]:
    """Serve `service`. Yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Address(f"127.0.0.1:{port}", "the test")
    server.stop(None)


def client_of(address: Address) -> Daemon:
    """A client of the flexod at `address`, without MUNGE."""
    return Daemon(address, SayingWho())
