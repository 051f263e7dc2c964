"""Who trains with whom: the workers of one job, generation after generation. Pure: events in, commands out.

A *generation* is one set of workers with one communicator. The next one is always built beside the present
one (change.py): newcomers warm up alone and build the new communicator together with those who train, and
everybody switches at one mini-batch boundary; those who leave end there. Nobody ever waits for a process that
is still importing. Resizes are sequential: what is asked for during one waits for its turn.

When a member dies the others are told at once to hang up. They go back to their last commit and wait; the
next generation is built for them in the same way, only that nobody trains meanwhile.

A leader that takes over a running job learns it all from what agents report of their workers.

Amoeba (Wu et al., "Elastic deep learning in multi-tenant GPU cluster"), sections 4 and 5.1, 5.2.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from horovod_elastic.leader.change import PREPARE_BOUND_S, Change, Stage
from horovod_elastic.leader.takeover import IN_A_GENERATION, LEAVE_BOUND_S, Running, Standing, Takeover
from horovod_elastic.phase import Phase

ARRIVAL_BOUND_S = 120.0
"""After a generation broke: how long its workers may take to be back at their last commit before they die."""
WARM_UP_BOUND_S = 600.0
"""How long newcomers may take from their start to being ready."""
EXIT_BOUND_S = 30.0
"""How long a worker that waits and is told to leave may take to exit."""
ENTER_BOUND_S = 30.0
"""How long one that waits and is called may take until it has entered the generation."""
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses after attempts at a change that failed; after as many, newcomers that take part are given up."""
RESTARTS_PER_SLOT = 3
"""How often a worker that died is started again in its place."""
_BYSTANDERS = (1, -6)
"""Exit codes of those who only lost a peer: an uncaught HorovodInternalError, or the native core's abort."""


class WorkerState(enum.Enum):
    """The life of one worker process, as the leader sees it."""

    STARTING = "starting"
    READY = "ready"
    """Waits to be called: a founder in hvd.init, a newcomer that is warm, or one that stepped aside."""
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
    entered: int = 0
    """The last generation that it has said it is in."""
    called: int = 0
    """The last generation that it was called to, as far as this leader knows: what it says of itself counts
    from then on."""
    waits: bool = False
    """Called from where it waited, and alone in the new generation until the others come."""
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
class Prepare:
    """Tell everybody in `places` to build the communicator of `generation`."""

    generation: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """That generation will not be."""

    generation: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask for the promise not to pass boundary `at` of the generation; at = 0: just where they are."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """They may pass boundary `at`, or (at = 0) any."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What one worker is told when the word is given."""

    worker_id: str
    at: int = 0
    """The boundary at which it switches; 0: it waits, and goes at once."""
    leave: str = ""
    """Why it ends there instead of going on."""
    aside: bool = False
    """It steps out there, and waits to be called back."""


@dataclass(frozen=True, slots=True)
class Go:
    """The word: `generation` begins."""

    generation: int
    sync: bool
    """Whether states are handed over: somebody is new, or the generation before broke."""
    commits: int
    """Mini-batches committed by that state, as far as is known."""
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """Somebody of `generation` is gone: the others are to hang up."""

    generation: int
    worker_ids: tuple[str, ...]
    why: str


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


Command = Start | Kill | Prepare | Abandon | Propose | Withdraw | Go | Broken | Leave | Dismiss | End


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
    `taking_over` is the time at which a new leader of a job that runs already began. It numbers generations
    and workers from `gap` beyond those that it hears of: not all that a former leader began is known to it.
    """

    def __init__(
        self,
        base_workers: int,
        base_agents: Sequence[str] = (),
        *,
        taking_over: float | None = None,
        gap: int = 100,
    ) -> None:
        self._base_workers = base_workers
        self._base_agents = list(base_agents)
        self._agents: dict[str, Agent] = {}
        self._workers: dict[str, Worker] = {}
        self._serial = 0
        self._gap = gap
        self._takeover: Takeover | None = None if taking_over is None else Takeover(taking_over)
        self._change: Change | None = None
        self._attempt = 0
        """The highest generation that anybody was ever told of."""
        self._failures = 0
        """Attempts at a change that failed, one after the other."""
        self._retry_at = 0.0
        self._broken_at: float | None = None
        """When the present generation broke."""
        self._limit: int | None = None
        self._finishing = False
        self._still_since: float | None = None
        self._unsure = False
        """Members were missing at a takeover, and nobody was in its training loop: ended, or lost?"""
        self._ended = False
        self._failure: int | None = None
        """Exit code of the worker that failed first in this generation: the job's, if it ends so."""
        self._doomed = False
        """A founder failed before its training loop: to start it again would not help, the job ends."""
        self.generation = 0
        self.scalable = False
        self.commits = 0
        self.progress = 0.0

    # --- what others may look at -------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Workers in the current generation that are still alive."""
        return len(self._current())

    @property
    def finishing(self) -> bool:
        """The training function has returned somewhere: nobody joins any more."""
        return self._finishing

    @property
    def changing(self) -> bool:
        """A resize is under way: a second one has to wait."""
        return self._change is not None or any(w.entered != self.generation for w in self._current())

    @property
    def broken(self) -> bool:
        """Somebody of the present generation is gone, or a collective of it failed: it ends."""
        return self._broken_at is not None

    @property
    def taking_over(self) -> bool:
        """A new leader that has not heard of everybody yet."""
        return self._takeover is not None

    @property
    def standing_still(self) -> bool:
        """Part of the job is suspended: see stand_still."""
        return self._still_since is not None

    def agent_trains(self, name: str) -> bool:
        """Whether any worker of this agent is in the current generation."""
        return any(worker.rank >= 0 for worker in self._of(name))

    def worker(self, worker_id: str) -> Worker | None:
        """The worker of that id, dead or alive."""
        return self._workers.get(worker_id)

    def present(self) -> list[Worker]:
        """Those who are in the current generation and alive, by rank."""
        return self._current()

    # --- events --------------------------------------------------------------------------------------

    def agent_joined(
        self, name: str, slots: int, base: bool, now: float, running: Sequence[Running] = ()
    ) -> list[Command]:
        """An agent is there and can start `slots` workers, or has come back with those that live."""
        known = self._agents.get(name)
        if known is not None and not known.dismissed:
            return self._stand(running, now)
        agent = self._agents[name] = Agent(name, slots, base)
        commands: list[Command] = []
        for each in running:
            commands += self._adopt(agent, each)
        if self._ended or (self._finishing and not base):
            return [*commands, *self._dismiss(agent, "the job is ending")]
        if self._takeover is not None:
            return [*commands, *self._take_over(now)]
        return [*commands, *self._fill(agent, now), *self._proceed(now)]

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
        if self.generation == 0 and self._takeover is None:
            self._failure = None  # nothing was trained yet: it comes again, and begins
        return commands + self._proceed(now)

    def release(self, name: str, why: str, now: float) -> list[Command]:
        """This agent has to go: its grant was withdrawn, or Slurm takes the node back."""
        agent = self._agents.get(name)
        if agent is None or agent.leaving:
            return []
        if self._takeover is not None:
            agent.leaving = why  # until everybody is known, its workers look as if they had yet to start
            return []
        return self._send_away(agent, why, now) + self._proceed(now)

    def limit(self, workers: int | None, now: float) -> list[Command]:
        """Train with at most so many (None: with all); the others step aside and stay warm."""
        self._limit = workers
        return self._proceed(now)

    def stand_still(self, still: bool, now: float) -> list[Command]:
        """Begin nothing and give nobody up while part of the job is suspended, or go on where it was."""
        if still is self.standing_still:
            return []
        if still:
            self._still_since = now
            return self._drop_change(now, failed=False)
        assert self._still_since is not None
        stood_s, self._still_since = now - self._still_since, None
        for worker in self._alive_workers():
            if worker.deadline is not None:
                worker.deadline += stood_s
        if self._broken_at is not None:
            self._broken_at += stood_s
        if self._takeover is not None:
            self._takeover.since += stood_s
        return self.tick(now)

    def worker_stands(self, worker_id: str, standing: Standing, now: float) -> list[Command]:
        """What a worker says of itself, whenever it changes and from time to time."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.state is WorkerState.GONE:
            # Its agent was believed gone, it is not: nobody else can tell it.
            if standing.phase in (Phase.READY, Phase.ARRIVED):
                return [Leave(worker_id, "it was believed dead, and the others went on without it")]
            return []
        if self._takeover is not None:
            self._takeover.hear(worker_id, standing)
            return self._take_over(now)
        self._note(worker, standing, now)
        if self._unsure and standing.in_loop:
            return self._know_better(now)
        phase = standing.phase
        if phase is Phase.READY and worker.state is WorkerState.STARTING:
            return self._ready(worker, now)
        if phase is Phase.ARRIVED and standing.called >= worker.called and not standing.going:
            return self._arrived(worker, now)
        if phase is Phase.FINISHED and standing.called >= worker.called:
            return self._finished(worker, standing, now)
        return self._proceed(now)

    def worker_prepared(self, worker_id: str, generation: int, failure: str, now: float) -> list[Command]:
        """A worker has built the communicator of `generation`, or could not."""
        change = self._change
        if change is None or change.generation != generation:
            return []
        if failure:
            return self._drop_change(now, failed=True) + self._proceed(now)
        if not change.has_prepared(worker_id, now):
            return []
        return self._ask() if change.stage is Stage.ASKING else self._go(now)

    def worker_accepted(
        self, worker_id: str, generation: int, at: int, boundary: int, passed: bool, now: float
    ) -> list[Command]:
        """A worker's answer to a question (at = 0) or a proposal."""
        change = self._change
        if change is None or generation != self.generation:
            return []
        if change.stage is Stage.ASKING and at == 0:
            return [Propose(self.generation, change.propose(boundary, now), change.holders)]
        if change.stage is not Stage.PROPOSED or at != change.at:
            return []
        if passed:
            withdraw = Withdraw(self.generation, at, change.holders)
            change.was_passed(now)
            return [withdraw, *self._ask()]
        return self._go(now) if change.has_promised(worker_id) else []

    def worker_exited(self, worker_id: str, exit_code: int, now: float) -> list[Command]:
        """A worker process has ended."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return []
        return self._gone(worker, exit_code, now) + self._proceed(now)

    def tick(self, now: float) -> list[Command]:
        """Enforce the bounds."""
        if self.standing_still:
            return []
        commands: list[Command] = []
        for worker in self._alive_workers():
            if worker.deadline is not None and now > worker.deadline:
                worker.deadline = None
                commands.append(Kill(worker.worker_id, worker.agent, f"{worker.state.value} for too long"))
        if self._broken_at is not None and now > self._broken_at + ARRIVAL_BOUND_S:
            self._broken_at = now
            commands += [
                Kill(worker.worker_id, worker.agent, "did not come back to its last commit like the others")
                for worker in self._current()
                if worker.state is WorkerState.TRAINING
            ]
        if self._change is not None and now > self._change.deadline:
            commands += self._drop_change(now, failed=True)
        if self._takeover is not None:
            return commands + self._take_over(now)
        return commands + self._proceed(now)

    # --- what workers say of themselves --------------------------------------------------------------

    def _note(self, worker: Worker, standing: Standing, now: float) -> None:
        if standing.in_loop:
            worker.in_loop = True
            self.scalable = self.scalable or worker.rank >= 0
            if worker.state is WorkerState.FINISHED and standing.phase is Phase.TRAINING:
                worker.state = WorkerState.TRAINING  # a second training function after the first one
        if worker.rank < 0:
            return
        worker.commits = standing.commits
        if standing.generation == self.generation:
            if worker.entered != self.generation:
                worker.entered = self.generation
                worker.deadline = now + EXIT_BOUND_S if self._doomed else None
            worker.waits = worker.waits and standing.boundary == 0
        if standing.phase is Phase.TRAINING:
            self.commits = max(self.commits, standing.commits)
            self.progress = max(self.progress, standing.progress)

    def _ready(self, worker: Worker, now: float) -> list[Command]:
        worker.state, worker.deadline = WorkerState.READY, None
        if worker.newcomer and (self._finishing or self._agents[worker.agent].leaving):
            return [self._tell_to_leave(worker, "the job is ending", now)]
        return self._proceed(now)

    def _arrived(self, worker: Worker, now: float) -> list[Command]:
        if worker.state is WorkerState.FINISHED and worker.rank < 0:
            return [self._tell_to_leave(worker, "the others went on after it had finished", now)]
        if worker.state is WorkerState.STARTING and worker.entered:
            return self._ready(worker, now)  # it was to step aside, and the generation broke before
        if worker.rank < 0 or worker.state is not WorkerState.TRAINING:
            return []
        if self._finishing and worker.waits:
            return [self._tell_to_leave(worker, "the job is ending", now), *self._proceed(now)]
        worker.state = WorkerState.ARRIVED
        return self._break("a collective failed", now) + self._proceed(now)

    def _finished(self, worker: Worker, standing: Standing, now: float) -> list[Command]:
        if worker.rank < 0 or worker.state is WorkerState.FINISHED:
            return []
        worker.state = WorkerState.FINISHED
        if not self._finishing:
            self._failure = None  # training has come to its end without whoever failed or was lost
        commands = self._finish(now)
        if standing.generation < self.generation:
            # It ended before the boundary at which it was to switch: nobody may wait for it beyond.
            waiting = [w.worker_id for w in self._current() if w.waits]
            commands.append(Broken(self.generation, tuple(waiting), "training ended before the switch"))
        return commands + self._proceed(now)

    def _stand(self, running: Sequence[Running], now: float) -> list[Command]:
        commands: list[Command] = []
        for each in running:
            commands += self.worker_stands(each.worker_id, each.standing, now)
        return commands

    def everybody_is_here(self, now: float) -> list[Command]:
        """To a new leader: no agent will attach that has not yet, so there is nobody to wait for."""
        if self._takeover is None:
            return []
        self._takeover.everybody = True
        return self._take_over(now)

    # --- a new leader ------------------------------------------------------------------------------------

    def _adopt(self, agent: Agent, running: Running) -> list[Command]:
        """A worker that lives on from before this leader, or from before its agent was lost."""
        if running.worker_id in self._workers:
            return [Kill(running.worker_id, agent.name, "the others went on without it")]
        number = running.worker_id[1:]
        self._serial = max(self._serial, int(number) if number.isdecimal() else 0)
        worker = Worker(running.worker_id, agent.name, running.slot, running.newcomer)
        self._workers[worker.worker_id] = worker
        if self._takeover is not None:
            self._takeover.hear(worker.worker_id, running.standing)
            return []
        worker.newcomer = True
        if running.standing.phase is Phase.READY:
            worker.state = WorkerState.READY
        elif running.standing.phase is not Phase.STARTING:
            # It is replaced when it has exited.
            return [Kill(worker.worker_id, agent.name, "the others went on without it")]
        return []

    def _take_over(self, now: float) -> list[Command]:
        """Lead as soon as everybody of the generation is known, or the bound is over."""
        takeover = self._takeover
        assert takeover is not None
        if not takeover.complete() and (self.standing_still or takeover.may_wait(now)):
            return []
        self._takeover = None
        self._serial += self._gap
        if all(agent.dismissed for agent in self._agents.values()):
            return self._over(1, "nobody is left")
        standings = takeover.standings
        self.generation = takeover.generation
        self._attempt = max([self.generation, *(s.prepared for s in standings.values())]) + self._gap
        # Not all in one generation: the former leader died in the middle of a change, or with some of them.
        whole = takeover.complete()
        members = self._settle_all(takeover, whole, now)
        commands: list[Command] = [
            Withdraw(self.generation, 0, tuple(standings)),
            Abandon(self._attempt, tuple(standings)),
        ]
        if members and not whole and not any(standing.in_loop for standing in standings.values()):
            self._unsure = self._finishing = True  # if they are lost, the others will notice
        elif members and (not whole or any(each.phase is Phase.ARRIVED for each in members.values())):
            commands += self._break("it lost workers together with its leader", now)
        for worker_id, exit_code in takeover.gone:
            commands += self._gone(self._workers[worker_id], exit_code, now)
        for agent in self._agents.values():
            if agent.leaving and not agent.dismissed:
                commands += self._send_away(agent, agent.leaving, now)
            commands += self._fill(agent, now)
        return commands + self._proceed(now)

    def _settle_all(self, takeover: Takeover, whole: bool, now: float) -> dict[str, Standing]:
        """Where everybody stands, in this leader's words; those who are members of the generation."""
        left = takeover.left()
        members = {
            worker_id: standing
            for worker_id, standing in takeover.standings.items()
            if standing.phase in IN_A_GENERATION
            and worker_id not in left
            and (standing.generation == self.generation if whole else standing.called > 0)
        }
        for worker_id, standing in takeover.standings.items():
            self._settle(self._workers[worker_id], standing, worker_id in members, now)
        for leaver in map(self._workers.__getitem__, left):
            leaver.state, agent = WorkerState.LEAVING, self._agents[leaver.agent]
            if not agent.base:
                agent.leaving = agent.leaving or "the leader before has let its workers go"
        return members

    def _know_better(self, now: float) -> list[Command]:
        """Somebody is in the training loop after all, in a generation that lacks members."""
        self._unsure = self._finishing = False
        commands = self._break("it lost workers together with its leader", now)
        for agent in self._agents.values():
            commands += self._fill(agent, now)
        return commands + self._proceed(now)

    def _settle(self, worker: Worker, standing: Standing, member: bool, now: float) -> None:
        """Where a worker stands, in this leader's words."""
        worker.in_loop, worker.commits, worker.entered = (
            standing.in_loop,
            standing.commits,
            standing.generation,
        )
        worker.called, worker.state = standing.called, WorkerState[standing.phase.name]
        if not member and self.generation:
            worker.newcomer = True
        if standing.phase in IN_A_GENERATION and not member:
            self._expect_aside(worker, now)
        if member:
            self.scalable = self.scalable or standing.in_loop
            worker.rank = standing.rank
            self.commits = max(self.commits, standing.commits)
            self.progress = max(self.progress, standing.progress)
            self._finishing = self._finishing or standing.phase is Phase.FINISHED

    # --- steps -----------------------------------------------------------------------------------------

    def _fill(self, agent: Agent, now: float) -> list[Command]:
        """Start workers in the slots that have none."""
        if agent.leaving or (self._finishing and (self.generation > 0 or not agent.base)):
            return []
        taken = {worker.slot for worker in self._of(agent.name) if self._alive(worker)}
        free = [slot for slot in range(agent.slots) if slot not in taken]
        added = [self._add(agent, slot, now) for slot in free]
        return [self._start(worker) for worker in added]

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
        if self._takeover is not None:
            self._takeover.gone.append((worker.worker_id, exit_code))
            return []
        was = worker.state
        member, worker.rank = worker.rank >= 0, -1
        worker.state, worker.deadline = WorkerState.GONE, None
        commands: list[Command] = []
        if self._change is not None and worker.worker_id in {*self._change.members, *self._change.holders}:
            commands += self._drop_change(now, failed=False)
        if was is WorkerState.LEAVING:
            return commands
        agent = self._agents[worker.agent]
        matters = member or _end_matters(worker, was, exit_code)
        if exit_code == 0 and matters and not agent.leaving:
            return commands + self._finish(now)
        if matters and not (exit_code == 0 and was is WorkerState.FINISHED):
            self._note_failure(exit_code or 1)
        if member and was in (WorkerState.TRAINING, WorkerState.ARRIVED):
            commands += self._break(f"worker {worker.worker_id} is gone", now)
        if self._finishing or agent.leaving:
            return commands
        if not worker.newcomer and not worker.in_loop:
            self._doom(now)
        return commands if self._doomed else [*commands, *self._replace(worker, agent, now)]

    def _break(self, why: str, now: float) -> list[Command]:
        """The generation is over: those who train in it are told, once."""
        commands = self._drop_change(now, failed=False)
        if self._broken_at is None:
            self._broken_at = now
            training = [w.worker_id for w in self._current() if w.state is WorkerState.TRAINING]
            if training:
                commands.append(Broken(self.generation, tuple(training), why))
        return commands

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
        if any(self._alive(other) and other.slot == worker.slot for other in self._of(agent.name)):
            return []  # it was replaced before, and its end is told again
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
        change = self._change
        if change is not None and any(w.worker_id in change.members for w in self._of(agent.name)):
            commands += self._drop_change(now, failed=False)
        for worker in self._of(agent.name):
            if worker.state is WorkerState.READY and worker.newcomer:
                commands.append(self._tell_to_leave(worker, why, now))
            elif worker.state is WorkerState.STARTING and not worker.entered:
                commands.append(Kill(worker.worker_id, worker.agent, why))
        return commands

    def _finish(self, now: float) -> list[Command]:
        """Nobody joins any more: newcomers and those who have nobody in the generation go."""
        if self._finishing:
            return []
        self._finishing = True
        commands = self._drop_change(now, failed=False)
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
        if self._ended or self._takeover is not None:
            return []
        commands = self._next_change(now)
        for agent in self._agents.values():
            over = agent.leaving or ("the job is ending" if self._finishing else "")
            if over and not agent.base and not any(map(self._alive, self._of(agent.name))):
                commands += self._dismiss(agent, over)
        return commands + self._end_if_over()

    # --- changes -----------------------------------------------------------------------------------------

    def _next_change(self, now: float) -> list[Command]:
        """Begin a change if one is due and none is under way."""
        if self._change is not None or now < self._retry_at or self.standing_still:
            return []
        if self.generation == 0:
            return self._found(now)
        if self._broken_at is not None:
            return self._recover(now)
        return self._resize(now)

    def _found(self, now: float) -> list[Command]:
        """The first generation: every worker of the base, once all of them are in hvd.init."""
        founders = [worker for worker in self._alive_workers() if not worker.newcomer]
        ready = [worker for worker in founders if worker.state is WorkerState.READY]
        if len(ready) < self._base_workers or len(founders) > len(ready):
            return []
        return self._begin(self._in_order([], ready), [], now)

    def _recover(self, now: float) -> list[Command]:
        """After a generation broke: the next one, once all who are left are back at their last commit."""
        current = self._current()
        if any(worker.state is WorkerState.TRAINING for worker in current):
            return []
        arrived = [worker for worker in current if worker.state is WorkerState.ARRIVED]
        if not arrived:
            return []
        if self._doomed:
            return self._over(self._failure or 1, "a worker failed before its training loop")
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
        joining = [] if self._finishing else self._joiners(len(staying))
        return [*commands, *self._begin(self._in_order(staying, joining), [], now)]

    def _resize(self, now: float) -> list[Command]:
        """A planned change, if anybody wants in or has to go out."""
        current = self._current()
        if self._finishing or self._doomed or not self.scalable or not current:
            return []
        if not all(w.state is WorkerState.TRAINING and w.entered == self.generation for w in current):
            return []
        staying = [worker for worker in current if not self._agents[worker.agent].leaving]
        if self._limit is not None:
            staying = staying[: max(1, self._limit)]
        joining = self._joiners(len(staying))
        if not staying:
            if not joining:
                return []  # they hold the model: somebody has to take it over first
            staying = current
        if len(staying) == len(current) and not joining:
            return []
        return self._begin(self._in_order(staying, joining), current, now)

    def _joiners(self, staying: int) -> list[Worker]:
        """Newcomers of agents all of whose workers are ready, in order of agent and slot, up to the limit."""
        result: list[Worker] = []
        for agent in self._agents.values():
            outside = [w for w in self._of(agent.name) if self._alive(w) and w.rank < 0]
            if outside and not agent.leaving and all(w.state is WorkerState.READY for w in outside):
                result += sorted(outside, key=lambda worker: worker.slot)
        return result if self._limit is None else result[: max(0, self._limit - staying)]

    def _begin(self, order: list[Worker], holders: list[Worker], now: float) -> list[Command]:
        self._attempt += 1
        self._change = Change(
            generation=self._attempt,
            members=tuple(worker.worker_id for worker in order),
            holders=tuple(worker.worker_id for worker in holders),
            deadline=now + PREPARE_BOUND_S,
        )
        return [Prepare(self._attempt, places(order))]

    def _ask(self) -> list[Command]:
        """Where is rank 0?"""
        return [Propose(self.generation, 0, (self._current()[0].worker_id,))]

    def _drop_change(self, now: float, *, failed: bool) -> list[Command]:
        """Give an attempt up; `failed`: not for a new reason, so the next one waits a little."""
        change, self._change = self._change, None
        if change is None:
            return []
        commands: list[Command] = []
        if change.stage is Stage.PROPOSED:
            commands.append(Withdraw(self.generation, change.at, self._living(change.holders)))
        commands.append(Abandon(change.generation, self._living(change.members)))
        if not failed:
            return commands
        self._failures += 1
        self._retry_at = now + RETRY_S[min(self._failures, len(RETRY_S)) - 1]
        if self._failures >= len(RETRY_S):
            self._failures = 0
            commands += self._give_up_on(change)
        return commands

    def _give_up_on(self, change: Change) -> list[Command]:
        """Newcomers with whom no communicator can be built go; they may be the reason."""
        return [
            Kill(worker.worker_id, worker.agent, "it could not be connected with the others")
            for worker in self._alive_workers()
            if worker.worker_id in change.members and worker.rank < 0 and worker.newcomer
        ]

    def _go(self, now: float) -> list[Command]:
        """Give the word, and believe from now on that it is carried out."""
        change, self._change = self._change, None
        assert change is not None
        members = [self._workers[worker_id] for worker_id in change.members]
        present = self._current()
        calls = [self._call(worker, change) for worker in present if worker.worker_id in change.holders]
        calls += [Call(worker.worker_id) for worker in members if worker.worker_id not in change.holders]
        for call in calls:
            self._workers[call.worker_id].called = change.generation
        new = [worker for worker in members if worker.rank < 0]
        sync = bool(new) or not change.planned
        leaving = [
            worker for worker in present if worker not in members and worker.state is WorkerState.TRAINING
        ]
        for worker in leaving:
            self._let_go(worker, now)
        self.generation, self._failures, self._failure, self._broken_at = change.generation, 0, None, None
        for worker in present:
            worker.rank = -1
        for rank, worker in enumerate(members):
            worker.rank, worker.state = rank, WorkerState.TRAINING
            worker.waits = worker.worker_id not in change.holders
            worker.deadline = now + ENTER_BOUND_S if worker.waits else None
        self.commits = members[0].commits
        return [Go(self.generation, sync, self.commits, tuple(calls)), *self._proceed(now)]

    def _call(self, worker: Worker, change: Change) -> Call:
        """What somebody is told who trains."""
        if worker.worker_id in change.members:
            return Call(worker.worker_id, change.at)
        why = self._agents[worker.agent].leaving
        return Call(worker.worker_id, change.at, leave=why, aside=not why)

    def _let_go(self, worker: Worker, now: float) -> None:
        """Out of the generation: to its end, or aside."""
        worker.rank = -1
        if self._agents[worker.agent].leaving:
            worker.state, worker.deadline = WorkerState.LEAVING, now + LEAVE_BOUND_S
        else:
            self._expect_aside(worker, now)

    def _expect_aside(self, worker: Worker, now: float) -> None:
        """It has the word to step out, or to leave, and trains until the boundary: ready when it says so."""
        worker.state, worker.newcomer, worker.deadline = WorkerState.STARTING, True, now + LEAVE_BOUND_S

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

    # --- the end -----------------------------------------------------------------------------------------

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

    def _living(self, worker_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(worker_id for worker_id in worker_ids if self._alive(self._workers[worker_id]))

    def _alive_workers(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if self._alive(worker)]

    def _of(self, agent: str) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.agent == agent]

    def _current(self) -> list[Worker]:
        return sorted((w for w in self._alive_workers() if w.rank >= 0), key=lambda worker: worker.rank)


def _end_matters(worker: Worker, was: WorkerState, exit_code: int) -> bool:
    """Whether the end of a worker that is in no generation says something of the job."""
    if was is WorkerState.FINISHED:
        return exit_code not in _BYSTANDERS  # lost a peer in hvd.join, and the others went on without it
    return not worker.newcomer
