"""The agents and workers of a job, with the leader's knowledge of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from horovod_elastic.leader.membership.commands import Leave, RankAssignment, Start
from horovod_elastic.leader.membership.states import (
    AGENT,
    WORKER,
    AgentEvent,
    AgentState,
    Machine,
    WorkerEvent,
    WorkerState,
)
from horovod_elastic.phase import Phase

WARM_UP_BOUND_S = 600.0
"""Longest time from a newcomer's start until it is ready."""
LONG_LIFE_S = 1800.0
"""After a life of this length, a worker's death has nothing to do with earlier ones in its slot. It is longer
than WARM_UP_BOUND_S, because a newcomer that hangs would else be started again for ever."""
EXIT_BOUND_S = 30.0
"""Longest time until a waiting worker that is told to leave has exited."""
ENTER_BOUND_S = 30.0
"""Longest time until a waiting worker that is called has entered the generation."""
LEAVE_BOUND_S = 300.0
"""Longest time until a training worker has ended its mini-batch, and has left or switched."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker's report on itself (workers.proto, WorkerStatus)."""

    phase: Phase
    generation: int = 0
    rank: int = -1
    size: int = 0
    commits: int = 0
    progress: float = 0.0
    boundary: int = 0
    in_loop: bool = False
    holding: bool = False
    prepared: int = 0
    called: int = 0
    going: bool = False
    layout: str = ""
    fixed_why: str = ""
    told_first: bool = False
    outlives: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that lives already when its agent attaches to a new leader."""

    worker_id: str
    slot: int
    newcomer: bool
    status: WorkerStatus


@dataclass
class Worker:
    """One training process in one slot of one agent."""

    worker_id: str
    agent: str
    slot: int
    newcomer: bool
    life: Machine[WorkerState, WorkerEvent] = field(
        default_factory=lambda: Machine(WORKER, WorkerState.STARTING)
    )
    rank: int = -1
    """Rank in the present generation; -1: the worker is not in it."""
    commits: int = 0
    entered: int = 0
    """The last generation that the worker has reported to be in."""
    first: int = 0
    """The first one."""
    called: int = 0
    """The last generation that the worker was called to, as far as this leader knows. Earlier reports do not
    count."""
    waits: bool = False
    """Whether the worker was waiting when called. It is alone in the new generation until others come."""
    told_first: bool = False
    """Whether the worker's script was told rank 0 and does what only rank 0 does."""
    outlives: bool = False
    """Whether the worker goes on in its generation if another one dies that is not rank 0."""
    layout: str = ""
    """What must be the same on all workers that train together, after the place in the script where it is so,
    and a space. "" if the worker has told nothing."""
    in_loop: bool = False
    """Whether the worker has entered hvd.elastic.run. Newcomers can join only workers there."""
    projected: int = -1
    """The rank that its script was told when it started; -1: an earlier leader has started it."""
    takes: int = -1
    """The rank that this process has or is to take over, in reproducible mode; -1: the mode is off."""
    deadline: float | None = None
    added_at: float = 0.0
    """When the worker was started; 0.0: by an earlier leader."""

    @property
    def state(self) -> WorkerState:
        """The state of the worker's life."""
        return self.life.state

    @property
    def alive(self) -> bool:
        """Whether the worker's process runs."""
        return self.state is not WorkerState.GONE

    @property
    def member(self) -> bool:
        """Whether the worker is in the present generation."""
        return self.rank >= 0

    def is_ready(self) -> None:
        """Note that the worker waits to be called."""
        self.life.happens(WorkerEvent.WAITS)
        self.deadline = None

    def is_called(self, rank: int, waits: bool, now: float) -> None:
        """Note that the worker is called into the next generation, with this rank.

        `waits`: whether the worker was waiting, not training.
        """
        self.life.happens(WorkerEvent.CALLED)
        self.rank, self.waits = rank, waits
        self.deadline = now + ENTER_BOUND_S if waits else None

    def steps_aside(self, now: float) -> None:
        """Note that the worker is told to step out, or to leave, at the boundary to which it still trains.

        It is ready again when it reports so.
        """
        self.life.happens(WorkerEvent.STEPS_ASIDE)
        self.newcomer, self.deadline = True, now + LEAVE_BOUND_S

    def leaves_at_boundary(self, now: float) -> None:
        """Note that the worker is told to end at the boundary."""
        self.life.happens(WorkerEvent.LEAVES)
        self.deadline = now + LEAVE_BOUND_S

    def tell_to_leave(self, why: str, now: float) -> Leave:
        """Tell a waiting worker to exit at once."""
        self.life.happens(WorkerEvent.LEAVES)
        self.rank, self.deadline = -1, now + EXIT_BOUND_S
        return Leave(self.worker_id, why)

    def is_gone(self) -> None:
        """Note that the worker's process has ended."""
        self.life.happens(WorkerEvent.EXITS)
        self.rank, self.deadline = -1, None


@dataclass
class Agent:
    """One node of the job, as membership sees it."""

    name: str
    slots: int
    base: bool
    life: Machine[AgentState, AgentEvent] = field(default_factory=lambda: Machine(AGENT, AgentState.SERVING))
    leaving: str = ""
    """Why the agent has to go; "" while it may stay."""
    deaths: dict[int, int] = field(default_factory=dict)
    """For each slot, the number of workers that died there, one soon after the other."""
    codes: dict[int, int] = field(default_factory=dict)
    """For each unit, by its first slot, the exit code of the first worker that died, until it is replaced."""

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def dismissed(self) -> bool:
        """Whether the agent is gone, or was told to go."""
        return self.life.state is AgentState.DISMISSED

    def count_death(self, slot: int, lived_s: float) -> int:
        """Count the death of a worker in the slot after `lived_s` seconds. Returns the number that counts.

        After a long life, earlier deaths do not count: a job may run for weeks.
        """
        before = 0 if lived_s >= LONG_LIFE_S else self.deaths.get(slot, 0)
        self.deaths[slot] = before + 1
        return before + 1

    def has_to_go(self, why: str) -> None:
        """Note that the agent's node has to go. The first reason is kept."""
        if self.life.state is AgentState.SERVING:
            self.life.happens(AgentEvent.SENT_AWAY)
            self.leaving = why

    def is_dismissed(self, why: str) -> None:
        """Note that the agent is told that nothing is left to do."""
        self.life.happens(AgentEvent.DISMISSED)
        self.leaving = self.leaving or why

    def is_lost(self, why: str) -> None:
        """Note that the agent's node, or the connection to it, is lost."""
        self.life.happens(AgentEvent.LOST)
        self.leaving = self.leaving or why


class Roster:
    """All agents and workers by name. `base_agents`: the base's agents; rank 0 begins on the first.

    `unit`: the number of workers that come and go together. They stand in consecutive slots of one agent.
    `virtual`: the number of virtual workers in reproducible mode; else 0. `minimum`: that of an opportunistic
    job, whose base has no workers; else 0.
    """

    def __init__(self, base_agents: Sequence[str], unit: int = 1, virtual: int = 0, minimum: int = 0) -> None:
        self.unit = unit
        self.minimum = minimum
        self.virtual = virtual
        self.agents: dict[str, Agent] = {}
        self.workers: dict[str, Worker] = {}
        self.takes_from_any = False
        """Whether the scripts of this job are known to take the state from any rank: they have layouts."""
        self._base_agents = list(base_agents)
        self._serial = 0

    def agent_of(self, worker: Worker) -> Agent:
        """The agent on whose node `worker` runs."""
        return self.agents[worker.agent]

    def of(self, agent: str) -> list[Worker]:
        """All workers of this agent, dead or alive."""
        return [worker for worker in self.workers.values() if worker.agent == agent]

    def unit_of(self, worker: Worker) -> list[Worker]:
        """The living workers of this worker's unit; the worker that was started first comes first."""
        if self.virtual:  # one slot has several workers, and each is a unit
            return [worker] if worker.alive else []
        number = worker.slot // self.unit
        return [each for each in self.of(worker.agent) if each.alive and each.slot // self.unit == number]

    def is_whole(self, worker: Worker) -> bool:
        """Whether all workers of this worker's unit live."""
        return len(self.unit_of(worker)) == self.unit

    def alive(self) -> list[Worker]:
        """All workers whose processes run."""
        return [worker for worker in self.workers.values() if worker.alive]

    def living(self, worker_ids: Iterable[str]) -> tuple[str, ...]:
        """The workers among `worker_ids` whose processes run."""
        return tuple(worker_id for worker_id in worker_ids if self.workers[worker_id].alive)

    def members(self) -> list[Worker]:
        """The living members of the present generation, by rank."""
        return sorted((w for w in self.alive() if w.member), key=lambda worker: worker.rank)

    def trains(self, agent: str) -> bool:
        """Whether any worker of this agent is in the present generation."""
        return any(worker.member for worker in self.of(agent))

    def add(self, agent: Agent, slot: int, newcomer: bool, now: float, takes: int = -1) -> Worker:
        """Add a worker that is to be started."""
        self._serial += 1
        worker = Worker(f"w{self._serial}", agent.name, slot, newcomer, takes=takes, added_at=now)
        if newcomer:
            worker.deadline = now + WARM_UP_BOUND_S
        self.workers[worker.worker_id] = worker
        return worker

    def adopt(self, agent: Agent, running: Running, begins: WorkerState) -> Worker:
        """Add a worker that an earlier leader has started. `begins`: its first state."""
        number = running.worker_id[1:]
        self._serial = max(self._serial, int(number) if number.isdecimal() else 0)
        worker = Worker(
            running.worker_id, agent.name, running.slot, running.newcomer, Machine(WORKER, begins)
        )
        if self.virtual:
            worker.takes = running.status.rank
        self.workers[worker.worker_id] = worker
        return worker

    def skip(self, numbers: int) -> None:
        """Skip this many worker numbers, because an earlier leader may have used them."""
        self._serial += numbers

    def start(self, worker: Worker) -> Start:
        """The command that starts `worker`. Its projected rank assumes that all workers on the way join."""
        start = self._start(worker)
        worker.projected = start.projected_rank.rank
        return start

    def _start(self, worker: Worker) -> Start:
        if self.virtual:
            return self._start_virtual(worker)
        worker.told_first = worker.told_first or self._lacks_first(worker)
        if self.minimum and not worker.newcomer:
            return self._start_founder(worker)
        waiting = [
            w for w in self.alive() if not w.member and w.state in (WorkerState.STARTING, WorkerState.READY)
        ]
        expected = places(self.in_order(self.members(), waiting))
        projected_rank = next(place for place in expected if place.worker_id == worker.worker_id)
        projected_rank = replace(projected_rank, size=max(projected_rank.size, self.minimum))
        unit = self.unit_of(worker)[0].worker_id if self.unit > 1 else ""
        return Start(worker.worker_id, worker.agent, worker.slot, worker.newcomer, projected_rank, unit)

    def _start_founder(self, worker: Worker) -> Start:
        """The command that starts a founder of an opportunistic job, of which the others may start later."""
        founders = [
            each for each in self.alive() if not each.newcomer and each.state is not WorkerState.LEAVING
        ]
        here = [each for each in founders if each.agent == worker.agent]
        rank, size, local_rank = founders.index(worker), self.minimum, here.index(worker)
        local_size = max(local_rank + 1, min(self.agent_of(worker).slots, size))
        place = RankAssignment(
            *(worker.worker_id, worker.agent, rank, size, local_rank, local_size, 0, 1), slot=worker.slot
        )
        unit = self.unit_of(worker)[0].worker_id if self.unit > 1 else ""
        return Start(worker.worker_id, worker.agent, worker.slot, worker.newcomer, place, unit)

    def _start_virtual(self, worker: Worker) -> Start:
        """The command that starts a process for a virtual worker, whose rank is known."""
        slots = self.agent_of(worker).slots
        place = RankAssignment(
            worker.worker_id, worker.agent, worker.takes, self.virtual, worker.slot, slots, 0, 1
        )
        return Start(worker.worker_id, worker.agent, worker.slot, worker.newcomer, place)

    def _lacks_first(self, worker: Worker) -> bool:
        """Whether no script knows itself as rank 0 any more, and that of `worker` is to do so."""
        if worker.slot % self.unit:
            return False
        staying = self.alive()
        if self.minimum:  # no worker is in the base, and nobody trains while the job pauses
            staying = [each for each in staying if each.state is not WorkerState.LEAVING]
            begins = any(not each.newcomer and not each.member for each in staying)
            may = self.takes_from_any and worker.newcomer and not begins
        else:
            tells = any(each.layout for each in self.members())
            may = tells and self.agent_of(worker).base
        return may and not any(each.told_first for each in staying)

    def in_order(self, staying: list[Worker], joining: list[Worker]) -> list[Worker]:
        """The workers by rank. The worker with the most commits comes first: all others take over its state.

        A worker whose script was told rank 0 comes before it: such scripts take the state from any rank. An
        agent's workers stand together, by slot. Those of the first worker's agent come before all others, and
        there those of its unit. Virtual workers keep their ranks.
        """
        if self.virtual:
            return sorted([*staying, *joining], key=lambda worker: worker.takes)
        first = min(staying, key=lambda worker: (-worker.commits, worker.rank), default=None)
        first = next((worker for worker in (*staying, *joining) if worker.told_first), first)
        leading = None if first is None else (first.agent, first.slot // self.unit)
        agents = [*self._base_agents, *self.agents]

        def key(worker: Worker) -> tuple[bool, bool, int, bool, int]:
            with_first = first is not None and worker.agent == first.agent
            at, unit = agents.index(worker.agent), (worker.agent, worker.slot // self.unit)
            return not with_first, not self.agent_of(worker).base, at, unit != leading, worker.slot

        return sorted([*staying, *joining], key=key)


def places(order: Iterable[Worker]) -> tuple[RankAssignment, ...]:
    """The ranks for the workers in `order` (by rank), in which an agent's workers stand together.

    Workers of one agent count as one host, as Horovod does with hosts. Its core sorts local and cross groups
    by rank (gloo_context.cc, InitializeForProcessSet). Where local or cross ranks are in another order,
    initialisation hangs until Gloo's timeout and then aborts everybody.
    """
    members = list(order)
    by_agent: dict[str, list[Worker]] = {}
    for worker in members:
        by_agent.setdefault(worker.agent, []).append(worker)
    hosts = list(by_agent)
    result = []
    for rank, worker in enumerate(members):
        local_rank = by_agent[worker.agent].index(worker)
        peers = [host for host in hosts if len(by_agent[host]) > local_rank]
        result.append(
            RankAssignment(
                worker_id=worker.worker_id,
                agent=worker.agent,
                rank=rank,
                size=len(members),
                local_rank=local_rank,
                local_size=len(by_agent[worker.agent]),
                cross_rank=peers.index(worker.agent),
                cross_size=len(peers),
                slot=worker.slot,
            )
        )
    return tuple(result)
