"""A leader's handle of the job's lease: it passes the lease on, or notes in it that the job is over.

A job that is over leaves a note in its lease. Agents that come late read the note and end, instead of leading
the job again. With the note, `flexo run` distinguishes an agent that ended with its job from a killed one.
"""

from __future__ import annotations

import contextlib

from flexo_protos.leader_leases.lease import StoreUnavailable
from horovod_elastic import wire
from horovod_elastic.election.election import Election
from horovod_elastic.election.lease_client import LeaseClient

OVER_FOR_S = 60.0
"""Time for which the lease of a finished job says that the job is over."""


class AgentLeaseHandle:
    """A leader's handle of its lease; see succession.LeaseHandle."""

    def __init__(self, election: Election, lease: LeaseClient) -> None:
        self._election = election
        self._lease = lease

    @property
    def term(self) -> int:
        """The fencing term."""
        return self._election.fencing_term

    def certain(self) -> bool:
        """Whether no other agent can have the lease."""
        return self._election.certain()

    def pass_to(self, successor: str) -> None:
        """Give the lease to the agent with this name in the election; "": to any agent."""
        self._election.resign(successor)

    def yield_to(self, term: int) -> None:
        """Give the lease up, because another agent has led under `term`. The next term will be higher."""
        self._election.note_term(term)
        self._election.resign()

    def end(self, exit_code: int) -> None:
        """Note in the lease that the job is over."""
        note = wire.over(exit_code)
        if self._election.resign(note):
            with contextlib.suppress(StoreUnavailable):
                self._lease.acquire(note, note, OVER_FOR_S)  # for longer than a leader's lease lasts
