"""The Aggregators in a job's own satellites (`--aggregators=satellites`, or `auto`), and which of them sum.

Such a satellite has CPUs only. Its agent starts an Aggregator instead of workers, and tells the leader where
that serves. The leader assigns all that serve and may stay. One that has to go stays until the sums are made
elsewhere. Without any, the Aggregators of the workers' nodes sum. Runs in the leader's thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.core import choice
from horovod_elastic.job_plan import BaseJob

SETTLE_S = 5.0
"""Seconds to wait for further Aggregators, so that one generation begins for all of them."""
LEAVES_WITHIN_S = 20.0
"""Longest time that an Aggregator that has to go waits until its sums are made elsewhere. Clusters often
leave 30 s after SIGTERM."""


@dataclass
class _Aggregator:
    """The Aggregator of one satellite."""

    place: workers_pb2.AggregatorPlace
    moved: bool
    """Whether nodes may have left it out since it was assigned, because its process was started again."""


@dataclass(frozen=True)
class _Leaving:
    """A satellite that has to go."""

    why: str
    since: float


class SatelliteSums:
    """See the module."""

    def __init__(
        self, base: BaseJob, environment: Mapping[str, str] = os.environ, *, possible: bool = True
    ) -> None:
        """`possible`: whether the cluster has satellites with CPUs only."""
        self._is_auto = choice.leaves_choice(environment)
        may_be = choice.wants_satellites(environment) or (self._is_auto and possible)
        self.wanted = _wanted(base, environment) if may_be else 0
        """The Aggregators that the job asks for, or may have if flexod chooses so; 0: none."""
        self._serving: dict[str, _Aggregator] = {}
        """By agent."""
        self._agents: set[str] = set()
        self._leaving: dict[str, _Leaving] = {}
        self._changed_at = 0.0
        """When another Aggregator began to serve."""

    def joined(self, agent: str, hello: workers_pb2.AgentHello, now: float) -> None:
        """Note an agent, if it is of a satellite without workers."""
        if hello.base or hello.slots:
            return
        self._agents.add(agent)
        if hello.HasField("aggregator_place"):
            self.serves(agent, hello.aggregator_place, now)

    def serves(self, agent: str, place: workers_pb2.AggregatorPlace, now: float) -> None:
        """Note where the Aggregator of this agent serves. Agents say it every second."""
        known = self._serving.get(agent)
        if agent not in self._agents or (known is not None and known.place == place):
            return
        self._serving[agent] = _Aggregator(place, moved=known is not None)
        self._changed_at = now

    def leaves(self, agent: str, why: str, now: float) -> bool:
        """Note that this agent has to go. Return whether it is an Aggregator's: `to_release` says when."""
        if agent in self._agents:
            self._leaving.setdefault(agent, _Leaving(why, now))
        return agent in self._agents

    def gone(self, agent: str) -> None:
        """Note that this agent is gone."""
        self._agents.discard(agent)
        self._serving.pop(agent, None)
        self._leaving.pop(agent, None)

    def next_assignment(self, present: jobs_pb2.Aggregators, now: float) -> jobs_pb2.Aggregators | None:
        """The assignment after `present`; None: that stands.

        One that is gone or has to go is replaced at once. For a new one, others are waited for.
        """
        staying = self._staying
        if not self.wanted or (self._is_auto and not staying and not present.in_satellites):
            return None  # the present one may be of a pool
        places = sorted((each.place.host, each.place.port, each.place.token) for each in staying.values())
        before = [(each.host, each.port, each.token) for each in present.aggregators]
        if places == before and not any(each.moved for each in staying.values()):
            return None
        is_lost = not set(before) <= set(places)
        if not is_lost and len(places) < self.wanted and now < self._changed_at + SETTLE_S:
            return None
        for each in staying.values():
            each.moved = False
        assigned = [
            jobs_pb2.AssignedAggregator(host=host, port=port, token=token, share=1)
            for host, port, token in places
        ]
        return jobs_pb2.Aggregators(
            version=present.version + 1, aggregators=assigned, in_satellites=bool(assigned)
        )

    @property
    def serves_any(self) -> bool:
        """Whether an Aggregator in a satellite serves that may stay."""
        return bool(self._staying)

    @property
    def _staying(self) -> dict[str, _Aggregator]:
        return {agent: each for agent, each in self._serving.items() if agent not in self._leaving}

    def is_assigned(self, agent: str, present: jobs_pb2.Aggregators) -> bool:
        """Whether the Aggregator of this agent is among those of `present`."""
        known = self._serving.get(agent)
        return known is not None and any(
            (each.host, each.port, each.token) == (known.place.host, known.place.port, known.place.token)
            for each in present.aggregators
        )

    def to_release(self, *, migrated: bool, now: float) -> list[tuple[str, str]]:
        """The agents that may go now, each with the reason. `migrated`: whether the last assignment is in
        use."""
        return [
            (agent, leaving.why)
            for agent, leaving in self._leaving.items()
            if migrated or now > leaving.since + LEAVES_WITHIN_S
        ]


def _wanted(base: BaseJob, environment: Mapping[str, str]) -> int:
    """One for each node of the base, or as many as the user says, but not more than the job has workers."""
    return min(choice.aggregator_cores(environment) or len(base.nodes), base.maximum)
