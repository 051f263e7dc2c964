"""How a leader's time ends, as the job's lease shows it: passed on to another agent, or over with the job.

A job that is over leaves a note in its lease, so that agents which come late end instead of leading it again,
and `flexo run` can tell an agent that ended with its job from one that was killed.
"""

from __future__ import annotations

import contextlib

from flexo_protos.leader_leases.lease import StoreAway
from horovod_elastic import wire
from horovod_elastic.election.election import Election
from horovod_elastic.election.lease_client import LeaseClient

OVER_FOR_S = 60.0
"""How long whoever looks for the leader of a job that is over is told so."""


class Tenure:
    """A leader's hold of its lease; see leader.Tenure."""

    def __init__(self, election: Election, lease: LeaseClient) -> None:
        self._election = election
        self._lease = lease

    @property
    def term(self) -> int:
        """The fencing term."""
        return self._election.fencing_term

    def certain(self) -> bool:
        """Whether nobody else can have it."""
        return self._election.certain()

    def pass_to(self, successor: str) -> None:
        """Let the agent of that name in the election have it."""
        self._election.resign(successor)

    def yield_to(self, term: int) -> None:
        """Give it up, because another agent has led under `term`: the next term is above that."""
        self._election.note_term(term)
        self._election.resign()

    def end(self, exit_code: int) -> None:
        """Note that the job is over."""
        note = wire.over(exit_code)
        if self._election.resign(note):
            with contextlib.suppress(StoreAway):
                self._lease.acquire(note, note, OVER_FOR_S)  # for longer than a leader's lease lasts
