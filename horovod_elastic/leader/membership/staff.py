"""The worker processes of each agent: started, restarted, sent away, dismissed with their agents. Pure."""

from __future__ import annotations

from dataclasses import replace

from horovod_elastic.leader.membership.change import Changes
from horovod_elastic.leader.membership.commands import Command, Dismiss, Kill, WorkerFailed
from horovod_elastic.leader.membership.job_state import BYSTANDERS, KILLED, Failure, JobState
from horovod_elastic.leader.membership.next_step import end_matters
from horovod_elastic.leader.membership.roster import EXIT_BOUND_S, Agent, Roster, Worker
from horovod_elastic.leader.membership.states import ScriptEvent, WorkerState
from horovod_elastic.leader.membership.virtual_workers import MOVED, VirtualWorkers
from horovod_elastic.trace import how_it_ended

RESTARTS_PER_SLOT = 3
"""Number of times that a worker that died soon is started again in its slot."""
RESTARTS_OF_FAILED = 1
"""The same for a new worker of a satellite that exits by itself before it was ready: its script or its
environment fails, and would do so again."""
ENDING = "the job is ending"
ANEW = "it is started again, in another place"
BACK = "it is started again, because training goes back to the parked state"


class Staff:
    """See the module."""

    def __init__(
        self, job: JobState, roster: Roster, changes: Changes, virtual: VirtualWorkers | None = None
    ) -> None:
        self._job = job
        self._roster = roster
        self._changes = changes
        self._virtual = virtual
        self._new_ones_fail = False
        """Whether a satellite was given back because its new workers failed, and none was ready since."""

    def some_are_ready(self, now: float) -> list[Command]:
        """Note that a worker has become ready. If new workers failed before, start those that waited."""
        if not self._new_ones_fail:
            return []
        self._new_ones_fail = False
        satellites = [each for each in self._roster.agents.values() if not each.base and not each.dismissed]
        return [command for agent in satellites for command in self.fill(agent, now)]

    def fill(self, agent: Agent, now: float) -> list[Command]:
        """Start workers in the slots that have none."""
        if self._virtual is not None:
            return self.fill_virtual(now)
        if agent.leaving or (self._job.finishing and (self._job.founded or not agent.base)):
            return []
        unit = self._roster.unit
        taken = {worker.slot // unit for worker in self._roster.of(agent.name) if worker.alive}
        whole = agent.slots - agent.slots % unit
        free = [slot for slot in range(whole) if slot // unit not in taken]
        if self._new_ones_fail and not agent.base:  # one shows whether they still do
            free = [] if taken else free[:unit]
        added = [self._add(agent, slot, now) for slot in free]
        return [self._roster.start(worker) for worker in added]

    def fill_virtual(self, now: float) -> list[Command]:
        """Start the processes that virtual workers lack, and stop those that no virtual worker needs."""
        virtual = self._virtual
        if virtual is None or self._job.finishing or self._job.doomed or self._job.suspended:
            return []
        commands: list[Command] = []
        if self._job.founded:
            virtual.settle(self._roster, self._job.limit)
            for worker in virtual.superfluous(self._roster):
                if worker.state is WorkerState.READY and not self._changes.concerns(worker.worker_id):
                    commands.append(worker.tell_to_leave(MOVED, now))
        for rank, slot in virtual.missing(self._roster):
            agent = self._roster.agents[slot.agent]
            if agent.deaths.get(slot.number, 0) <= RESTARTS_PER_SLOT:
                added = self._roster.add(agent, slot.number, self._job.founded, now, takes=rank)
                commands.append(self._roster.start(added))
        return commands

    def _add(self, agent: Agent, slot: int, now: float) -> Worker:
        """Add a worker to be started: a founder if it is in the base and there was no generation yet.

        In an opportunistic job, the first workers of satellites are the founders, as many as its minimum. So
        the global batch does not depend on what happened to be idle.
        """
        founds = agent.base or len(self._founders()) < self._job.minimum
        return self._roster.add(agent, slot, newcomer=self._job.founded or not founds, now=now)

    def _founders(self) -> list[Worker]:
        """The workers with which an opportunistic job is to begin."""
        return [
            worker
            for worker in self._roster.alive()
            if not worker.newcomer
            and worker.state is not WorkerState.LEAVING
            and not self._roster.agent_of(worker).leaving
        ]

    def complete_founders(self, now: float) -> list[Command]:
        """Start newcomers again as founders where an opportunistic job has lost founders before it began."""
        if self._job.founded or self._job.finishing or self._job.doomed:
            return []
        missing = self._job.minimum - len(self._founders())
        newcomers = [
            worker
            for worker in self._roster.alive()
            if worker.newcomer
            and worker.state in (WorkerState.STARTING, WorkerState.READY)
            and not self._roster.agent_of(worker).leaving
        ]
        coming = sum(worker.state is WorkerState.LEAVING for worker in self._roster.alive())
        chosen = newcomers[: max(0, missing - coming)]
        return [command for worker in chosen for command in self.start_again(worker, ANEW, now)]

    def go_back(self, now: float) -> list[Command]:
        """Start newcomers again: they may have gone through epochs that training goes back behind."""
        commands: list[Command] = []
        for worker in self._roster.alive():
            if worker.state in (WorkerState.STARTING, WorkerState.READY):
                commands += self.start_again(worker, BACK, now)
        return commands

    def start_again(self, worker: Worker, why: str, now: float) -> list[Command]:
        """End a worker that does not train. Its slot is filled when it has ended."""
        hears = worker.state is WorkerState.READY
        leave = worker.tell_to_leave(why, now)
        return [leave if hears else Kill(worker.worker_id, worker.agent, why)]

    def fill_all(self, now: float) -> list[Command]:
        """Start workers in all slots that have none, so that an opportunistic job can begin or go on."""
        agents = [each for each in self._roster.agents.values() if not each.dismissed]
        return [command for agent in agents for command in self.fill(agent, now)]

    def _replace(self, worker: Worker, exit_code: int, now: float) -> list[Command]:
        """Restart a unit that died in its slots, or give up a satellite whose workers keep dying."""
        agent = self._roster.agent_of(worker)
        first = worker.slot - worker.slot % self._roster.unit
        code = agent.codes.setdefault(first, exit_code)
        if self._virtual is None and self._roster.unit_of(worker):
            return []  # others are about to end, or it was replaced before and its end is reported again
        del agent.codes[first]
        fails = worker.newcomer and not worker.entered and code > 0 and not agent.base
        deaths = agent.count_death(first, now - worker.added_at)
        again = deaths <= (self._restarts_of_failed if fails else RESTARTS_PER_SLOT)
        told: list[Command] = [WorkerFailed(agent.node, code, bool(worker.entered), again)]
        if again and self._virtual is not None:
            return told  # `fill_virtual` starts it
        if again:
            slots = range(first, first + self._roster.unit)
            added = [self._add(agent, slot, now) for slot in slots]
            return [*told, *(self._roster.start(each) for each in added)]
        if agent.base:
            return told
        self._new_ones_fail = self._new_ones_fail or fails
        why = f"they exited before training ({how_it_ended(code)})" if fails else ""
        why = why or f"its workers died {deaths} times"
        return [*told, *self.send_away(agent, why, now, quiet=True)]

    @property
    def _restarts_of_failed(self) -> int:
        """Restarts of a failed new worker: none after another satellite where they failed as well."""
        return 0 if self._new_ones_fail else RESTARTS_OF_FAILED

    def gone(self, worker: Worker, exit_code: int, now: float) -> list[Command]:
        """Handle the end of a worker: the script ends, its generation breaks, or the worker is replaced."""
        was, member, rank = worker.state, worker.member, worker.rank
        failure = self._failure_of(worker, exit_code)
        worker.is_gone()
        commands = self._changes.drop() if self._changes.concerns(worker.worker_id) else []
        agent = self._roster.agent_of(worker)
        if was is WorkerState.LEAVING:
            if self._job.minimum and agent.dismissed:
                self._job.note_failure(replace(failure, exit_code=exit_code))
            waits = self._job.minimum and not agent.dismissed and (self._job.paused or not self._job.founded)
            return [*commands, *self.fill(agent, now)] if waits else commands
        if exit_code != 0 and was is not WorkerState.FINISHED:
            commands += self._kill_unit_of(worker)
        matters = member or end_matters(worker, was, exit_code)
        if exit_code == 0 and matters and not agent.leaving:
            return commands + self.finish(now)
        in_order = exit_code == 0 and was is WorkerState.FINISHED
        if matters and not in_order and not self._was_taken(agent, exit_code):
            self._job.note_failure(failure)
        if member and was in (WorkerState.TRAINING, WorkerState.ARRIVED):
            commands += self._lose_member(worker, rank, now)
        lost = self._job.minimum > 0 and (bool(agent.leaving) or exit_code in {*KILLED, *BYSTANDERS})
        if lost and member and not self._job.scalable:
            commands += self._kill_the_rest(worker, now)
        if self._job.finishing or agent.leaving:
            return commands
        excused = (lost and self._job.founded) or self._was_taken(agent, exit_code)
        if not worker.newcomer and not worker.in_loop and not excused:
            self._doom(now)
        return commands if self._job.doomed else [*commands, *self._replace(worker, exit_code, now)]

    def _failure_of(self, worker: Worker, exit_code: int) -> Failure:
        """The end of a worker as a failure of the job."""
        agent = self._roster.agent_of(worker)
        rank = worker.rank if worker.member else worker.projected
        who = f"a worker on {agent.node}" if rank < 0 else f"rank {rank} on {agent.node}"
        how = agent.leaving if agent.dismissed else how_it_ended(exit_code)
        return Failure(exit_code or 1, who, how)

    def _lose_member(self, worker: Worker, rank: int, now: float) -> list[Command]:
        """Break the generation that has lost this worker, of that rank, unless the others train on."""
        if self._is_outlived(rank):
            self._job.loses_member()
            return []
        return self._changes.break_off(f"worker {worker.worker_id} is gone", now)

    def _is_outlived(self, rank: int) -> bool:
        """Whether the others train on without the worker that had this rank, until the next generation."""
        members, job = self._roster.members(), self._job
        if rank == 0 or not members or self._virtual is not None or self._roster.unit > 1:
            return False
        if job.broken or job.finishing or job.doomed or not job.scalable:
            return False
        return all(
            each.state is WorkerState.TRAINING and each.entered == job.generation and each.outlives
            for each in members
        )

    def _kill_unit_of(self, worker: Worker) -> list[Command]:
        """Kill the other workers of a unit that has lost this worker. They can do nothing without it."""
        why = f"worker {worker.worker_id} of its unit is gone"
        others = self._roster.unit_of(worker)
        if any(each.slot == worker.slot for each in others):
            return []  # the unit was replaced before
        return [Kill(each.worker_id, each.agent, why) for each in others]

    def _kill_the_rest(self, lost: Worker, now: float) -> list[Command]:
        """Kill the other founders of an opportunistic job. Before their training loop, they cannot go on
        without the one that is `lost`. If a satellite was taken away, the job begins anew.
        """
        why = f"worker {lost.worker_id} is gone, and training could not pause yet"
        rest = self._roster.members()
        for each in rest:
            if each.state is not WorkerState.FINISHED:
                each.tell_to_leave(why, now)
        return [Kill(each.worker_id, each.agent, why) for each in rest]

    def _was_taken(self, agent: Agent, exit_code: int) -> bool:
        """Whether the cluster, and not the script, has ended a worker: a satellite's, while the job ends, or
        before an opportunistic job has begun.
        """
        counts_not = self._job.finishing or (self._job.minimum > 0 and not self._job.founded)
        return counts_not and not agent.base and exit_code in KILLED

    def send_away(self, agent: Agent, why: str, now: float, *, quiet: bool = False) -> list[Command]:
        """Let an agent's workers leave: at the next boundary if they train, else at once.

        `quiet`: whether the user is told of the reason otherwise.
        """
        agent.has_to_go(why)
        workers = self._roster.of(agent.name)
        commands: list[Command] = []
        if any(self._changes.brings(worker.worker_id) for worker in workers):
            commands += self._changes.drop()
        for worker in workers:
            founds = self._job.minimum > 0 and not self._job.founded
            if worker.state is WorkerState.READY and (worker.newcomer or founds):
                commands.append(worker.tell_to_leave(why, now))
            elif worker.state is WorkerState.STARTING and not worker.entered:
                commands.append(Kill(worker.worker_id, worker.agent, why, quiet))
        return commands

    def _doom(self, now: float) -> None:
        """End the job after a founder failed before its training loop: the job cannot change its size there.

        The other workers get EXIT_BOUND_S to notice.
        """
        self._job.script(ScriptEvent.FAILS_EARLY)
        for worker in self._roster.alive():
            worker.deadline = worker.deadline or now + EXIT_BOUND_S

    def finish(self, now: float) -> list[Command]:
        """Let no worker join any more: newcomers go, and satellites without workers in the generation."""
        if self._job.finishing:
            return []
        self._job.script(ScriptEvent.FINISHES)
        commands = self._changes.drop()
        for worker in self._roster.alive():
            if worker.newcomer and not worker.member:
                if worker.state is WorkerState.READY:
                    commands.append(worker.tell_to_leave(ENDING, now))
                elif worker.state is WorkerState.STARTING:
                    commands.append(Kill(worker.worker_id, worker.agent, ENDING))
        for agent in self._roster.agents.values():
            if not agent.base and not self._roster.trains(agent.name):
                agent.has_to_go(ENDING)
        return commands

    def dismiss(self, agent: Agent, why: str) -> list[Command]:
        """Dismiss an agent: nothing is left to do on its node."""
        if agent.dismissed:
            return []
        agent.is_dismissed(why)
        return [Dismiss(agent.name, why)]

    def dismiss_idle(self) -> list[Command]:
        """Dismiss satellites that have to go and have no workers any more."""
        commands: list[Command] = []
        for agent in self._roster.agents.values():
            why = agent.leaving or (ENDING if self._job.finishing else "")
            if why and not agent.base and not any(worker.alive for worker in self._roster.of(agent.name)):
                commands += self.dismiss(agent, why)
        return commands

    def end(self, why: str) -> list[Command]:
        """The job is over: kill the remaining workers, and dismiss every agent. The last line says why."""
        commands: list[Command] = [
            Kill(worker.worker_id, worker.agent, why, quiet=True) for worker in self._roster.alive()
        ]
        for agent in self._roster.agents.values():
            commands += self.dismiss(agent, why)
        return commands
