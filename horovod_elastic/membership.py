"""Who trains with whom: the workers of one job, generation after generation. Pure: events in, commands out.

A *generation* is one set of workers with one Horovod communicator. It ends when the leader interrupts it
(somebody wants to join or has to leave) or when a collective fails because somebody died. Then every worker
of it arrives here, and when all have arrived or are known to be dead the next generation is formed: those who
stay, without those who leave, with those newcomers that have warmed up meanwhile. So nobody ever waits for a
process that is still importing, a change that comes during a change waits for its turn, and there is no
moment at which some believe in the old set and others in the new one (what is known to go wrong with stock
elastic Horovod stands in docs/architecture.md).

Amoeba (Wu et al., "Elastic deep learning in multi-tenant GPU cluster"), sections 4 and 5: the leader manages
membership; newcomers prepare in the background; those who leave do so at the end of a mini-batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ARRIVAL_BOUND_S = 120.0
"""After the first worker of a generation has arrived, how long the others may take before they are killed."""
WARM_UP_BOUND_S = 600.0
"""How long newcomers may take from their start to being ready."""
EXIT_BOUND_S = 30.0
"""How long a worker that was told to leave may take to exit."""
RESTARTS_PER_SLOT = 3
"""How often a worker that died is started again in its place."""
_BYSTANDERS = (1, -6)
"""Exit codes of those who only lost a peer: an uncaught HorovodInternalError, or the native core's abort."""


class WorkerState(enum.Enum):
    """The life of one worker process."""

    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    ARRIVED = "arrived"
    LEAVING = "leaving"
    FINISHED = "finished"
    GONE = "gone"


@dataclass
class Worker:
    """One training process in one slot of one agent."""

    worker_id: str
    agent: str
    slot: int
    newcomer: bool
    state: WorkerState = WorkerState.STARTING
    rank: int = -1
    commits: int = 0
    in_loop: bool = False
    """A founder that has entered hvd.elastic.run; newcomers join nowhere else."""
    deadline: float | None = None


@dataclass
class Agent:
    """One node of the job, as far as membership goes."""

    name: str
    slots: int
    base: bool
    leaving: str = ""
    """Why it has to go; "" while it may stay."""
    dismissed: bool = False
    restarts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """What Horovod calls rank, size, local and cross ranks: one worker's place in a generation."""

    worker_id: str
    agent: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process."""

    worker_id: str
    agent: str
    slot: int
    newcomer: bool
    outlook: Place


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL a worker process."""

    worker_id: str
    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class Form:
    """A new generation: tell every worker in it its place."""

    generation: int
    places: tuple[Place, ...]
    commits: int
    """Batches committed so far by the state that rank 0 brings along."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask rank 0 to end its generation at the next commit."""

    worker_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell a worker that waits to exit with 0."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Nothing is left to do on this agent's node."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    exit_code: int
    why: str


Command = Start | Kill | Form | Interrupt | Leave | Dismiss | End


def places(order: Iterable[Worker]) -> tuple[Place, ...]:
    """Places for `order` (by rank), in which an agent's workers stand together.

    Workers of one agent count as one host, as Horovod does with hosts. Its core sorts local and cross groups
    by rank (gloo_context.cc, InitializeForProcessSet): where local or cross ranks are in another order,
    initialisation hangs until Gloo's time is up and then aborts everybody.
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
            Place(
                worker_id=worker.worker_id,
                agent=worker.agent,
                rank=rank,
                size=len(members),
                local_rank=local_rank,
                local_size=len(by_agent[worker.agent]),
                cross_rank=peers.index(worker.agent),
                cross_size=len(peers),
            )
        )
    return tuple(result)


class Membership:
    """The state machine. Every method takes the time as `now` (seconds, monotonic) and returns commands.

    `base_agents` are the names of the base's agents in Slurm's order of nodes: rank 0 begins on the first.
    """

    def __init__(self, base_workers: int, base_agents: Sequence[str] = ()) -> None:
        self._base_workers = base_workers
        self._base_agents = list(base_agents)
        self._agents: dict[str, Agent] = {}
        self._workers: dict[str, Worker] = {}
        self._serial = 0
        self._interrupted = False
        self._first_arrival: float | None = None
        self._finishing = False
        self._ended = False
        self._failure: int | None = None
        """Exit code of the worker that failed first in this generation: the job's, if it ends so."""
        self._doomed = False
        """A founder failed before its training loop: to start it again would not help, the job ends."""
        self.generation = 0
        self.scalable = False
        self.commits = 0

    # --- what others may look at -------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Workers in the current generation that are still alive."""
        return sum(1 for worker in self._workers.values() if worker.rank >= 0 and self._alive(worker))

    def agent_trains(self, name: str) -> bool:
        """Whether any worker of this agent is in the current generation."""
        return any(worker.rank >= 0 for worker in self._of(name))

    def worker(self, worker_id: str) -> Worker | None:
        """The worker of that id, dead or alive."""
        return self._workers.get(worker_id)

    @property
    def finishing(self) -> bool:
        """The training function has returned somewhere: nobody joins any more."""
        return self._finishing

    # --- events --------------------------------------------------------------------------------------

    def agent_joined(self, name: str, slots: int, base: bool, now: float) -> list[Command]:
        """An agent is there and can start `slots` workers."""
        agent = Agent(name, slots, base)
        self._agents[name] = agent
        if self._ended or (self._finishing and not base):
            return self._dismiss(agent, "the job is ending")
        workers = [self._add(agent, slot, now) for slot in range(slots)]
        return [self._start(worker) for worker in workers]

    def agent_lost(self, name: str, why: str, now: float) -> list[Command]:
        """An agent's node, or its connection, is gone; so are its workers."""
        agent = self._agents.get(name)
        if agent is None or agent.dismissed:
            return []
        agent.leaving = agent.leaving or why
        agent.dismissed = True
        commands: list[Command] = []
        for worker in self._of(name):
            commands += self._gone(worker, -9, now)
        return commands + self._proceed(now)

    def release(self, name: str, why: str, now: float) -> list[Command]:
        """This agent has to go: its grant was withdrawn, or Slurm takes the node back."""
        agent = self._agents.get(name)
        if agent is None or agent.leaving:
            return []
        return self._send_away(agent, why, now) + self._proceed(now)

    def worker_ready(self, worker_id: str, now: float) -> list[Command]:
        """A founder is in hvd.init, or a newcomer at hvd.elastic.run."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.state is not WorkerState.STARTING:
            return []
        worker.state, worker.deadline = WorkerState.READY, None
        if worker.newcomer and (self._finishing or self._agents[worker.agent].leaving):
            return [self._tell_to_leave(worker, "the job is ending", now)]
        return self._proceed(now)

    def worker_in_loop(self, worker_id: str, now: float) -> list[Command]:
        """A founder has entered hvd.elastic.run: this script can be resized."""
        self.scalable = True
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.in_loop = True
            if worker.state is WorkerState.FINISHED:
                worker.state = WorkerState.TRAINING  # a second training function after the first one
        return self._proceed(now)

    def worker_progress(self, worker_id: str, commits: int) -> None:
        """Batches that the worker has committed."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.state is WorkerState.TRAINING:
            worker.commits = commits
            self.commits = max(self.commits, commits)

    def worker_arrived(self, worker_id: str, generation: int, commits: int, now: float) -> list[Command]:
        """A worker has left its generation and waits for the next one."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.state is WorkerState.GONE:
            # Its agent is gone, it is not: nobody else can tell it.
            return [Leave(worker_id, "it was believed dead, and the others went on without it")]
        if worker.state is WorkerState.FINISHED and worker.rank < 0:
            return [self._tell_to_leave(worker, "the others went on after it had finished", now)]
        if worker.state is not WorkerState.TRAINING or generation != self.generation:
            return []
        self.worker_progress(worker_id, commits)
        worker.state = WorkerState.ARRIVED
        if self._first_arrival is None:
            self._first_arrival = now
        return self._proceed(now)

    def worker_finished(self, worker_id: str, now: float) -> list[Command]:
        """The training function has returned in this worker."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.rank < 0:
            return []
        worker.state = WorkerState.FINISHED
        return self._finish(now) + self._proceed(now)

    def worker_exited(self, worker_id: str, exit_code: int, now: float) -> list[Command]:
        """A worker process has ended."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return []
        return self._gone(worker, exit_code, now) + self._proceed(now)

    def tick(self, now: float) -> list[Command]:
        """Enforce the bounds."""
        commands: list[Command] = []
        for worker in self._alive_workers():
            if worker.deadline is not None and now > worker.deadline:
                worker.deadline = None
                commands.append(Kill(worker.worker_id, worker.agent, f"{worker.state.value} for too long"))
        if self._first_arrival is not None and now > self._first_arrival + ARRIVAL_BOUND_S:
            self._first_arrival = now
            commands += [
                Kill(worker.worker_id, worker.agent, "did not reach the mini-batch boundary like the others")
                for worker in self._alive_workers()
                if worker.state is WorkerState.TRAINING
            ]
        return commands

    # --- steps -----------------------------------------------------------------------------------------

    def _add(self, agent: Agent, slot: int, now: float) -> Worker:
        """A worker to be: a founder if it belongs to the base and nothing was founded yet."""
        self._serial += 1
        worker = Worker(f"w{self._serial}", agent.name, slot, self.generation > 0 or not agent.base)
        if worker.newcomer:
            worker.deadline = now + WARM_UP_BOUND_S
        self._workers[worker.worker_id] = worker
        return worker

    def _start(self, worker: Worker) -> Start:
        return Start(worker.worker_id, worker.agent, worker.slot, worker.newcomer, self._outlook(worker))

    def _outlook(self, worker: Worker) -> Place:
        """Where the worker would be if everybody who is on the way joined: what rank() says meanwhile."""
        waiting = [
            w
            for w in self._alive_workers()
            if w.rank < 0 and w.state in (WorkerState.STARTING, WorkerState.READY)
        ]
        expected = places(self._in_order(self._current(), waiting))
        return next(place for place in expected if place.worker_id == worker.worker_id)

    def _gone(self, worker: Worker, exit_code: int, now: float) -> list[Command]:
        if worker.state is WorkerState.GONE:
            return []
        was = worker.state
        member, worker.rank = worker.rank >= 0, -1
        worker.state, worker.deadline = WorkerState.GONE, None
        if was is WorkerState.LEAVING:
            return []
        agent = self._agents[worker.agent]
        matters = member or was is WorkerState.FINISHED or not worker.newcomer
        if exit_code == 0 and matters and not agent.leaving:
            return self._finish(now)
        if matters and not (exit_code == 0 and was is WorkerState.FINISHED):
            self._note_failure(exit_code or 1)
        if self._finishing or agent.leaving:
            return []
        if not worker.newcomer and not worker.in_loop:
            self._doom(now)
        return [] if self._doomed else self._replace(worker, agent, now)

    def _note_failure(self, exit_code: int) -> None:
        """Keep the cause: the first failure, unless it was a bystander's and this one is the script's own."""
        if self._failure is None or (self._failure in _BYSTANDERS and exit_code > 1):
            self._failure = exit_code

    def _doom(self, now: float) -> None:
        """Without its training loop a script is as rigid as any: it ends; the others get time to notice."""
        self._doomed = True
        for worker in self._alive_workers():
            worker.deadline = worker.deadline or now + EXIT_BOUND_S

    def _replace(self, worker: Worker, agent: Agent, now: float) -> list[Command]:
        used = agent.restarts.get(worker.slot, 0)
        if used < RESTARTS_PER_SLOT:
            agent.restarts[worker.slot] = used + 1
            return [self._start(self._add(agent, worker.slot, now))]
        if agent.base:
            return []
        return self._send_away(agent, f"its workers died {used + 1} times", now)

    def _send_away(self, agent: Agent, why: str, now: float) -> list[Command]:
        """Workers that train leave at the next boundary, those that wait or start at once."""
        agent.leaving = why
        commands: list[Command] = []
        for worker in self._of(agent.name):
            if worker.state is WorkerState.READY and worker.newcomer:
                commands.append(self._tell_to_leave(worker, why, now))
            elif worker.state is WorkerState.STARTING:
                commands.append(Kill(worker.worker_id, worker.agent, why))
        return commands

    def _finish(self, now: float) -> list[Command]:
        """Nobody joins any more: newcomers and those who have nobody in the generation go."""
        if self._finishing:
            return []
        self._finishing = True
        commands: list[Command] = []
        for worker in self._alive_workers():
            if worker.newcomer and worker.rank < 0:
                if worker.state is WorkerState.READY:
                    commands.append(self._tell_to_leave(worker, "the job is ending", now))
                elif worker.state is WorkerState.STARTING:
                    commands.append(Kill(worker.worker_id, worker.agent, "the job is ending"))
        for agent in self._agents.values():
            if not agent.base and not self.agent_trains(agent.name):
                agent.leaving = agent.leaving or "the job is ending"
        return commands

    def _tell_to_leave(self, worker: Worker, why: str, now: float) -> Leave:
        worker.state, worker.rank = WorkerState.LEAVING, -1
        worker.deadline = now + EXIT_BOUND_S
        return Leave(worker.worker_id, why)

    def _dismiss(self, agent: Agent, why: str) -> list[Command]:
        if agent.dismissed:
            return []
        agent.dismissed, agent.leaving = True, agent.leaving or why
        return [Dismiss(agent.name, why)]

    def _proceed(self, now: float) -> list[Command]:
        """Do whatever has become possible; called after every event."""
        if self._ended:
            return []
        commands = self._found(now) if self.generation == 0 else self._switch(now)
        for agent in self._agents.values():
            over = agent.leaving or ("the job is ending" if self._finishing else "")
            if over and not agent.base and not any(map(self._alive, self._of(agent.name))):
                commands += self._dismiss(agent, over)
        return commands + self._end_if_over()

    def _found(self, now: float) -> list[Command]:
        """The first generation: every worker of the base, once all of them are in hvd.init."""
        founders = [worker for worker in self._alive_workers() if not worker.newcomer]
        ready = [worker for worker in founders if worker.state is WorkerState.READY]
        if len(ready) < self._base_workers or len(founders) > len(ready):
            return []
        return [self._form(self._in_order([], ready))]

    def _switch(self, now: float) -> list[Command]:
        """Interrupt the generation if anybody wants in or out; form the next when all have arrived."""
        current = self._current()
        arrived = [worker for worker in current if worker.state is WorkerState.ARRIVED]
        if arrived and all(worker.state is not WorkerState.TRAINING for worker in current):
            if self._doomed:
                return self._over(self._failure or 1, "a worker failed before its training loop")
            return self._next_generation(arrived, now)
        if arrived or self._interrupted or self._finishing or self._doomed or not self.scalable:
            return []
        joining = self._joiners()
        leaving = any(self._agents[worker.agent].leaving for worker in current)
        if not (joining or leaving) or not current or current[0].rank != 0:
            return []  # without rank 0 the generation ends by itself
        self._interrupted = True
        return [Interrupt(current[0].worker_id, self.generation)]

    def _joiners(self) -> list[Worker]:
        """Newcomers of agents all of whose workers are ready, in order of agent and slot."""
        result: list[Worker] = []
        for agent in self._agents.values():
            outside = [w for w in self._of(agent.name) if self._alive(w) and w.rank < 0]
            if outside and not agent.leaving and all(w.state is WorkerState.READY for w in outside):
                result += sorted(outside, key=lambda worker: worker.slot)
        return result

    def _next_generation(self, arrived: list[Worker], now: float) -> list[Command]:
        commands: list[Command] = []
        staying = []
        for worker in arrived:
            why = self._agents[worker.agent].leaving
            if why:
                commands.append(self._tell_to_leave(worker, why, now))
            else:
                staying.append(worker)
        if staying and max(worker.commits for worker in staying) == 0 < self.commits:
            # Only newcomers that had not received the model yet are left: nothing to go on from.
            staying = []
        if not staying:
            return [*commands, *self._over(self._failure or 1, "no worker that holds the model is left")]
        return [*commands, self._form(self._in_order(staying, self._joiners()))]

    def _in_order(self, staying: list[Worker], joining: list[Worker]) -> list[Worker]:
        """By rank: first who has committed most, because everybody takes over its state.

        An agent's workers stand together, by slot, those of the first one's agent before all others.
        """
        first = min(staying, key=lambda worker: (-worker.commits, worker.rank), default=None)
        agents = [*self._base_agents, *self._agents]

        def key(worker: Worker) -> tuple[bool, bool, int, bool, int]:
            with_first = first is not None and worker.agent == first.agent
            at = agents.index(worker.agent)
            return not with_first, not self._agents[worker.agent].base, at, worker is not first, worker.slot

        return sorted([*staying, *joining], key=key)

    def _form(self, order: list[Worker]) -> Form:
        for worker in self._workers.values():
            worker.rank = -1
        self.generation += 1
        self._interrupted, self._first_arrival, self._failure = False, None, None
        for rank, worker in enumerate(order):
            worker.rank, worker.state, worker.deadline = rank, WorkerState.TRAINING, None
        self.commits = order[0].commits
        return Form(self.generation, places(order), self.commits)

    def _end_if_over(self) -> list[Command]:
        if self._ended:
            return []
        if self.generation == 0:
            return self._end_if_nothing_can_be_founded()
        if any(worker.rank >= 0 or worker.state is WorkerState.FINISHED for worker in self._alive_workers()):
            return []
        if self._finishing:
            return self._over(self._failure or 0, "the script ended")
        return self._over(self._failure or 1, "no worker that holds the model is left")

    def _end_if_nothing_can_be_founded(self) -> list[Command]:
        if self._failure is not None:
            return self._over(self._failure, "a worker failed before training began")
        founders = [worker for worker in self._workers.values() if not worker.newcomer]
        alive = [worker for worker in founders if self._alive(worker)]
        if not self._finishing or len(founders) < self._base_workers:
            return []
        if not alive:
            return self._over(0, "the script ended")
        if all(worker.state is WorkerState.READY for worker in alive):
            return self._over(1, "some workers ended before hvd.init, in which the others wait for them")
        return []

    def _over(self, exit_code: int, why: str) -> list[Command]:
        self._ended = True
        code = 128 - exit_code if exit_code < 0 else exit_code
        commands: list[Command] = [
            Kill(worker.worker_id, worker.agent, why) for worker in self._alive_workers()
        ]
        for agent in self._agents.values():
            commands += self._dismiss(agent, why)
        return [*commands, End(code, why)]

    # --- small questions --------------------------------------------------------------------------------

    @staticmethod
    def _alive(worker: Worker) -> bool:
        return worker.state is not WorkerState.GONE

    def _alive_workers(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if self._alive(worker)]

    def _of(self, agent: str) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.agent == agent]

    def _current(self) -> list[Worker]:
        return sorted((w for w in self._alive_workers() if w.rank >= 0), key=lambda worker: worker.rank)
