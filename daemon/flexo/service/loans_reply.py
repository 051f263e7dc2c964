"""Makes replies about loans, in the terms of protos/flexo/v1/admin.proto."""

from __future__ import annotations

from collections.abc import Iterable

from flexo.control.views import LoansView
from flexo.controller import Controller
from flexo.loaning.resident_jobs import NOBODY, ResidentJobs, in_queue
from flexo.model.loans import Loan, PastLoan
from flexo_protos.v1 import admin_pb2


def loans_reply(controller: Controller, past: Iterable[PastLoan]) -> admin_pb2.ListLoansReply:
    """The loans that stand, with the jobs on their servers, and the loans of `past`."""
    told = [_past(loan) for loan in past]
    view, state = controller.loans(), controller.observation
    if view is None:
        return admin_pb2.ListLoansReply(lending=False, past=told)
    settings = view.settings
    there = in_queue(
        [loan.node for loan in view.loans],
        state.jobs if state else (),
        [shown.job for shown in controller.jobs()],
        settings.partition,
        settings.inference_partition,
    )
    return admin_pb2.ListLoansReply(
        lending=True,
        inference_partition=settings.inference_partition,
        partition=settings.partition,
        view=lending_view(view),
        loans=[_loan(loan, there.get(loan.node, NOBODY)) for loan in view.loans],
        past=told,
        left_alone=[
            admin_pb2.LeftAloneView(node=each.node, until_at=each.until_at) for each in view.left_alone
        ],
    )


def lending_view(view: LoansView) -> admin_pb2.LendingView:
    """The facts behind the last decision of lending."""
    reading = view.reading
    return admin_pb2.LendingView(
        at=reading.at,
        servers=reading.size,
        demand=None if reading.demand is None else reading.demand.servers,
        source="" if reading.demand is None else reading.demand.source,
        peak=reading.peak,
        why=reading.why,
        trouble=reading.trouble,
        lent=len(view.loans) - view.coming_back,
        coming_back=view.coming_back,
    )


def _loan(loan: Loan, there: ResidentJobs) -> admin_pb2.LoanView:
    return admin_pb2.LoanView(
        node=loan.node,
        since_at=loan.since_at,
        why=loan.why,
        state=loan.state.value,
        called_back_at=loan.called_back_at or 0.0,
        deadline_at=loan.deadline_at or 0.0,
        why_back=loan.why_back,
        satellite_workers=sum(each.workers for each in there.flexible),
        bases=[base.job.job_id for base in there.bases],
        workers_scaled_in=loan.workers_scaled_in,
        bases_preempted=loan.bases_preempted,
        servers_emptied_beside=loan.servers_emptied_beside,
    )


def _past(loan: PastLoan) -> admin_pb2.PastLoanView:
    return admin_pb2.PastLoanView(
        node=loan.node,
        since_at=loan.since_at,
        why=loan.why,
        called_back_at=loan.called_back_at or 0.0,
        deadline_at=loan.deadline_at or 0.0,
        why_back=loan.why_back,
        empty_at=loan.empty_at,
        ended_at=loan.ended_at,
        workers_scaled_in=loan.workers_scaled_in,
        bases_preempted=loan.bases_preempted,
        servers_emptied_beside=loan.servers_emptied_beside,
    )
