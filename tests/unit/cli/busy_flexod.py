"""An AdminService with as many jobs, nodes, loans and pool Aggregators as a test wants, for `flexo top`."""

from __future__ import annotations

import time

import grpc

from flexo_protos.v1 import admin_pb2 as pb
from flexo_protos.v1 import admin_pb2_grpc


def job(number: int, **changes: object) -> pb.ElasticJob:
    """Trains with 3 of 2-8 workers, one of them in a satellite."""
    grant = pb.GrantView(
        grant_id=f"g{number}", node=f"n{number % 16 + 1}", workers=1, state="training", slurm_job_id=9
    )
    plain = pb.ElasticJob(
        job_id=number, user="ada", min=2, max=8, workers=3, granted=3, gpus_per_worker=1, attached=True,
        scalable=True, base_nodes=[f"n{(number + 7) % 16 + 1}"], grants=[grant], progress=0.42, left_s=7300,
        left_by="history", reasons=["all idle GPUs are kept for pending job 4711"],
    )  # fmt: skip
    plain.MergeFrom(pb.ElasticJob(**changes))
    return plain


class BusyFlexod(admin_pb2_grpc.AdminServiceServicer):
    """Answers while `present`."""

    def __init__(self, jobs: int = 3, nodes: int = 16) -> None:
        self.present = True
        self.asked = 0
        self.jobs = [job(100 + number) for number in range(jobs)]
        self.waiting: list[pb.WaitingJob] = []
        self.status = pb.GetStatusReply(
            flexod_version="0.1.0", slurm_version="22.05.8", cluster="lab", policy="lyra", nodes=nodes,
            gpus=4 * nodes, gpus_idle=3, gpus_in_satellites=5, elastic_jobs=jobs, leaders=jobs, interval_s=5,
            last_cycle_at=time.time(),
        )  # fmt: skip
        self.nodes = [
            pb.NodeView(name=f"n{number + 1}", gpus=4, gpus_allocated=number % 5, partitions=["train"])
            for number in range(nodes)
        ]
        self.order: list[int] = []
        self.loans = pb.ListLoansReply(lending=False)

    def lend(self, *loans: pb.LoanView) -> None:
        self.loans = pb.ListLoansReply(
            lending=True, inference_partition="infer", partition="borrowed", loans=loans
        )
        self.status.lending.CopyFrom(pb.LendingView(at=time.time(), servers=8, demand=4.25, lent=len(loans)))

    def pool(self, *aggregators: pb.PoolAggregatorView) -> None:
        self.status.pool.CopyFrom(pb.PoolView(aggregators=aggregators, wanted=1, jobs=2))

    def _heard(self, context: grpc.ServicerContext) -> None:
        self.asked += 1
        if not self.present:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a while")

    def GetStatus(self, request, context):  # noqa: N802
        self._heard(context)
        return self.status

    def ListJobs(self, request, context):  # noqa: N802
        return pb.ListJobsReply(jobs=self.jobs, waiting=self.waiting)

    def ListNodes(self, request, context):  # noqa: N802
        return pb.ListNodesReply(nodes=self.nodes, order=self.order)

    def ListLoans(self, request, context):  # noqa: N802
        return self.loans
