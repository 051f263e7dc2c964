"""The leader's decisions on its workers: events go in, with the time, and commands come out. Pure.

Membership notes every event first: in the roster (roster.py), in the state of the job (job_state.py), in the
change under way (change.py). Then it does what has become possible. states.py lists the allowed transitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod_elastic.leader.membership import next_step
from horovod_elastic.leader.membership.change import Changes
from horovod_elastic.leader.membership.commands import (
    ODD,
    UNLIKE,
    Abandon,
    Broken,
    Command,
    End,
    GoBack,
    Kill,
    Leave,
    Withdraw,
)
from horovod_elastic.leader.membership.job_state import KILLED, JobState
from horovod_elastic.leader.membership.next_step import Selection, Verdict
from horovod_elastic.leader.membership.roster import (
    EXIT_BOUND_S,
    Agent,
    Roster,
    Running,
    Worker,
    WorkerStatus,
)
from horovod_elastic.leader.membership.staff import ANEW, ENDING, Staff
from horovod_elastic.leader.membership.states import ScriptEvent, WorkerEvent, WorkerState
from horovod_elastic.leader.membership.takeover import Takeover, settle_all
from horovod_elastic.leader.membership.virtual_workers import MOVED, VirtualWorkers, slot_of
from horovod_elastic.phase import Phase

ARRIVAL_BOUND_S = 120.0
"""Longest time for a broken generation's workers to be back at their last commit; then they are killed."""
MOST_VAIN_RESUMES = 3
"""Number of consecutive generations from the parked state that may break although no worker is lost."""
_LOST_WITH_LEADER = "it lost workers together with its leader"
_WENT_ON = "the others went on without it"


class Membership:
    """See the package. Every method takes the time as `now` (seconds, monotonic) and returns commands.

    `base_agents`: names of the base's agents in the cluster's order of nodes; rank 0 begins on the first.
    `taking_over`: time at which this leader began, if the job runs already; else None. A new leader numbers
    generations and workers from `gap` beyond those that it hears of, because it may not know all that an
    earlier leader began. `unit`: the number of workers that come and go together. `virtual`: the virtual
    workers of a job in reproducible mode. `minimum`: the number of workers below which an opportunistic job
    pauses (`base_workers` is as many); 0: the base has workers. `parked`: the commits of the parked state
    that this leader finds in the base; None if there is none.
    """

    def __init__(
        self,
        base_workers: int,
        base_agents: Sequence[str] = (),
        *,
        taking_over: float | None = None,
        gap: int = 100,
        unit: int = 1,
        virtual: VirtualWorkers | None = None,
        minimum: int = 0,
        parked: int | None = None,
    ) -> None:
        self._base_workers = base_workers if virtual is None else virtual.count
        self._virtual = virtual
        self._gap = gap
        self._takeover = Takeover(taking_over or 0.0)
        self._job = JobState(taking_over is not None, minimum, parked)
        self._roster = Roster(base_agents, unit, 0 if virtual is None else virtual.count, minimum)
        self._changes = Changes(self._job, self._roster)
        self._staff = Staff(self._job, self._roster, self._changes, virtual)

    # --- what others may look at -------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The number of the present generation; 0: none yet."""
        return self._job.generation

    @property
    def size(self) -> int:
        """Number of workers in the present generation that are alive; virtual ones of a slot count as one."""
        return len({slot_of(worker) for worker in self.present()})

    @property
    def scalable(self) -> bool:
        """Whether a worker has entered hvd.elastic.run, so that the job can be resized."""
        return self._job.scalable

    @property
    def fixed_why(self) -> str:
        """Why the script can never be resized; "" if it can, or that is not known yet."""
        return self._job.fixed_why

    @property
    def commits(self) -> int:
        """Number of mini-batches committed, as far as is known."""
        return self._job.commits

    @property
    def progress(self) -> float:
        """The part of the declared epochs that is done, 0 to 1; 0: not known."""
        return self._job.progress

    @property
    def finishing(self) -> bool:
        """Whether the training function has returned in a worker, so that no worker joins any more."""
        return self._job.finishing

    @property
    def changing(self) -> bool:
        """Whether a resize is under way, so that a second one has to wait."""
        return self._changes.under_way or any(w.entered != self.generation for w in self.present())

    @property
    def broken(self) -> bool:
        """Whether the present generation is broken: a member is gone, or a collective failed."""
        return self._job.broken

    @property
    def paused(self) -> bool:
        """Whether nobody trains, because an opportunistic job has fewer workers than its minimum."""
        return self._job.paused

    @property
    def taking_over(self) -> bool:
        """Whether this leader is new and has not heard of all workers yet."""
        return self._job.taking_over

    @property
    def standing_still(self) -> bool:
        """Whether part of the job is suspended; see stand_still."""
        return self._job.suspended

    def agent_trains(self, name: str) -> bool:
        """Whether any worker of this agent is in the present generation."""
        return self._roster.trains(name)

    def worker(self, worker_id: str) -> Worker | None:
        """The worker with this id, dead or alive."""
        return self._roster.workers.get(worker_id)

    def present(self) -> list[Worker]:
        """The living workers of the present generation, by rank."""
        return self._roster.members()

    # --- agents ------------------------------------------------------------------------------------

    def agent_joined(
        self, name: str, slots: int, base: bool, now: float, running: Sequence[Running] = ()
    ) -> list[Command]:
        """Take an agent that can start `slots` workers, or that comes back with living ones (`running`)."""
        known = self._roster.agents.get(name)
        commands: list[Command] = []
        if known is not None and not known.dismissed:
            for each in running:
                commands += self.worker_stands(each.worker_id, each.status, now)
            return commands
        agent = self._roster.agents[name] = Agent(name, slots, base)
        for each in running:
            commands += self._adopt(agent, each)
        if self._job.ended or (self._job.finishing and not base):
            return [*commands, *self._staff.dismiss(agent, ENDING)]
        if self._job.taking_over:
            return [*commands, *self._take_over(now)]
        return [*commands, *self._staff.fill(agent, now), *self._proceed(now)]

    def agent_lost(self, name: str, why: str, now: float) -> list[Command]:
        """Give up an agent whose node or connection is gone, and its workers."""
        agent = self._roster.agents.get(name)
        if agent is None or agent.dismissed:
            return []
        agent.is_lost(why)
        commands: list[Command] = []
        for worker in self._roster.of(name):
            commands += self._gone(worker, -9, now)
        if not self._job.founded and not self._job.taking_over:
            self._job.failure = None  # nothing was trained yet: the agent comes again, and training begins
        return commands + self._proceed(now)

    def release(self, name: str, why: str, now: float) -> list[Command]:
        """Let an agent go: its grant was withdrawn, or the cluster takes its node back."""
        agent = self._roster.agents.get(name)
        if agent is None or agent.leaving:
            return []
        if self._job.taking_over:
            agent.has_to_go(why)  # until all workers are known, its workers seem not to have started
            return []
        return self._staff.send_away(agent, why, now) + self._proceed(now)

    # --- workers -----------------------------------------------------------------------------------

    def worker_stands(self, worker_id: str, status: WorkerStatus, now: float) -> list[Command]:
        """Take a worker's report on itself. Workers report when something changes, and from time to time."""
        worker = self.worker(worker_id)
        if worker is None or not worker.alive:
            # The worker's agent was wrongly assumed to be gone: nobody else can tell the worker to leave.
            if status.phase in (Phase.READY, Phase.ARRIVED):
                return [Leave(worker_id, f"it was believed dead, and {_WENT_ON}")]
            return []
        if self._job.taking_over:
            self._takeover.hear(worker_id, status)
            return self._take_over(now)
        self._note(worker, status, now)
        if self._job.unsure and status.in_loop:
            return self._know_better(now)
        phase = status.phase
        if phase is Phase.READY and worker.state is WorkerState.STARTING:
            return self._ready(worker, now)
        if phase is Phase.ARRIVED and status.called >= worker.called and not status.going:
            return self._arrived(worker, now)
        if phase is Phase.FINISHED and status.called >= worker.called:
            return self._finished(worker, status, now)
        return self._proceed(now)

    def worker_prepared(self, worker_id: str, generation: int, failure: str, now: float) -> list[Command]:
        """Note that a worker has built the communicator of `generation`, or could not (`failure`)."""
        if not self._changes.prepares(generation):
            return []
        if failure:
            return self._changes.fail(now) + self._proceed(now)
        return self._proceed_after_the_word(self._changes.prepared(worker_id, now), now)

    def worker_accepted(
        self, worker_id: str, generation: int, at: int, boundary: int, passed: bool, now: float
    ) -> list[Command]:
        """Take a worker's answer to a question (at = 0) or a proposal."""
        if not self._changes.under_way:
            return []
        answer = self._changes.accepted(worker_id, generation, at, boundary, passed, now)
        return self._proceed_after_the_word(answer, now)

    def worker_exited(self, worker_id: str, exit_code: int, now: float) -> list[Command]:
        """Handle the end of a worker's process."""
        worker = self.worker(worker_id)
        if worker is None:
            return []
        return self._gone(worker, exit_code, now) + self._proceed(now)

    # --- the parked state of an opportunistic job ----------------------------------------------------

    def may_park(self, worker_id: str) -> bool:
        """Whether a state of this worker is that of the job: not of a worker that the job has given up."""
        worker = self.worker(worker_id)
        if worker is None or not self._job.minimum:
            return False
        return worker.member or worker.state in (WorkerState.LEAVING, WorkerState.UNKNOWN)

    def parked(self, commits: int, now: float) -> list[Command]:
        """Note that the base keeps a state of `commits` mini-batches, and no earlier one any more."""
        if commits != self._job.parked:
            self._job.vain_resumes = 0
        self._job.parked = commits
        return self._proceed(now)

    # --- what the leader and flexod ask for --------------------------------------------------------

    def limit(self, workers: int | None, now: float) -> list[Command]:
        """Train with at most `workers` workers (None: with all). The others step aside and stay warm."""
        unit = self._roster.unit
        least = max(unit, self._job.minimum)
        self._job.limit = None if workers is None else max(least, workers - workers % unit)
        return self._proceed(now)

    def renew(self, now: float) -> list[Command]:
        """Have the workers train on in a new generation, which makes its sums elsewhere."""
        commands = self._changes.drop()
        self._job.renews()
        return commands + self._proceed(now)

    def stand_still(self, still: bool, now: float) -> list[Command]:
        """Stand still while part of the job is suspended: begin nothing, give no worker up. Else go on."""
        if still is self.standing_still:
            return []
        if still:
            self._job.suspend(now)
            return self._changes.drop()
        stood_s = self._job.resume(now)
        for worker in self._roster.alive():
            if worker.deadline is not None:
                worker.deadline += stood_s
        self._takeover.since += stood_s
        return self.tick(now)

    def everybody_is_here(self, now: float) -> list[Command]:
        """Tell a new leader that no further agent will attach, so that it need not wait."""
        if not self._job.taking_over:
            return []
        self._takeover.everybody = True
        return self._take_over(now)

    def tick(self, now: float) -> list[Command]:
        """Enforce the deadlines of workers, changes and takeovers."""
        if self.standing_still:
            return []
        commands: list[Command] = []
        for worker in self._roster.alive():
            if worker.deadline is not None and now > worker.deadline:
                worker.deadline = None
                commands.append(Kill(worker.worker_id, worker.agent, f"{worker.state.value} for too long"))
        if self._job.broken and now > self._job.broken_at + ARRIVAL_BOUND_S:
            self._job.broken_at = now
            commands += [
                Kill(worker.worker_id, worker.agent, "did not come back to its last commit like the others")
                for worker in self.present()
                if worker.state is WorkerState.TRAINING
            ]
        if self._changes.overdue(now):
            commands += self._changes.fail(now)
        if self._job.taking_over:
            return commands + self._take_over(now)
        return commands + self._proceed(now)

    # --- what workers say of themselves --------------------------------------------------------------

    def _note(self, worker: Worker, status: WorkerStatus, now: float) -> None:
        worker.layout = status.layout
        self._roster.takes_from_any = self._roster.takes_from_any or bool(status.layout)
        if worker.state is not WorkerState.STARTING:  # before that, its script knows nothing yet
            worker.told_first = status.told_first
        self._job.fixed_why = status.fixed_why or self._job.fixed_why
        if status.in_loop:
            worker.in_loop = True
            self._job.scalable = self._job.scalable or worker.member
            if worker.state is WorkerState.FINISHED and status.phase is Phase.TRAINING:
                worker.life.happens(WorkerEvent.TRAINS)
        if not worker.member:
            return
        worker.commits, worker.outlives = status.commits, status.outlives
        if status.generation == self.generation:
            if worker.entered != self.generation:
                worker.entered = self.generation
                worker.first = worker.first or self.generation
                worker.deadline = now + EXIT_BOUND_S if self._job.doomed else None
            worker.waits = worker.waits and status.boundary == 0
        if status.phase is Phase.TRAINING:
            self._job.commits = max(self._job.commits, status.commits)
            self._job.progress = max(self._job.progress, status.progress)

    def _ready(self, worker: Worker, now: float) -> list[Command]:
        worker.is_ready()
        commands = self._staff.some_are_ready(now)
        if worker.newcomer and (self._job.finishing or self._roster.agent_of(worker).leaving):
            return [*commands, worker.tell_to_leave(ENDING, now)]
        if worker.newcomer and not self._fits(worker):
            return [*commands, worker.tell_to_leave(UNLIKE, now), *self._proceed(now)]
        return commands + self._proceed(now)

    def _fits(self, worker: Worker) -> bool:
        """Whether the worker's model exchanges the same messages as those of members in the same place."""
        unit = self._roster.unit
        peers = [each for each in self._roster.members() if each.rank % unit == worker.slot % unit]
        return all(_may_fit(each.layout, worker.layout) for each in peers)

    def _arrived(self, worker: Worker, now: float) -> list[Command]:
        if worker.state is WorkerState.FINISHED and not worker.member:
            return [worker.tell_to_leave("the others went on after it had finished", now)]
        if worker.state is WorkerState.STARTING and worker.entered:
            return self._ready(worker, now)  # it was to step aside, and the generation broke before
        if not worker.member or worker.state is not WorkerState.TRAINING:
            return []
        if self._job.finishing and worker.waits:
            return [worker.tell_to_leave(ENDING, now), *self._proceed(now)]
        worker.life.happens(WorkerEvent.ARRIVES)
        return self._changes.break_off("a collective failed", now) + self._proceed(now)

    def _finished(self, worker: Worker, status: WorkerStatus, now: float) -> list[Command]:
        if not worker.member or worker.state is WorkerState.FINISHED:
            return []
        worker.life.happens(WorkerEvent.FINISHES)
        if not self._job.finishing:
            self._job.failure = None  # training has ended without the worker that failed or was lost
        commands = self._staff.finish(now)
        if status.generation < self.generation:
            # The worker ended before the boundary at which it was to switch: no worker may wait for it.
            waiting = [w.worker_id for w in self.present() if w.waits]
            commands.append(Broken(self.generation, tuple(waiting), "training ended before the switch"))
        return commands + self._proceed(now)

    def _gone(self, worker: Worker, exit_code: int, now: float) -> list[Command]:
        """Handle the end of a process. A new leader does so once it knows the states of all workers."""
        if not worker.alive:
            return []
        if self._job.taking_over:
            self._takeover.gone.append((worker.worker_id, exit_code))
            return []
        return self._staff.gone(worker, exit_code, now)

    # --- a new leader ------------------------------------------------------------------------------------

    def _adopt(self, agent: Agent, running: Running) -> list[Command]:
        """Take a worker that lives on from before this leader, or from before its agent was lost."""
        if self.worker(running.worker_id) is not None:
            return [Kill(running.worker_id, agent.name, _WENT_ON)]
        if self._job.taking_over:
            self._roster.adopt(agent, running, WorkerState.UNKNOWN)
            self._takeover.hear(running.worker_id, running.status)
            return []
        worker = self._roster.adopt(agent, running, WorkerState.STARTING)
        worker.newcomer = True
        if running.status.phase is Phase.READY:
            worker.is_ready()
        elif running.status.phase is not Phase.STARTING:
            return [Kill(worker.worker_id, agent.name, _WENT_ON)]  # it is replaced when it has exited
        return []

    def _take_over(self, now: float) -> list[Command]:
        """Begin to lead, once all members of the generation are known or the time for it is over."""
        takeover = self._takeover
        if not takeover.complete() and (self.standing_still or takeover.may_wait(now)):
            return []
        self._job.all_known()
        self._roster.skip(self._gap)
        if all(agent.dismissed for agent in self._roster.agents.values()):
            return self._over(Verdict(1, "nobody is left"))
        statuses = takeover.statuses
        self._job.found(takeover.generation)
        attempt = max([self.generation, *(s.prepared for s in statuses.values())]) + self._gap
        self._changes.number_from(attempt)
        # Not whole: the former leader died in the middle of a change, or some workers died with it.
        whole = takeover.complete()
        members = settle_all(takeover, self._job, self._roster, whole, now)
        if self._job.minimum and not members and (self._job.founded or self._job.parked is not None):
            self._job.pauses(self.generation)
        commands: list[Command] = [
            Withdraw(self.generation, 0, tuple(statuses)),
            Abandon(attempt, tuple(statuses)),
        ]
        if members and not whole and not any(status.in_loop for status in statuses.values()):
            self._job.script(ScriptEvent.MEMBERS_MISSING)  # if members are lost, the others will notice
        elif members and (not whole or any(each.phase is Phase.ARRIVED for each in members.values())):
            commands += self._changes.break_off(_LOST_WITH_LEADER, now)
        for worker_id, exit_code in takeover.gone:
            commands += self._gone(self._roster.workers[worker_id], exit_code, now)
        for agent in self._roster.agents.values():
            if agent.leaving and not agent.dismissed:
                commands += self._staff.send_away(agent, agent.leaving, now)
            commands += self._staff.fill(agent, now)
        return commands + self._proceed(now)

    def _know_better(self, now: float) -> list[Command]:
        """Break a generation that lacks members: a worker turns out to be in the training loop after all."""
        self._job.script(ScriptEvent.IN_LOOP)
        commands = self._changes.break_off(_LOST_WITH_LEADER, now)
        for agent in self._roster.agents.values():
            commands += self._staff.fill(agent, now)
        return commands + self._proceed(now)

    # --- what has become possible ------------------------------------------------------------------------

    def _proceed(self, now: float) -> list[Command]:
        """Do whatever has become possible; called after every event."""
        if self._job.ended or self._job.taking_over:
            return []
        commands = self._staff.fill_virtual(now) + self._pause_if_lost(now)
        if self._job.ended:
            return commands
        commands += self._next_change(now) + self._staff.dismiss_idle()
        if self._job.ended:
            return commands
        over = next_step.verdict(self._job, self._roster, self._base_workers)
        return commands if over is None else commands + self._over(over)

    def _proceed_after_the_word(self, commands: list[Command], now: float) -> list[Command]:
        """Proceed if a worker's answer has ended the change under way. Else it makes nothing possible."""
        return commands if self._changes.under_way else commands + self._proceed(now)

    def _next_change(self, now: float) -> list[Command]:
        """Begin a change if one is due and none is under way."""
        if not self._changes.may_begin(now) or self.standing_still:
            return []
        if self._job.paused and self._job.parked is None:
            return self._begin_anew(now)
        if self._job.paused:
            return self._resume(now)
        if not self._job.founded:
            if again := self._staff.complete_founders(now):
                return again
            return self._begin(next_step.founders(self._roster, self._base_workers), now)
        if self._job.broken:
            return self._recover(now)
        return self._begin(next_step.resized(self._roster, self._job, self._virtual), now)

    def _begin(self, selection: Selection | None, now: float) -> list[Command]:
        if selection is None:
            return []
        return self._changes.begin(selection.order, selection.holders, now)

    def _recover(self, now: float) -> list[Command]:
        """Begin the generation after a broken one, once all its members are back at their last commit."""
        survivors = next_step.survivors(self._roster)
        if not survivors:
            return []
        if self._job.doomed:
            return self._over(next_step.failed(self._job, "before its training loop"))
        if self._virtual is not None:
            return self._recover_virtual(self._virtual, survivors, now)
        commands: list[Command] = []
        staying = []
        strangers = next_step.strangers(self._roster, self.generation)
        for worker in survivors:
            why = ODD if worker in strangers else self._roster.agent_of(worker).leaving
            if why:
                commands.append(worker.tell_to_leave(why, now))
            else:
                staying.append(worker)
        nobody = not staying or next_step.nobody_holds_the_model(staying, self.commits)
        if nobody and self._job.minimum:
            self._job.vain_resumes += all(each in survivors for each in self._all_of_generation())
            if self._job.vain_resumes <= MOST_VAIN_RESUMES:
                gone = [worker.tell_to_leave("no worker holds the model", now) for worker in staying]
                return [*commands, *gone, *self._go_back(now)]
            why = "training did not go on from the parked state, although no worker was lost"
            return [*commands, *self._over(Verdict(self._job.exit_code or 1, why))]
        if nobody:
            return [*commands, *self._over(next_step.model_lost(self._job))]
        return commands + self._begin(next_step.recovered(self._roster, self._job, staying), now)

    def _all_of_generation(self) -> list[Worker]:
        """All workers that have been in the present generation, dead or alive."""
        return [each for each in self._roster.workers.values() if each.entered == self.generation]

    # --- opportunistic jobs ------------------------------------------------------------------------------

    def _pause_if_lost(self, now: float) -> list[Command]:
        """Pause an opportunistic job if all its workers are lost. End it if its script cannot pause."""
        job, members = self._job, self.present()
        if not job.minimum or not job.founded or job.paused or self.standing_still:
            return []
        if job.finishing or job.doomed:
            return []
        if job.fixed_why and any(self._roster.agent_of(worker).leaving for worker in members):
            return self._over(Verdict(1, self._cannot_pause()))
        remaining = WorkerState.FINISHED, WorkerState.LEAVING
        if members or any(worker.state in remaining for worker in self._roster.alive()):
            return []
        if job.fixed_why:
            return self._over(Verdict(job.exit_code or 1, self._cannot_pause()))
        if job.failure is not None and job.exit_code not in KILLED:
            return []  # the script has failed: the job ends
        return self._go_back(now)

    def _cannot_pause(self) -> str:
        return f"workers have to leave, and training cannot pause, because {self._job.fixed_why}"

    def _go_back(self, now: float) -> list[Command]:
        """Pause after all workers that hold the model are lost."""
        commands = self._changes.drop()
        self._job.pauses(self.generation)
        commands += self._staff.go_back(now) + self._staff.fill_all(now)
        return [*commands, GoBack("all workers with the state are lost")]

    def _resume(self, now: float) -> list[Command]:
        """Begin the generation that goes on from the parked state, if enough workers are ready."""
        selection = next_step.resumed(self._roster, self._job)
        if selection is None:
            return []
        order = selection.order
        if any(each.layout for each in order) and not any(each.told_first for each in order):
            return self._staff.start_again(order[0], ANEW, now)  # its script is then told rank 0
        return self._begin(selection, now)

    def _begin_anew(self, now: float) -> list[Command]:
        """Begin training from the start, once the last worker that could park a state has ended."""
        if any(worker.state is WorkerState.LEAVING for worker in self._roster.alive()):
            return []
        self._job.begins_anew()
        again = self._staff.complete_founders(now)
        return again + self._staff.fill_all(now)

    def _recover_virtual(self, virtual: VirtualWorkers, survivors: list[Worker], now: float) -> list[Command]:
        """Begin the generation after a broken one, once each virtual worker has a process again."""
        if self._job.finishing:  # the others have ended before the boundary at which these joined them
            return [worker.tell_to_leave(ENDING, now) for worker in survivors]
        order = virtual.order(self._roster, after_loss=True)
        if order is None and virtual.is_hopeless(self._roster):
            return self._over(Verdict(self._job.exit_code or 1, "a virtual worker has died too often"))
        if order is None:
            return []
        if next_step.nobody_holds_the_model(order, self.commits):
            return self._over(next_step.model_lost(self._job))
        leaving = [worker.tell_to_leave(MOVED, now) for worker in survivors if worker not in order]
        return [*leaving, *self._begin(Selection(order, []), now)]

    def _over(self, verdict: Verdict) -> list[Command]:
        self._job.over()
        code = 128 - verdict.exit_code if verdict.exit_code < 0 else verdict.exit_code
        return [*self._staff.end(verdict.why), End(code, verdict.why)]


def _may_fit(member: str, newcomer: str) -> bool:
    """Whether what two workers have said of their layouts may be the same where they meet.

    It may change from epoch to epoch. So layouts of different places, if they begin with one, say nothing.
    """
    if "" in (member, newcomer) or member == newcomer:
        return True
    places = [each.partition(" ") for each in (member, newcomer)]
    return all(space for _, space, _ in places) and places[0][0] != places[1][0]
