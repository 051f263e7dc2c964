"""What passes to the next leader: the lease, and what only this leader knows. In the leader's thread."""

from __future__ import annotations

from typing import Protocol

from flexo_protos.v1 import workers_pb2
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.agent_links import AgentLinks, AgentOutbox
from horovod_elastic.leader.borrowing import Borrowing


class Tenure(Protocol):
    """The lease under which one leads. Never raises: its server may be away."""

    @property
    def term(self) -> int:
        """The fencing term: later leaders of this run have higher ones. Any thread."""
        ...

    def certain(self) -> bool:
        """Whether nobody else can have it: it was confirmed a moment ago."""
        ...

    def pass_to(self, successor: str) -> None:
        """Let the agent with this name in the election have it."""
        ...

    def yield_to(self, term: int) -> None:
        """Give it up, because another agent has led under `term`."""
        ...

    def end(self, exit_code: int) -> None:
        """Nobody is to have it: the job is over."""
        ...


class Succession:
    """See the module. `leader`: the agent in whose process the leader lives."""

    def __init__(
        self, leader: str, tenure: Tenure, agents: AgentLinks, borrowing: Borrowing, accounting: Accounting
    ) -> None:
        self._leader = leader
        self._tenure = tenure
        self._agents = agents
        self._borrowing = borrowing
        self._accounting = accounting
        self._told = workers_pb2.LeaderState()

    # --- what only this leader knows -------------------------------------------------------------------

    def inherit(self, state: workers_pb2.LeaderState, now: float) -> None:
        """Go on from what an agent has heard of an earlier leader."""
        self._accounting.inherit(state.accounting)
        self._borrowing.submitted_elsewhere(state.submitting, now)

    def tell_newcomer(self, outbox: AgentOutbox) -> None:
        """An agent that has just attached hears what the others have been told."""
        if self._told != workers_pb2.LeaderState():
            outbox.put(workers_pb2.ToAgent(leader_state=self._told))

    def tell(self) -> None:
        """Tell agents what only this leader knows, if it is news; they tell the next leader."""
        state = workers_pb2.LeaderState(submitting=self._borrowing.submitting())
        if (accounting := self._accounting.told()) != workers_pb2.Accounting():
            state.accounting.CopyFrom(accounting)
        if state != self._told:
            self._told = state
            self._agents.tell_connected(workers_pb2.ToAgent(leader_state=state))

    # --- the lease -------------------------------------------------------------------------------------

    def hand_over(self) -> str:
        """Have another agent lead, one of the base if there is any; its name, "" if there is none."""
        successor = self._agents.successor_of(self._leader)
        if successor:
            self._borrowing.close()
            self.tell()
            self._tenure.pass_to(self._agents.by_name[successor].holder)
            self._agents.tell(successor, workers_pb2.ToAgent(hand_over=workers_pb2.HandOver()))
        return successor

    def let_anybody_lead(self) -> None:
        """Have whoever comes first lead. Nothing is submitted any more."""
        self._borrowing.close()
        self._tenure.pass_to("")

    def yield_to(self, term: int) -> None:
        """Another agent has led under `term`, which is later. Nothing is submitted any more."""
        self._borrowing.close()
        self._tenure.yield_to(term)

    def fail(self) -> None:
        """This leader has failed: another agent may lead at once."""
        successor = self._agents.by_name.get(self._agents.successor_of(self._leader))
        self._tenure.pass_to(successor.holder if successor is not None else "")
