"""A simulated job around a Membership: agents and workers that do what it says, and what chance says.

Workers play their own side (worker/participant_state.py) as in a real job. Messages wait in queues until
delivered, and collectives need everybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from horovod_elastic.leader.membership.commands import (
    Abandon,
    Broken,
    Command,
    Dismiss,
    End,
    Go,
    GoBack,
    Kill,
    Leave,
    Prepare,
    Propose,
    RankAssignment,
    Start,
    Withdraw,
    WorkerFailed,
)
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.roster import Running, WorkerStatus
from horovod_elastic.leader.membership.virtual_workers import Slot, VirtualWorkers
from horovod_elastic.phase import Phase
from horovod_elastic.worker.participant_state import Called, ParticipantState

RELEASED = "given back"


@dataclass
class Process:
    """A worker process as it is in the world, whatever membership believes."""

    agent: str
    slot: int
    newcomer: bool
    part: ParticipantState = field(default_factory=ParticipantState)
    prepared: int = 0
    batch_done: bool = False
    """Its collectives of the present mini-batch are through, the boundary is not passed."""
    inbox: deque[Callable[[], None]] = field(default_factory=deque)
    layout: str = ""
    told_first: bool = False
    """Whether its script was told rank 0: such scripts take the state from any rank."""
    told: int = 0
    """The last generation whose word is in `inbox`, or was."""
    outbox: deque[Callable[[Membership], list[Command]]] = field(default_factory=deque)

    @property
    def moment(self) -> str:
        return self.part.phase.name.lower()

    @property
    def commits(self) -> int:
        return self.part.commits


@dataclass
class Form:
    """A generation that the word was given for."""

    generation: int
    places: tuple[RankAssignment, ...]
    go: Go | None = None
    reached: dict[str, int] = field(default_factory=dict)
    """Worker -> the last boundary it has passed in it; dead or gone ones keep theirs."""
    left: set[str] = field(default_factory=set)
    """Gone from it, in order or not."""
    commits: int = -1
    """Of the state that rank 0 brought."""

    def members(self) -> list[str]:
        return [place.worker_id for place in self.places]


@dataclass
class World:
    """Delivers events, carries out commands, and checks after each what must always hold."""

    base: dict[str, int]
    members: Membership = field(init=False)
    now: float = 0.0
    agents: dict[str, int] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    prepared: dict[int, Form] = field(default_factory=dict)
    forms: list[Form] = field(default_factory=list)
    leaders: int = 1
    end: End | None = None
    dismissed: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    ended: dict[str, list[tuple[Running, int]]] = field(default_factory=dict)
    """By agent, its workers that have ended, as they stood, and their exit codes: leaders are told again."""
    told_to_leave: set[str] = field(default_factory=set)
    outlooks: dict[str, RankAssignment] = field(default_factory=dict)
    unit: int = 1
    """The number of workers that come and go together."""
    outlives: bool = False
    """Whether those who train go on without one that dies, unless it was rank 0 (`--core=service`)."""
    steps: list[int] = field(default_factory=list)
    """Mini-batches of the states after each collective, in order of time: none may be left out."""
    virtual: int = 0
    """The number of virtual workers, in reproducible mode."""
    minimum: int = 0
    """That of an opportunistic job, whose base has no workers; else 0."""
    stored: int | None = None
    """The commits of the state that is parked in the base; None if there is none."""
    failed: list[WorkerFailed] = field(default_factory=list)
    """The failures of new workers that the user is told of."""
    went_back: int = 0
    """How often training went back to the parked state."""

    def __post_init__(self) -> None:
        self.members = self._membership()

    def _membership(self, *, taking_over: float | None = None) -> Membership:
        slots = [Slot(agent, number) for agent, count in self.base.items() for number in range(count)]
        virtual = VirtualWorkers(self.virtual, slots) if self.virtual else None
        return Membership(
            sum(self.base.values()) or self.minimum,
            list(self.base),
            taking_over=taking_over,
            gap=100 * self.leaders,
            unit=self.unit,
            virtual=virtual,
            minimum=self.minimum,
            parked=self.stored,
        )

    # --- what can happen ----------------------------------------------------------------------

    def join(self, agent: str, slots: int) -> None:
        self.agents[agent] = slots
        self.obey(self.members.agent_joined(agent, slots, agent in self.base, self.now))

    def lose(self, agent: str) -> None:
        """An agent and all its workers are gone."""
        self.agents.pop(agent, None)
        self.ended.pop(agent, None)
        for worker_id in self.of(agent):
            self._die(worker_id)
        self.obey(self.members.agent_lost(agent, "lost", self.now))

    def release(self, agent: str) -> None:
        self.released.add(agent)
        self.obey(self.members.release(agent, RELEASED, self.now))

    def exit(self, worker_id: str, exit_code: int) -> None:
        process = self.processes.get(worker_id)
        if process is not None:
            while process.outbox:
                self.obey(process.outbox.popleft()(self.members))
            known = Running(worker_id, process.slot, process.newcomer, self._as_its_agent_knows(worker_id))
            self.ended.setdefault(process.agent, []).append((known, exit_code))
            self._die(worker_id)
            self.obey(self.members.worker_exited(worker_id, exit_code, self.now))

    def ready(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        if process.part.phase is Phase.STARTING:
            process.part.in_loop = process.newcomer
            process.part.wait_ready()
            self.stand(worker_id)
            self.flush()

    def enter_loop(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        if process.part.phase is Phase.TRAINING and not process.part.in_loop:
            process.part.in_loop = True
            self.stand(worker_id)
            self.flush()

    def new_leader(
        self, dies_with_it: str = "", *, satellites_first: bool = False, passed_on: bool = False
    ) -> None:
        """The leader is gone, with what was on its way; perhaps with its own agent.

        passed_on: what was on its way to workers had reached their agents, and comes later.
        """
        for worker_id in self.of(dies_with_it):
            self._die(worker_id)
        self.agents.pop(dies_with_it, None)
        self.ended.pop(dies_with_it, None)
        self.leaders += 1
        self.members = self._membership(taking_over=self.now)
        for process in self.processes.values():
            process.outbox.clear()
            if not passed_on:
                process.inbox.clear()
                process.told = 0
        attaching = sorted(self.agents.items(), key=lambda each: (each[0] in self.base) == satellites_first)
        for agent, slots in attaching:
            running = [
                Running(worker_id, process.slot, process.newcomer, self._as_its_agent_knows(worker_id))
                for worker_id, process in self.processes.items()
                if process.agent == agent
            ]
            ended = self.ended.get(agent, [])[-3:]
            running += [known for known, _ in ended]
            self.obey(self.members.agent_joined(agent, slots, agent in self.base, self.now, running))
            for known, exit_code in ended:
                self.obey(self.members.worker_exited(known.worker_id, exit_code, self.now))
            if agent in self.released:  # as it says of itself at once, or flexod of its grant
                self.release(agent)
        if not dies_with_it:
            self.obey(self.members.everybody_is_here(self.now))

    def fail(self, worker_id: str) -> None:
        """A collective fails here, though nobody has died."""
        process = self.processes[worker_id]
        if process.part.phase is Phase.TRAINING and process.part.in_loop:
            self._go_back(worker_id)

    def deliver(self, worker_id: str) -> bool:
        """One message to this worker or from it; False when there is none."""
        process = self.processes.get(worker_id)
        if process is None:
            return False
        if process.inbox:
            process.inbox.popleft()()
        elif process.outbox:
            self.obey(process.outbox.popleft()(self.members))
        else:
            return False
        return True

    def flush(self) -> None:
        """Deliver everything that is under way."""
        for _ in range(10_000):
            if not sum(self.deliver(worker_id) for worker_id in list(self.processes)):
                return
        raise AssertionError("messages go round for ever")

    def step(self, worker_id: str) -> None:
        """This worker goes as far as the others and its promises allow: one mini-batch at most."""
        process = self.processes.get(worker_id)
        if process is None or process.part.phase is not Phase.TRAINING or not process.part.in_loop:
            return
        part = process.part
        form = self.prepared[part.generation]
        if not process.batch_done:
            missing = [w for w in form.members() if form.reached.get(w, -1) < part.boundary]
            if self.outlives and form.members()[0] in self.processes:
                missing = [w for w in missing if w in self.processes]
            if part.broken >= part.generation or any(w in form.left for w in missing):
                self._go_back(worker_id)
                return
            if missing:
                return
            self._complete_batch(worker_id, process, form)
        if part.may_pass():
            word = part.pass_boundary()
            process.batch_done = False
            form.reached[worker_id] = part.boundary
            if word is not None:
                self._carry_out(worker_id, word)
        self.stand(worker_id)

    def commit(self) -> None:
        """All train, and whatever change is due comes to its end."""
        for _ in range(8):
            self.flush()
            for worker_id in list(self.processes):
                self.step(worker_id)
        self.flush()

    def train(self, batches: int) -> None:
        """This many rounds of mini-batches, as far as the job can take them."""
        for _ in range(batches):
            self.commit()

    def finish(self) -> None:
        """The training function returns everywhere."""
        self.align()
        training = self.training()
        together = {self._place_in_time(process) for process in training.values()}
        if not training or len(together) != 1 or not self.all_in_loop():
            return
        form = self.prepared[next(iter(together))[0]]
        if set(training) < set(form.members()) or any(p.part.word for p in training.values()):
            return
        for worker_id, process in training.items():
            process.part.finish()
            self.stand(worker_id)
        self.flush()

    def align(self) -> None:
        """Those who are behind catch up, as scripts end after the same mini-batch everywhere."""
        for _ in range(100):
            self.flush()
            times = {w: self._place_in_time(p) for w, p in self.training().items()}
            if len(set(times.values())) < 2:
                return
            for worker_id in [w for w, time in times.items() if time == min(times.values())]:
                self.step(worker_id)

    @staticmethod
    def _place_in_time(process: Process) -> tuple[int, int, bool]:
        return process.part.generation, process.part.boundary, process.batch_done

    def live(self, seconds: float) -> None:
        """So much time goes by, in which workers say, as they do every second, how they stand."""
        for worker_id in list(self.processes):
            self.stand(worker_id)
        self.flush()
        self.tick(seconds)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.obey(self.members.tick(self.now))

    def quieten(self) -> None:
        """Let everything that is under way come to its end: then the job trains, or is over."""
        for _ in range(60):
            for worker_id in list(self.processes):
                process = self.processes.get(worker_id)
                if process is None:
                    continue
                if process.part.phase is Phase.FINISHED:
                    self.exit(worker_id, 0)
                elif process.part.phase is Phase.STARTING:
                    self.ready(worker_id)
                elif process.part.phase is Phase.TRAINING:
                    self.enter_loop(worker_id)
            self.commit()
            self.live(1.0)

    # --- looking at it ---------------------------------------------------------------------------

    def of(self, agent: str) -> list[str]:
        return [worker_id for worker_id, process in self.processes.items() if process.agent == agent]

    def training(self) -> dict[str, Process]:
        """Those alive and training, by rank."""
        found = [(p.part.rank, w, p) for w, p in self.processes.items() if p.part.phase is Phase.TRAINING]
        return {worker_id: process for _, worker_id, process in sorted(found, key=lambda each: each[:2])}

    def all_in_loop(self) -> bool:
        return all(process.part.in_loop for process in self.training().values())

    def status(self, worker_id: str) -> WorkerStatus:
        process = self.processes[worker_id]
        part = process.part
        return WorkerStatus(
            phase=part.phase,
            generation=part.generation,
            rank=part.rank,
            size=part.size,
            commits=part.commits,
            boundary=part.boundary,
            in_loop=part.in_loop,
            holding=part.holding,
            prepared=process.prepared,
            called=part.called,
            going=part.going,
            layout=process.layout,
            told_first=process.told_first,
            outlives=self.outlives,
        )

    def _as_its_agent_knows(self, worker_id: str) -> WorkerStatus:
        status = self.status(worker_id)
        return replace(status, called=max(status.called, self.processes[worker_id].told))

    def stand(self, worker_id: str) -> None:
        """The worker says how it stands."""
        if worker_id in self.processes:
            status = self.status(worker_id)
            self._say(worker_id, lambda members: members.worker_stands(worker_id, status, self.now))

    # --- workers ----------------------------------------------------------------------------------

    def _complete_batch(self, worker_id: str, process: Process, form: Form) -> None:
        """Its collectives are through: with the first ones it has taken over rank 0's state."""
        part = process.part
        if part.boundary == 0 and form.go is not None and form.go.sync:
            part.commits = form.commits
        part.commits += 1
        process.batch_done = True
        assert not self.steps or part.commits <= max(self.steps) + 1, "no batch is left out"
        self.steps.append(part.commits)

    def _carry_out(self, worker_id: str, word: Called) -> None:
        old = self.prepared[self.processes[worker_id].part.generation]
        old.left.add(worker_id)
        if word.parks and self.processes[worker_id].part.rank == 0:
            self.park(worker_id)
        if word.leave:
            self.told_to_leave.add(worker_id)
            self.exit(worker_id, 0)
        elif word.aside:
            self.processes[worker_id].part.wait_ready()
            self.stand(worker_id)
        else:
            self._enter(worker_id, word)

    def park(self, worker_id: str) -> None:
        """The base keeps this worker's state, if it is still the job's."""
        if not self.members.may_park(worker_id):
            return
        commits = self.processes[worker_id].part.commits
        if self.stored is None or commits >= self.stored:
            self.stored = commits
            self.obey(self.members.parked(commits, self.now))

    def _enter(self, worker_id: str, word: Called) -> None:
        process, form = self.processes[worker_id], self.prepared[word.generation]
        assert process.prepared == word.generation, "only what stands can be entered"
        place = next(place for place in form.places if place.worker_id == worker_id)
        if self.virtual:
            assert (place.rank, place.size) == (self.outlooks[worker_id].rank, self.virtual), "as it was told"
            there = [each.worker_id for each in form.places if each.worker_id in self.processes]
            root = max(there, key=lambda each: self.processes[each].part.commits)
        else:
            root = next(each.worker_id for each in form.places if self._can_be_root(each.worker_id))
        if form.go is not None and form.go.resumes:
            assert self.stored is not None, "there is a state to go on from"
            form.commits = self.stored
        elif worker_id == root:
            form.commits = process.part.commits
        elif word.at and form.commits >= 0:
            assert process.part.commits == form.commits, "all switch after the same batch"
        process.part.enter(word, place.rank, place.size)
        process.batch_done = False
        form.reached[worker_id] = 0
        self.stand(worker_id)

    def _can_be_root(self, worker_id: str) -> bool:
        """Horovod's rank 0 gives the state; scripts of torch.distributed take it from any that has it."""
        process = self.processes[worker_id]
        return not process.layout or process.part.commits > 0

    def _go_back(self, worker_id: str) -> None:
        """A collective failed."""
        process = self.processes[worker_id]
        self.prepared[process.part.generation].left.add(worker_id)
        process.part.go_back()
        process.batch_done = False
        self.stand(worker_id)
        self._take_call(worker_id)

    def _take_call(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        if process.part.phase not in (Phase.READY, Phase.ARRIVED):
            return
        word = process.part.take_call()
        if word is None:
            return
        if word.leave:
            self.told_to_leave.add(worker_id)
            self.exit(worker_id, 0)
        else:
            self.stand(worker_id)  # as it does from time to time, even on its way
            self._enter(worker_id, word)

    def _say(self, worker_id: str, event: Callable[[Membership], list[Command]]) -> None:
        self.processes[worker_id].outbox.append(event)

    def _tell(self, worker_id: str, hear: Callable[[Process], None]) -> None:
        process = self.processes.get(worker_id)
        if process is not None:
            process.inbox.append(lambda: hear(process))

    # --- obeying ----------------------------------------------------------------------------------

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            self._obey(command)
        # Processes die after everything was said: kills are orders to agents, seen later by the leader.
        for command in commands:
            if isinstance(command, Kill):
                self._check_kill(command)
                self.exit(command.worker_id, -9)
        for agent in self.dismissed & self.agents.keys():
            self.lose(agent)

    def _check_kill(self, kill: Kill) -> None:
        process = self.processes.get(kill.worker_id)
        trains = process is not None and process.part.phase is Phase.TRAINING
        assert not (trains and kill.why == RELEASED), "who trains leaves at a boundary"

    def _obey(self, command: Command) -> None:
        match command:
            case End():
                assert self.end is None, "it ends once"
                self.end = command
            case Start():
                self._start(command)
            case Prepare():
                self._prepare(command)
            case Go():
                self._go(command)
            case Dismiss():
                self.dismissed.add(command.agent)
            case Leave():
                self._tell(command.worker_id, self._hears_leave(command.worker_id))
            case WorkerFailed():
                self.failed.append(command)
            case GoBack():
                self.went_back += 1
                self.steps.clear()  # training repeats what was not parked
            case _:
                self._tell_several(command)

    def _tell_several(self, command: Command) -> None:
        match command:
            case Abandon():
                for worker_id in command.worker_ids:
                    self._tell(worker_id, lambda process: self._abandoned(process, command.generation))
            case Propose():
                for worker_id in command.worker_ids:
                    self._tell(worker_id, self._hears_proposal(worker_id, command))
            case Withdraw():
                for worker_id in command.worker_ids:
                    self._tell(worker_id, lambda p: p.part.withdrawn(command.generation, command.at))
            case Broken():
                for worker_id in command.worker_ids:
                    self._tell(worker_id, lambda p: p.part.is_broken(command.generation) and None)

    def _start(self, start: Start) -> None:
        assert self.end is None, "nothing starts after the end"
        assert start.agent in self.agents, "only agents that are there start workers"
        slots = [w for w in self.of(start.agent) if self.processes[w].slot == start.slot]
        if self.virtual:
            slots = [w for w in slots if self.outlooks[w].rank == start.projected_rank.rank]
        assert not slots, "one worker a slot, or one for each virtual worker"
        assert start.worker_id not in self.processes
        self.outlooks[start.worker_id] = start.projected_rank
        process = Process(start.agent, start.slot, start.newcomer)
        if self.virtual:
            process.layout, process.part.rank = "that of all", start.projected_rank.rank
        self.processes[start.worker_id] = process

    def _prepare(self, prepare: Prepare) -> None:
        check_places(prepare.places, of_horovod=not self.virtual)
        self._check_units(prepare.places)
        assert prepare.generation not in self.prepared, "every attempt has a number of its own"
        self.prepared[prepare.generation] = Form(prepare.generation, prepare.places)
        for place in prepare.places:

            def hear(process: Process, worker_id: str = place.worker_id) -> None:
                process.prepared = prepare.generation
                self._say(
                    worker_id,
                    lambda members: members.worker_prepared(worker_id, prepare.generation, "", self.now),
                )

            self._tell(place.worker_id, hear)

    def _check_units(self, places: tuple[RankAssignment, ...]) -> None:
        """Each unit is whole, on one agent, and its workers keep their places in it."""
        known = [(each.agent, self.processes[each.worker_id].slot) for each in places]
        for first in range(0, len(known), self.unit):
            agent, slot = known[first]
            assert known[first : first + self.unit] == [(agent, slot + each) for each in range(self.unit)]
            assert slot % self.unit == 0

    def _abandoned(self, process: Process, generation: int) -> None:
        kept = (process.part.generation, process.part.called)  # a word that was given stands
        if process.prepared <= generation and process.prepared not in kept:
            process.prepared = 0

    def _hears_proposal(self, worker_id: str, propose: Propose) -> Callable[[Process], None]:
        def hear(process: Process) -> None:
            answer = process.part.proposed(propose.generation, propose.at)
            self._say(
                worker_id,
                lambda members: members.worker_accepted(
                    worker_id, answer.generation, answer.at, answer.boundary, answer.passed, self.now
                ),
            )

        return hear

    def _go(self, go: Go) -> None:
        if go.parks:
            assert all(call.leave for call in go.calls), "all leave"
            form = Form(go.generation, ())
        else:
            form = self.prepared[go.generation]
        form.go = go
        going = {call.worker_id for call in go.calls if not (call.leave or call.aside)}
        assert going == set(form.members()), "everybody who has a place is called"
        for call in go.calls:
            process = self.processes.get(call.worker_id)
            if process is None:
                continue
            if call.at:
                assert process.part.boundary < call.at, "nobody has passed the boundary"
            word = Called(go.generation, call.at, go.sync, call.leave, call.aside, go.parks, go.resumes)

            def hear(process: Process, worker_id: str = call.worker_id, word: Called = word) -> None:
                process.part.given(word)
                self.stand(worker_id)
                # The training thread takes it, perhaps a moment later.
                self._tell(worker_id, lambda process: self._take_call(worker_id))

            self._tell(call.worker_id, hear)
            process.told = go.generation
        self.forms.append(form)

    def _hears_leave(self, worker_id: str) -> Callable[[Process], None]:
        def hear(process: Process) -> None:
            assert process.part.phase in (Phase.READY, Phase.ARRIVED), "only those who wait are told to leave"
            self.told_to_leave.add(worker_id)
            self.exit(worker_id, 0)

        return hear

    def _die(self, worker_id: str) -> None:
        process = self.processes.pop(worker_id, None)
        if process is None:
            return
        for form in self.prepared.values():
            if worker_id in form.members():
                form.left.add(worker_id)


def check_places(places: tuple[RankAssignment, ...], *, of_horovod: bool = True) -> None:
    """Ranks, local ranks and cross ranks are what Horovod's core takes for granted."""
    assert [place.rank for place in places] == list(range(len(places)))
    assert len({place.worker_id for place in places}) == len(places)
    hosts = {place.agent for place in places}
    for host in hosts:
        here = [place for place in places if place.agent == host]
        # In the order of ranks, as the core sorts them (InitializeForProcessSet): else it hangs.
        assert [place.local_rank for place in here] == list(range(len(here)))
        assert {place.local_size for place in here} == {len(here)}
    for local_rank in {place.local_rank for place in places if of_horovod}:
        across = [place for place in places if place.local_rank == local_rank]
        assert [place.cross_rank for place in across] == list(range(len(across)))
        assert {place.cross_size for place in across} == {len(across)}
        assert len({place.agent for place in across}) == len(across)
    assert {place.size for place in places} == {len(places)}


def founded_world(base: dict[str, int]) -> World:
    """A job whose first generation has begun; nobody is in the training loop yet."""
    world = World(base)
    for agent, workers in base.items():
        world.join(agent, workers)
    for worker_id in list(world.processes):
        world.ready(worker_id)
    world.flush()
    return world


def training_world(base: dict[str, int], *satellites: str, slots: int = 1) -> World:
    """A job that trains with all of these."""
    world = founded_world(base)
    for worker_id in list(world.processes):
        world.enter_loop(worker_id)
    world.commit()
    for agent in satellites:
        world.join(agent, slots)
        for worker_id in world.of(agent):
            world.ready(worker_id)
        world.commit()
    world.align()
    assert len(world.training()) == sum(base.values()) + slots * len(satellites)
    return world
