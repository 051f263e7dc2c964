"""The Aggregators that are assigned to a job: the last assignment, which agents are told, and their use.

flexod assigns Aggregators of a pool. The leader itself assigns those in the job's satellites. The present
generation's sums migrate to them (aggregation/migration.py). If they cannot, the leader begins a generation.
While flexod is away, the last assignment stays. The agents keep it for the next leader. Runs in the leader's
thread.
"""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Mapping
from itertools import combinations

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.core import choice
from horovod_elastic.leader.agent_links import AgentLinks, AgentOutbox

HEARD_WITHIN_S = 5.0
"""An agent's word counts for this time. It comes every second."""
RENEWED_AFTER_S = 10.0
"""The leader begins a generation for an assignment that some node does not use after this time."""
LEAST_ITERATIONS = 20
"""Iterations that a measured time is from, at least."""
ITERATIONS = 40
"""The number of latest iterations that a time is from."""
PAUSE = 3
"""So many times longer than usual is a pause."""
BUSY_SAMPLES = 20
"""The number of latest CPU times that an Aggregator's use of its core is from."""
_LEAST_SAMPLES, _MOST_SAMPLES = 6, 64
_MOST_KEPT = 8


class IterationTime:
    """The duration of an iteration, from counts that come every second.

    A count is a whole number, so the time between two counts is inexact. The median of the slopes between all
    pairs of counts (Theil and Sen) is exact to a few percent. After a pause, the measurement begins anew. Two
    pauses with nothing between them are the job's new pace.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MOST_SAMPLES)
        self._usual_s = 0.0
        """The last known duration, by which a pause is told; 0: none."""
        self._paused = False
        """Whether the last note was taken for the end of a pause."""

    def forget(self) -> None:
        """Begin anew. Pauses are still told by the duration before."""
        self._samples.clear()
        self._paused = False

    def note(self, now: float, count: int) -> None:
        """Note the number of iterations at `now`. A number that was noted before says nothing new."""
        samples = self._samples
        if samples and (count < samples[-1][1] or self._is_pause(now, count)):
            samples.clear()
        if not samples or count > samples[-1][1]:
            samples.append((now, count))
        while len(samples) > _LEAST_SAMPLES and count - samples[1][1] >= ITERATIONS:
            samples.popleft()

    def _is_pause(self, now: float, count: int) -> bool:
        last_at, last = self._samples[-1]
        self._usual_s = self.median_s or self._usual_s
        is_pause = count > last and 0 < PAUSE * self._usual_s < (now - last_at) / (count - last)
        if is_pause and self._paused:
            is_pause, self._usual_s = False, 0.0
        if count > last:
            self._paused = is_pause
        return is_pause

    @property
    def median_s(self) -> float:
        """The duration of an iteration; 0: there are too few yet."""
        samples = list(self._samples)
        if len(samples) < _LEAST_SAMPLES or samples[-1][1] - samples[0][1] < LEAST_ITERATIONS:
            return 0.0
        slopes = [(later[0] - one[0]) / (later[1] - one[1]) for one, later in combinations(samples, 2)]
        return statistics.median(slopes)


class BusyTime:
    """How much of a CPU core an Aggregator uses, from CPU times that come every second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=BUSY_SAMPLES)

    def note(self, now: float, cpu_s: float) -> None:
        """Note the CPU seconds of its process until `now`. Fewer than before are of another process."""
        if self._samples and cpu_s < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, cpu_s))

    @property
    def cores(self) -> float:
        """The CPU cores that it uses; 0: not known yet."""
        if len(self._samples) < _LEAST_SAMPLES:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


class AssignedSums:
    """See the module."""

    def __init__(self, agents: AgentLinks, environment: Mapping[str, str] = os.environ) -> None:
        self._agents = agents
        self.wanted = choice.wants_assignment(environment)
        """Whether the user has asked for Aggregators elsewhere than on the workers' nodes."""
        self._sums = choice.sums_by_service(environment)
        self._is_auto = choice.leaves_choice(environment)
        self.of_pool = self._is_auto or choice.wants_pool(environment)
        """Whether they are a pool's, or may be."""
        self.reserves = choice.aggregator_cores(environment)
        """The CPU cores that the job would reserve for its own Aggregators; 0: one for each node."""
        self.assignment = jobs_pb2.Aggregators()
        """The last one."""
        self._shares: dict[int, list[jobs_pb2.UsedAggregator]] = {}
        """Of the last assignments, by version."""
        self._renewed = 0
        """The last version for which a generation was begun."""
        self._held_at = 0.0
        """When the last assignment came."""
        self._usages: dict[str, tuple[float, workers_pb2.AggregatorUsage]] = {}
        """By agent: the time of its last word, and the word."""
        self._busy: dict[str, BusyTime] = {}
        """By agent."""
        self._in_use: tuple[int, int] = (0, 0)
        """Version and generation that the measurements are of."""
        self._clock = ""
        """The agent whose count is measured."""
        self._counted = 0
        """Its count at its last word."""
        self._iterations = 0
        self._time = IterationTime()

    # --- the assignment --------------------------------------------------------------------------

    def assigned(self, told: jobs_pb2.Aggregators, now: float) -> bool:
        """Take an assignment, and tell the agents. Return whether a generation has to begin for it at once.

        An Aggregator in both the present and the new one would count the keys of both. So it gets the keys
        of the new one in another generation.
        """
        if not self.wanted or told.version < self.assignment.version:
            return False
        # with the same version, tokens were renewed, or a new flexod repeats it
        is_new = told.version > self.assignment.version
        needs_generation = is_new and bool(_places(told) & _places(self.assignment))
        self._hold(told, now)
        self._agents.tell_connected(self._message())
        if needs_generation:
            self._renewed = told.version
        return needs_generation

    def inherit(self, known: jobs_pb2.Aggregators, now: float) -> None:
        """Take over what an agent was told by an earlier leader."""
        if self.wanted and known.version > self.assignment.version:
            self._hold(known, now)

    def tell_newcomer(self, outbox: AgentOutbox) -> None:
        """Tell an agent that has just attached."""
        if self.assignment.version:
            outbox.put(self._message())

    def renewal_is_due(self, now: float) -> bool:
        """Whether the assignment needs a generation, because the present one has not migrated to it.

        True at most once for each version.
        """
        version = self.assignment.version
        if not version or self._renewed == version or now < self._held_at + RENEWED_AFTER_S:
            return False
        said = [usage.version for usage in self._fresh(now).values()]
        if not said:
            return False
        self._renewed = version
        return any(each != version for each in said)

    def _hold(self, told: jobs_pb2.Aggregators, now: float) -> None:
        if told.version > self.assignment.version:
            self._held_at = now
        self.assignment = told
        self._shares[told.version] = [
            jobs_pb2.UsedAggregator(host=each.host, port=each.port, share=each.share)
            for each in told.aggregators
        ]
        while len(self._shares) > _MOST_KEPT:
            del self._shares[min(self._shares)]

    def _message(self) -> workers_pb2.ToAgent:
        return workers_pb2.ToAgent(aggregators=self.assignment)

    # --- its use ---------------------------------------------------------------------------------

    def used(self, agent: str, usage: workers_pb2.AggregatorUsage, generation: int, now: float) -> None:
        """Take an agent's word on its node's Aggregator. `generation`: the job's present one."""
        if not self.wanted:
            return
        self._usages[agent] = now, usage
        self._busy.setdefault(agent, BusyTime()).note(now, usage.cpu_s)
        fresh = self._fresh(now)
        version = min(each.version for each in fresh.values())
        if (version, generation) != self._in_use or self._clock not in fresh:
            if version != self._in_use[0]:
                self._iterations = 0
            self._in_use, self._clock = (version, generation), min(fresh)
            self._counted = fresh[self._clock].rounds
            self._time.forget()
        if agent == self._clock:
            done = usage.rounds - self._counted
            self._iterations += done if done >= 0 else usage.rounds  # the count begins with each generation
            self._counted = usage.rounds
            self._time.note(now, self._iterations)

    def in_use(self, now: float) -> bool:
        """Whether all nodes use the last assignment."""
        return all(usage.version == self.assignment.version for usage in self._fresh(now).values())

    def report(self, nodes: int, satellites: int, now: float) -> jobs_pb2.AggregationUse | None:
        """The use, for flexod; None if no Aggregator sums. Only assigned Aggregators are measured.

        `nodes`: with workers. `satellites`: Aggregators in satellites that the job wants, or may have.
        """
        if not self._sums:
            return None
        if not self.wanted:
            return jobs_pb2.AggregationUse(nodes=nodes)
        fresh = self._fresh(now)
        version, _ = self._in_use
        return jobs_pb2.AggregationUse(
            wants_pool=self.of_pool and not self._is_auto,
            satellites=0 if self._is_auto else satellites,
            auto=self._is_auto,
            most_satellites=satellites if self._is_auto else 0,
            busy=max((self._busy[name].cores for name in fresh), default=0.0),
            bytes=max((each.bytes for each in fresh.values()), default=0),
            iteration_s=self._time.median_s,
            nodes=nodes,
            version=version,
            iterations=self._iterations,
            used=self._shares.get(version, []),
        )

    def _fresh(self, now: float) -> dict[str, workers_pb2.AggregatorUsage]:
        return {
            name: usage
            for name, (at, usage) in self._usages.items()
            if now <= at + HEARD_WITHIN_S and name in self._agents.by_name
        }


def _places(assignment: jobs_pb2.Aggregators) -> set[tuple[str, int]]:
    return {(each.host, each.port) for each in assignment.aggregators}
