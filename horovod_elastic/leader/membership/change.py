"""The change from one generation to the next: attempts in two phases, one after the other. Pure.

First all members of the next generation build its communicator, training workers in the background
(*prepare*). Then the training workers agree on a mini-batch boundary. The leader asks rank 0 for its present
boundary (t_cur) and proposes t_cur + k. Every training worker promises not to pass that boundary until it is
told to. If a worker has passed it already, the leader withdraws the proposal and doubles k. When all have
promised, the leader tells all members to switch (Go). So all switch at the same boundary, without a
collective for it in every mini-batch.

Amoeba, section 5.2: "a future time-stamp after which all processes should switch", t_cur + k, k = 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from horovod_elastic.leader.membership.commands import (
    Abandon,
    Broken,
    Call,
    Command,
    Go,
    Kill,
    Prepare,
    Propose,
    Withdraw,
)
from horovod_elastic.leader.membership.job_state import JobState
from horovod_elastic.leader.membership.roster import Roster, Worker, places
from horovod_elastic.leader.membership.states import CHANGE, Machine, Stage, StageEvent, WorkerState
from horovod_elastic.leader.membership.virtual_workers import MOVED

K = 2
"""Mini-batches between rank 0's present one and the one at which all workers switch (Amoeba, section 5.2)."""
LARGEST_K = 1024
TOO_FEW = "fewer workers than the job's minimum are left, and training pauses"
PREPARE_BOUND_S = 30.0
"""Longest time to build the communicator of the next generation."""
PROMISE_BOUND_S = 10.0
"""Longest time for the answers to a question or a proposal."""
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses after failed attempts at a change. After as many failures, its newcomers are given up."""


@dataclass
class Change:
    """One attempt. `members`: workers of the next generation. `holders`: workers that train meanwhile."""

    generation: int
    members: tuple[str, ...]
    holders: tuple[str, ...]
    deadline: float
    progress: Machine[Stage, StageEvent] = field(default_factory=lambda: Machine(CHANGE, Stage.PREPARING))
    at: int = 0
    k: int = K
    prepared: set[str] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)

    @property
    def stage(self) -> Stage:
        """The stage of the attempt."""
        return self.progress.state

    @property
    def planned(self) -> bool:
        """Whether training goes on meanwhile."""
        return bool(self.holders)

    def has_prepared(self, worker_id: str, now: float) -> bool:
        """Note that a member has built the communicator; return whether it was the last one."""
        self.prepared.add(worker_id)
        if self.stage is not Stage.PREPARING or not self.prepared.issuperset(self.members):
            return False
        self.progress.happens(StageEvent.PREPARED if self.planned else StageEvent.PREPARED_AT_REST)
        self.deadline = now + PROMISE_BOUND_S
        return True

    def propose(self, boundary: int, now: float) -> int:
        """Take rank 0's present `boundary`; return the boundary to propose."""
        self.progress.happens(StageEvent.ANSWERED)
        self.at = boundary + self.k
        self.promised.clear()
        self.deadline = now + PROMISE_BOUND_S
        return self.at

    def has_promised(self, worker_id: str) -> bool:
        """Note a holder's promise not to pass `at`; return whether it was the last one."""
        self.promised.add(worker_id)
        if not self.promised.issuperset(self.holders):
            return False
        self.progress.happens(StageEvent.PROMISED)
        return True

    def was_passed(self, now: float) -> None:
        """Note that a worker has passed `at`. The next proposal is further ahead."""
        self.progress.happens(StageEvent.PASSED)
        self.k = min(LARGEST_K, self.k * 2)
        self.deadline = now + PROMISE_BOUND_S


class Changes:
    """The attempts of one leader: one at a time, each with a number of its own."""

    def __init__(self, job: JobState, roster: Roster) -> None:
        self._job = job
        self._roster = roster
        self._change: Change | None = None
        self._attempt = 0
        """The highest generation that any worker was ever told of."""
        self._failures = 0
        """Number of consecutive attempts that have failed."""
        self._retry_at = 0.0

    @property
    def under_way(self) -> bool:
        """Whether an attempt is under way."""
        return self._change is not None

    def may_begin(self, now: float) -> bool:
        """Whether no attempt is under way, and the pause after a failed one is over."""
        return self._change is None and now >= self._retry_at

    def concerns(self, worker_id: str) -> bool:
        """Whether this worker takes part in the present attempt."""
        return self._change is not None and worker_id in {*self._change.members, *self._change.holders}

    def brings(self, worker_id: str) -> bool:
        """Whether this worker would be in the next generation."""
        return self._change is not None and worker_id in self._change.members

    def number_from(self, attempt: int) -> None:
        """Number generations after `attempt`: earlier leaders may have used the numbers up to it."""
        self._attempt = attempt

    def begin(self, order: list[Worker], holders: list[Worker], now: float) -> list[Command]:
        """Begin an attempt at a generation of the workers in `order` (by rank); `holders` train meanwhile.

        Without `order`, training pauses at a boundary. There is no communicator to build then.
        """
        self._attempt += 1
        self._change = Change(
            generation=self._attempt,
            members=tuple(worker.worker_id for worker in order),
            holders=tuple(worker.worker_id for worker in holders),
            deadline=now + PREPARE_BOUND_S,
        )
        if not order:
            self._change.progress.happens(StageEvent.PREPARED)
            self._change.deadline = now + PROMISE_BOUND_S
            return self._ask()
        return [Prepare(self._attempt, places(order))]

    # --- answers ---------------------------------------------------------------------------------------

    def prepares(self, generation: int) -> bool:
        """Whether the present attempt is at this generation."""
        return self._change is not None and self._change.generation == generation

    def prepared(self, worker_id: str, now: float) -> list[Command]:
        """Note that a worker has built the communicator."""
        change = self._change
        if change is None or not change.has_prepared(worker_id, now):
            return []
        return self._ask() if change.stage is Stage.ASKING else self._go(change, now)

    def accepted(
        self, worker_id: str, generation: int, at: int, boundary: int, passed: bool, now: float
    ) -> list[Command]:
        """Take a worker's answer to a question (at = 0) or a proposal."""
        change = self._change
        if change is None or generation != self._job.generation:
            return []
        if change.stage is Stage.ASKING and at == 0:
            return [Propose(self._job.generation, change.propose(boundary, now), change.holders)]
        if change.stage is not Stage.PROPOSED or at != change.at:
            return []
        if passed:
            withdraw = Withdraw(self._job.generation, at, change.holders)
            change.was_passed(now)
            return [withdraw, *self._ask()]
        return self._go(change, now) if change.has_promised(worker_id) else []

    def _ask(self) -> list[Command]:
        """Ask rank 0 for its present boundary."""
        return [Propose(self._job.generation, 0, (self._roster.members()[0].worker_id,))]

    # --- giving up -------------------------------------------------------------------------------------

    def drop(self) -> list[Command]:
        """Give the attempt up for a new reason: the next one may begin at once."""
        change, self._change = self._change, None
        if change is None:
            return []
        commands: list[Command] = []
        if change.stage is Stage.PROPOSED:
            holders = self._roster.living(change.holders)
            commands.append(Withdraw(self._job.generation, change.at, holders))
        change.progress.happens(StageEvent.DROPPED)
        return [*commands, Abandon(change.generation, self._roster.living(change.members))]

    def fail(self, now: float) -> list[Command]:
        """Give the attempt up because it does not succeed: the next one waits for a pause (RETRY_S)."""
        change = self._change
        if change is None:
            return []
        commands = self.drop()
        self._failures += 1
        self._retry_at = now + RETRY_S[min(self._failures, len(RETRY_S)) - 1]
        if self._failures >= len(RETRY_S):
            self._failures = 0
            commands += self._give_up_on(change)
        return commands

    def break_off(self, why: str, now: float) -> list[Command]:
        """Break the present generation, and tell the workers that train in it, once."""
        commands = self.drop()
        if self._job.breaks(now):
            members = self._roster.members()
            training = tuple(w.worker_id for w in members if w.state is WorkerState.TRAINING)
            if training:
                commands.append(Broken(self._job.generation, training, why))
        return commands

    def overdue(self, now: float) -> bool:
        """Whether the attempt has passed its deadline."""
        return self._change is not None and now > self._change.deadline

    def _give_up_on(self, change: Change) -> list[Command]:
        """Kill the newcomers of a change whose communicator cannot be built: they may be the reason."""
        return [
            Kill(worker.worker_id, worker.agent, "it could not be connected with the others")
            for worker in self._roster.alive()
            if worker.worker_id in change.members and not worker.member and worker.newcomer
        ]

    # --- the switch ------------------------------------------------------------------------------------

    def _go(self, change: Change, now: float) -> list[Command]:
        """Tell all members to switch. From now on the roster assumes that they have switched."""
        self._change, self._failures = None, 0
        members = [self._roster.workers[worker_id] for worker_id in change.members]
        present = self._roster.members()
        calls = [self._call(worker, change) for worker in present if worker.worker_id in change.holders]
        calls += [Call(worker.worker_id) for worker in members if worker.worker_id not in change.holders]
        for call in calls:
            self._roster.workers[call.worker_id].called = change.generation
        parks, resumes = not members, self._job.paused
        sync = not change.planned or any(not worker.member for worker in members)
        for worker in present:
            if worker not in members and worker.state is WorkerState.TRAINING:
                self._let_go(worker, now, for_good=parks)
            worker.rank = -1
        for rank, worker in enumerate(members):
            worker.is_called(rank, waits=worker.worker_id not in change.holders, now=now)
        if parks:
            commits = max(worker.commits for worker in present)
            self._job.pauses(change.generation)
        else:
            commits = max(worker.commits for worker in members)
            commits = max(commits, self._job.parked or 0) if resumes else commits
            self._job.formed(change.generation, commits)
        return [Go(change.generation, sync, commits, tuple(calls), parks=parks, resumes=resumes)]

    def _call(self, worker: Worker, change: Change) -> Call:
        """The message to a training worker."""
        if worker.worker_id in change.members:
            return Call(worker.worker_id, change.at)
        why = self._roster.agent_of(worker).leaving or (MOVED if self._roster.virtual else "")
        why = why or ("" if change.members else TOO_FEW)
        return Call(worker.worker_id, change.at, leave=why, aside=not why)

    def _let_go(self, worker: Worker, now: float, *, for_good: bool) -> None:
        """Take a worker out of the generation: it ends at the boundary, or (not `for_good`) steps aside."""
        if for_good or self._roster.virtual or self._roster.agent_of(worker).leaving:
            worker.leaves_at_boundary(now)
        else:
            worker.steps_aside(now)
