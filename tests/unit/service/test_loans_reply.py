"""What the admin service says of loans, from the controller's view of the last turn."""

from __future__ import annotations

from service_doubles import slurm_job

from flexo.clusters.base import ClusterState
from flexo.control.views import LoansView
from flexo.loaning.lending_cycle import LendingSettings, Reading
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState, PastLoan
from flexo.model.queue import JobKey, SatelliteTag
from flexo.service.loans_reply import loans_reply

LOANS = (
    Loan("i1", 100.0, "spare"),
    Loan("i2", 100.0, "spare", LoanState.RECLAIMING, 150.0, 330.0, "demand", 4, 2, 1),
)


class Controlled:
    """The controller's place."""

    def __init__(self, view: LoansView | None) -> None:
        self._view = view
        satellite = slurm_job(
            50,
            partitions=("borrowed",),
            nodes=("i1",),
            elastic=None,
            satellite=SatelliteTag(JobKey(7), "g", 3),
        )
        base = slurm_job(60, partitions=("borrowed",), nodes=("i2",))
        self.observation = ClusterState(200.0, (), (), (satellite, base), 0.0)

    def loans(self) -> LoansView | None:
        return self._view

    def jobs(self) -> tuple[()]:
        return ()


def test_each_loan_comes_with_who_is_there():
    reading = Reading(190.0, 4, Demand(190.0, 2.5, "partition infer"), 3.0, "why", "")
    alone = (LeftAlone("i3", 900.0),)
    reply = loans_reply(Controlled(LoansView(LendingSettings(), LOANS, reading, alone)), ())
    first, second = reply.loans
    assert (first.node, first.state, first.satellite_workers, first.deadline_at) == ("i1", "lent", 3, 0.0)
    assert (second.state, list(second.bases), second.deadline_at) == ("called back", [60], 330.0)
    assert (second.workers_scaled_in, second.bases_preempted, second.servers_emptied_beside) == (4, 2, 1)
    assert [(each.node, each.until_at) for each in reply.left_alone] == [("i3", 900.0)]
    assert (reply.view.lent, reply.view.coming_back, reply.view.demand) == (1, 1, 2.5)


def test_what_is_not_known_is_absent():
    reply = loans_reply(Controlled(LoansView(LendingSettings())), ())
    assert not reply.view.HasField("demand")
    assert not reply.view.HasField("peak")


def test_past_loans_are_told_also_by_a_flexod_that_lends_no_more():
    past = PastLoan("i3", 1.0, "spare", 50.0, 230.0, "demand", 55.0, 60.0, 4, 0, 2)
    reply = loans_reply(Controlled(None), (past,))
    assert not reply.lending
    assert (reply.past[0].node, reply.past[0].empty_at, reply.past[0].workers_scaled_in) == ("i3", 55.0, 4)
    assert reply.past[0].servers_emptied_beside == 2
