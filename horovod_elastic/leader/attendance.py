"""Which agents are lost, and what has become of the base. In the leader's thread."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.base_watch import BaseWatch
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.succession import Tenure

SILENCE_BOUND_S = 15.0
"""An agent that has said nothing for so long is believed to be gone."""
BACK_WITHIN_S = 10.0
"""After its stream broke an agent, or the one started in its place, may take so long to attach again. Then
its workers are given up; at once if others notice that they are gone."""
STALL_S = 3.0
"""A tick that comes so late means that this process itself was stopped, or starved."""
BASE_SILENCE_S = 5.0
"""After so long the cluster is asked what has become of a base that a leader in a satellite does not hear."""


class Attendance:
    """See the module.

    `base_agents`: the names of the base's agents. `inherited`: somebody has led this job before. `since`:
    when this leader began.
    """

    def __init__(
        self,
        agents: AgentLinks,
        membership: Membership,
        tenure: Tenure,
        base_watch: BaseWatch,
        base_agents: Collection[str],
        *,
        inherited: bool,
        since: float,
    ) -> None:
        self._agents = agents
        self._membership = membership
        self._tenure = tenure
        self._base_watch = base_watch
        self._base_agents = frozenset(base_agents)
        self._inherited = inherited
        self._since = self._ticked_at = since

    def tick(self, now: float) -> None:
        """Nobody was silent while this process did not run. What agents have said meanwhile comes first."""
        if now > self._ticked_at + STALL_S:
            for link in self._agents.by_name.values():
                link.heard_at = now
        self._ticked_at = now

    def base_is_connected(self) -> bool:
        """Whether all agents of the base are."""
        return self._agents.here() >= self._base_agents

    def lost(self, now: float) -> Iterator[tuple[str, str]]:
        """The agents to give up, each with the reason. Giving one up may be the reason for the next one."""
        for name, link in list(self._agents.by_name.items()):
            if link.base and self._membership.standing_still:
                continue
            if link.lost_at is not None and (now > link.lost_at + BACK_WITHIN_S or self._membership.broken):
                yield name, "its agent is gone"
            elif now > link.heard_at + SILENCE_BOUND_S and self._tenure.certain():
                yield name, f"its agent has said nothing for {SILENCE_BOUND_S:.0f} s"

    def base_has_ended(self, now: float) -> bool:
        """Whether the cluster says so: a leader in a satellite must not outlive the base."""
        heard = now <= self._since + BASE_SILENCE_S or self._agents.base_is_heard(BASE_SILENCE_S, now)
        self._base_watch.look(self._inherited and not heard, now)
        return self._base_watch.ended

    def base_is_waited_for(self, now: float) -> bool:
        """Whether the base is suspended, or may be: training does not go on without it."""
        return self._base_watch.waited_for(now)
