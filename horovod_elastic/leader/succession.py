"""The succession of leaders: passes on the lease, and what only this leader knows. Runs in the leader's
thread."""

from __future__ import annotations

from typing import Protocol

from flexo_protos.v1 import workers_pb2
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.agent_links import AgentLinks, AgentOutbox
from horovod_elastic.leader.satellite_manager import SatelliteManager


class LeaseHandle(Protocol):
    """A leader's handle of its lease. Its methods never raise, although the lease's server may be away."""

    @property
    def term(self) -> int:
        """The fencing term: later leaders of this run have higher terms. Any thread may read it."""
        ...

    def certain(self) -> bool:
        """Whether no other agent can have the lease, because it was confirmed a moment ago."""
        ...

    def pass_to(self, successor: str) -> None:
        """Give the lease to the agent with this name in the election; "": to any agent."""
        ...

    def yield_to(self, term: int) -> None:
        """Give the lease up, because another agent has led under `term`."""
        ...

    def end(self, exit_code: int) -> None:
        """Note in the lease that the job is over, so that no agent leads it again."""
        ...


class Succession:
    """See the module. `leader`: name of the agent in whose process the leader lives."""

    def __init__(
        self,
        leader: str,
        lease: LeaseHandle,
        agents: AgentLinks,
        satellites: SatelliteManager,
        accounting: Accounting,
    ) -> None:
        self._leader = leader
        self._lease = lease
        self._agents = agents
        self._satellites = satellites
        self._accounting = accounting
        self._told = workers_pb2.LeaderState()

    # --- what only this leader knows -------------------------------------------------------------------

    def inherit(self, state: workers_pb2.LeaderState, now: float) -> None:
        """Go on from the state that an agent has from an earlier leader."""
        self._accounting.inherit(state.accounting)
        self._satellites.submitted_elsewhere(state.submitting, now)

    def tell_newcomer(self, outbox: AgentOutbox) -> None:
        """Send an agent that has just attached the state that the other agents have."""
        if self._told != workers_pb2.LeaderState():
            outbox.put(workers_pb2.ToAgent(leader_state=self._told))

    def tell(self) -> None:
        """Send agents what only this leader knows, if it has changed. The agents tell the next leader."""
        state = workers_pb2.LeaderState(submitting=self._satellites.submitting())
        if (accounting := self._accounting.told()) != workers_pb2.Accounting():
            state.accounting.CopyFrom(accounting)
        if state != self._told:
            self._told = state
            self._agents.tell_connected(workers_pb2.ToAgent(leader_state=state))

    # --- the lease -------------------------------------------------------------------------------------

    def hand_over(self) -> str:
        """Have another agent lead, one of the base if possible; return its name, "" if there is none."""
        successor = self._agents.successor_of(self._leader)
        if successor:
            self._satellites.close()
            self.tell()
            self._lease.pass_to(self._agents.by_name[successor].holder)
            self._agents.tell(successor, workers_pb2.ToAgent(hand_over=workers_pb2.HandOver()))
        return successor

    def let_anybody_lead(self) -> None:
        """Let the first agent that asks lead. This leader submits no more satellites."""
        self._satellites.close()
        self._lease.pass_to("")

    def yield_to(self, term: int) -> None:
        """Yield to an agent that has led under the later `term`. This leader submits no more satellites."""
        self._satellites.close()
        self._lease.yield_to(term)

    def fail(self) -> None:
        """Let another agent lead at once, because this leader has failed."""
        successor = self._agents.by_name.get(self._agents.successor_of(self._leader))
        self._lease.pass_to(successor.holder if successor is not None else "")
