"""A simulated job around a Membership: agents and workers that do what it says, and what chance says."""

from __future__ import annotations

from dataclasses import dataclass, field

from horovod_elastic import membership as m


@dataclass
class Process:
    """A worker process as it is in the world, whatever membership believes."""

    agent: str
    newcomer: bool
    moment: str = "starting"
    """starting, ready, training, arrived, finished, told to leave."""
    generation: int = 0
    commits: int = 0
    in_loop: bool = False


@dataclass
class World:
    """Delivers events, carries out commands, and checks after each what must always hold."""

    base: dict[str, int]
    members: m.Membership = field(init=False)
    now: float = 0.0
    agents: dict[str, int] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    told_to_leave: set[str] = field(default_factory=set)
    forms: list[m.Form] = field(default_factory=list)
    end: m.End | None = None
    interrupted: int = 0
    dismissed: set[str] = field(default_factory=set)
    outlooks: dict[str, m.Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = m.Membership(sum(self.base.values()), list(self.base))

    # --- what can happen ----------------------------------------------------------------------

    def join(self, agent: str, slots: int) -> None:
        self.agents[agent] = slots
        self.obey(self.members.agent_joined(agent, slots, agent in self.base, self.now))

    def lose(self, agent: str) -> None:
        """An agent and all its workers are gone."""
        self.agents.pop(agent, None)
        for worker_id in self.of(agent):
            self._die(worker_id)
        self.obey(self.members.agent_lost(agent, "lost", self.now))

    def release(self, agent: str) -> None:
        self.obey(self.members.release(agent, "given back", self.now))

    def exit(self, worker_id: str, exit_code: int) -> None:
        if worker_id in self.processes:
            self._die(worker_id)
            self.obey(self.members.worker_exited(worker_id, exit_code, self.now))

    def ready(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        if process.moment == "starting":
            process.moment = "ready"
            self.obey(self.members.worker_ready(worker_id, self.now))

    def enter_loop(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        if process.moment == "training" and not process.in_loop:
            process.in_loop = True
            self.obey(self.members.worker_in_loop(worker_id, self.now))

    def commit(self) -> None:
        """All who train commit a batch; those who were interrupted arrive. Nothing if somebody is missing."""
        training = self.training()
        if not training or not all(process.in_loop for process in training.values()):
            return
        if len(training) < len(self.forms[-1].places):
            self.fail()
            return
        for worker_id, process in training.items():
            process.commits += 1
            self.members.worker_progress(worker_id, process.commits)
        if self.interrupted == self.forms[-1].generation:
            self._arrive(list(training))

    def fail(self, ahead: int = 0) -> None:
        """Somebody is missing: collectives fail; the first `ahead` workers have committed a batch more."""
        training = self.training()
        if not training or len(training) == len(self.forms[-1].places):
            return
        for number, process in enumerate(training.values()):
            process.commits += number < ahead
        looping = [worker_id for worker_id, process in training.items() if process.in_loop]
        for worker_id in training.keys() - set(looping):
            self.exit(worker_id, 1)
        self._arrive(looping)

    def finish(self) -> None:
        """The training function returns everywhere."""
        training = self.training()
        if training and len(training) == len(self.forms[-1].places) and self.all_in_loop():
            for worker_id, process in training.items():
                process.moment = "finished"
                self.obey(self.members.worker_finished(worker_id, self.now))

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
                if process.moment in ("told to leave", "finished"):
                    self.exit(worker_id, 0)
                elif process.moment == "starting":
                    self.ready(worker_id)
                elif process.moment == "training":
                    self.enter_loop(worker_id)
            self.fail()
            self.commit()
            self.tick(1.0)

    # --- looking at it ---------------------------------------------------------------------------

    def of(self, agent: str) -> list[str]:
        return [worker_id for worker_id, process in self.processes.items() if process.agent == agent]

    def training(self) -> dict[str, Process]:
        """Those alive and training in the last generation, by rank."""
        if not self.forms:
            return {}
        order = [place.worker_id for place in self.forms[-1].places if place.worker_id in self.processes]
        return {w: self.processes[w] for w in order if self.processes[w].moment == "training"}

    def all_in_loop(self) -> bool:
        return all(process.in_loop for process in self.training().values())

    # --- obeying ----------------------------------------------------------------------------------

    def obey(self, commands: list[m.Command]) -> None:
        for command in commands:
            self._obey(command)
        # Processes die after everything was said: kills are orders to agents, seen later by the leader.
        for command in commands:
            if isinstance(command, m.Kill):
                self.exit(command.worker_id, -9)
        for agent in self.dismissed & self.agents.keys():
            self.lose(agent)

    def _obey(self, command: m.Command) -> None:
        if isinstance(command, m.End):
            assert self.end is None, "it ends once"
            self.end = command
        elif isinstance(command, m.Start):
            self._start(command)
        elif isinstance(command, m.Form):
            self._form(command)
        elif isinstance(command, m.Interrupt):
            self._interrupt(command)
        elif isinstance(command, m.Leave):
            self._leave(command)
        elif isinstance(command, m.Dismiss):
            self.dismissed.add(command.agent)

    def _start(self, start: m.Start) -> None:
        assert self.end is None, "nothing starts after the end"
        assert start.agent in self.agents, "only agents that are there start workers"
        slots = [w for w in self.of(start.agent) if self.members.worker(w).slot == start.slot]  # type: ignore[union-attr]
        assert not slots, "one worker a slot"
        assert start.outlook.rank > 0 or not start.newcomer or not self.training()
        self.outlooks[start.worker_id] = start.outlook
        self.processes[start.worker_id] = Process(start.agent, start.newcomer, in_loop=start.newcomer)

    def _form(self, form: m.Form) -> None:
        check_places(form.places)
        previous = self.forms[-1] if self.forms else None
        old = {place.worker_id for place in previous.places} if previous else set()
        for worker_id in old & self.processes.keys():
            moment = self.processes[worker_id].moment
            assert moment in ("arrived", "told to leave", "finished"), f"{worker_id} is still {moment}"
        stayed = [p for p in form.places if p.worker_id in old]
        if previous is not None:
            assert stayed, "somebody carries the state on"
            first = form.places[0]
            assert first.worker_id in old, "rank 0 was a member"
            most = max(self.processes[p.worker_id].commits for p in stayed)
            assert form.commits == self.processes[first.worker_id].commits == most
        for place in form.places:
            assert place.worker_id not in self.told_to_leave, "nobody is told both to leave and a place"
            process = self.processes[place.worker_id]
            assert process.moment in ("ready", "arrived"), "only those who wait are given places"
            process.moment, process.generation = "training", form.generation
        for place in form.places:
            self.processes[place.worker_id].commits = form.commits
        self.forms.append(form)

    def _interrupt(self, interrupt: m.Interrupt) -> None:
        assert interrupt.worker_id == self.forms[-1].places[0].worker_id, "rank 0 is interrupted"
        assert interrupt.generation == self.forms[-1].generation
        self.interrupted = interrupt.generation

    def _leave(self, leave: m.Leave) -> None:
        process = self.processes.get(leave.worker_id)
        if process is not None:
            assert process.moment in ("ready", "arrived"), "only those who wait are told to leave"
            process.moment = "told to leave"
            self.told_to_leave.add(leave.worker_id)

    def _arrive(self, worker_ids: list[str]) -> None:
        for worker_id in worker_ids:
            process = self.processes.get(worker_id)
            if process is not None and process.moment == "training":
                process.moment = "arrived"
                self.obey(
                    self.members.worker_arrived(worker_id, process.generation, process.commits, self.now)
                )

    def _die(self, worker_id: str) -> None:
        self.processes.pop(worker_id, None)
        self.dead.add(worker_id)


def check_places(places: tuple[m.Place, ...]) -> None:
    """Ranks, local ranks and cross ranks are what Horovod's core takes for granted."""
    assert [place.rank for place in places] == list(range(len(places)))
    assert len({place.worker_id for place in places}) == len(places)
    hosts = {place.agent for place in places}
    for host in hosts:
        here = [place for place in places if place.agent == host]
        # In the order of ranks, as the core sorts them (InitializeForProcessSet): else it hangs.
        assert [place.local_rank for place in here] == list(range(len(here)))
        assert {place.local_size for place in here} == {len(here)}
    for local_rank in {place.local_rank for place in places}:
        across = [place for place in places if place.local_rank == local_rank]
        assert [place.cross_rank for place in across] == list(range(len(across)))
        assert {place.cross_size for place in across} == {len(across)}
        assert len({place.agent for place in across}) == len(across)
    assert {place.size for place in places} == {len(places)}
