"""Decides which agents are lost, and watches the state of the base. Runs in the leader's thread."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.base_watch import BaseWatch
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.succession import LeaseHandle

SILENCE_BOUND_S = 15.0
"""After this silence, an agent is assumed to be gone."""
BACK_WITHIN_S = 10.0
"""Time for an agent, or its successor, to attach again after its stream broke. Then its workers are given up;
at once if the generation is broken."""
STALL_S = 3.0
"""A tick that is this late means that this process itself was stopped, or starved."""
BASE_SILENCE_S = 5.0
"""After this silence of the base, a leader in a satellite asks the cluster for the base's state."""


class Attendance:
    """See the module.

    `base_agents`: names of the base's agents. `inherited`: another leader led this job before. `since`: time
    when this leader began.
    """

    def __init__(
        self,
        agents: AgentLinks,
        membership: Membership,
        lease: LeaseHandle,
        base_watch: BaseWatch,
        base_agents: Collection[str],
        *,
        inherited: bool,
        since: float,
    ) -> None:
        self._agents = agents
        self._membership = membership
        self._lease = lease
        self._base_watch = base_watch
        self._base_agents = frozenset(base_agents)
        self._inherited = inherited
        self._since = self._ticked_at = since

    def tick(self, now: float) -> None:
        """Reset all times of silence if this process did not run. Messages that came meanwhile are read
        first."""
        if now > self._ticked_at + STALL_S:
            for link in self._agents.by_name.values():
                link.heard_at = now
        self._ticked_at = now

    def base_is_connected(self) -> bool:
        """Whether all agents of the base are connected."""
        return self._agents.here() >= self._base_agents

    def lost(self, now: float) -> Iterator[tuple[str, str]]:
        """The agents to give up, each with the reason. To give one up may be a reason to give up the next.

        One that was dismissed is given up as soon as its stream has ended: flexod hears at once that its GPUs
        are free.
        """
        for name, link in list(self._agents.by_name.items()):
            if link.base and self._membership.standing_still:
                continue
            if link.lost_at is not None and (
                link.dismissed or now > link.lost_at + BACK_WITHIN_S or self._membership.broken
            ):
                yield name, "its agent is gone"
            elif now > link.heard_at + SILENCE_BOUND_S and self._lease.certain():
                yield name, f"its agent has said nothing for {SILENCE_BOUND_S:.0f} s"

    def base_has_ended(self, now: float) -> bool:
        """Whether the cluster says that the base has ended: a leader in a satellite must not outlive it."""
        heard = now <= self._since + BASE_SILENCE_S or self._agents.base_is_heard(BASE_SILENCE_S, now)
        self._base_watch.look(self._inherited and not heard, now)
        return self._base_watch.ended

    def base_is_waited_for(self, now: float) -> bool:
        """Whether the base is suspended, or may be: training does not go on without it."""
        return self._base_watch.waited_for(now)
