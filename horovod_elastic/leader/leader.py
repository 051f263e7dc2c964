"""The leader of one job: carries out what membership decides, and has flexod's grants made real.

It lives in the agent that holds the job's lease. One thread (`run`) owns everything and takes events from a
queue; streams, Slurm's commands and the link to flexod live in threads of their own and only post events. So
nothing here needs a lock.

A leader that is not the job's first learns everything from the agents that attach to it, and from Slurm's
queue; training goes on meanwhile. It ends with the job, or before it: when its lease is somebody else's, or
when its own node has to go and another agent is there to lead. An exception that nobody foresaw ends it too:
the leader after it learns everything anew.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from flexo_protos import lease_place
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.leader import membership as m
from horovod_elastic.leader import profiling
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.base_watch import BaseWatch
from horovod_elastic.leader.borrowing import Borrowing
from horovod_elastic.leader.daemon_link import DaemonLink
from horovod_elastic.leader.errands import Training
from horovod_elastic.leader.oversight import Home, Oversight
from horovod_elastic.leader.satellites import ENDS_WITHIN_S, SlurmUser
from horovod_elastic.leader.takeover import Running, Standing
from horovod_elastic.phase import Phase
from horovod_elastic.rendezvous import Rendezvous
from horovod_elastic.shards import Answer, ShardDesk
from horovod_elastic.slurm_job import agent_name
from horovod_elastic.trace import VARIABLE as TRACE
from horovod_elastic.trace import Trace, say, say_error

TICK_S = 0.5
ALIVE_INTERVAL_S = 1.0
SILENCE_BOUND_S = 15.0
"""An agent that has said nothing for so long is believed to be gone."""
BACK_WITHIN_S = 10.0
"""After its stream broke an agent, or the one started in its place, may take so long to attach again. Then
its workers are given up; at once if others notice that they are gone."""
STALL_S = 3.0
"""A tick that comes so late means that this process itself was stopped, or starved."""
ATTACH_TO_FLEXOD_BOUND_S = 10.0
"""How long a new leader looks around before it reports to flexod."""
BASE_SILENCE_S = 5.0
"""After so long Slurm is asked what has become of a base that a leader in a satellite does not hear."""
GOODBYE_BOUND_S = 30.0

AgentOutbox = queue.SimpleQueue[workers_pb2.ToAgent | None]


class Tenure(Protocol):
    """The lease under which one leads. Never raises: its server may be away."""

    @property
    def term(self) -> int:
        """The fencing term: later leaders of this run have higher ones. Any thread."""
        ...

    def certain(self) -> bool:
        """Whether nobody else can have it: it was confirmed a moment ago."""
        ...

    def pass_to(self, successor: str) -> None:
        """Let the agent with this name in the election have it."""
        ...

    def end(self, exit_code: int) -> None:
        """Nobody is to have it: the job is over."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How leading ended. `exit_code` is None when the job goes on under somebody else."""

    exit_code: int | None
    why: str
    failed: bool = False
    """By an exception."""


@dataclass
class AgentLink:
    """An agent: connected, or (`lost_at` set) just disconnected and expected back."""

    outbox: AgentOutbox
    base: bool
    job_id: int
    holder: str
    heard_at: float
    node: str = ""
    gpus: tuple[int, ...] = ()
    """As Slurm numbers them on the node, in the order of slots."""
    lost_at: float | None = None
    leaving: bool = False


@dataclass
class _Timers:
    tick: float
    report: float = 0.0
    alive: float = 0.0


@dataclass
class _Chore:
    interval_s: float
    work: Callable[[], None]
    due: float = 0.0


@dataclass(frozen=True)
class _Meeting:
    """A generation that is being made: where its workers meet, and who they are."""

    rendezvous: Rendezvous
    places: tuple[m.Place, ...]


class Leader:
    """See the module.

    `name` is the agent in whose process it lives, `address` where this node is reached, `inherited` whether
    somebody has led this job before.
    """

    def __init__(
        self,
        plan: JobPlan,
        name: str,
        address: str,
        slurm: SlurmUser,
        tenure: Tenure,
        *,
        members: m.Membership | None = None,
        inherited: bool = False,
    ) -> None:
        self.plan = plan
        self.name = name
        self._address = address
        self._slurm = slurm
        self._tenure = tenure
        self._inherited = inherited
        self._since = time.monotonic()
        base_agents = [agent_name(node.name, plan.base.job_id) for node in plan.base.nodes]
        self._base_agents = frozenset(base_agents)
        self._membership = members or m.Membership(
            plan.base.workers,
            base_agents,
            taking_over=self._since if inherited else None,
            gap=100 + secrets.randbelow(10_000),
        )
        self._trace = Trace(os.environ.get(TRACE, ""))
        self._agents: dict[str, AgentLink] = {}
        self._home: dict[str, str] = {}
        """The agent of every living worker."""
        self._entered: dict[str, int] = {}
        """The last generation that each worker has said it is in."""
        self._meetings: dict[int, _Meeting] = {}
        self._borrowing = Borrowing(slurm, self, self._trace, inherited=inherited)
        self._shards = ShardDesk()
        self._shards_wait = inherited
        """Nothing is handed out before it is known who holds what."""
        if inherited:
            self._shards.take_over({""})
        self._base_watch = BaseWatch(slurm.base_state, self.post)
        self._accounting = Accounting(self._since)
        self._state_told = workers_pb2.LeaderState()
        self._oversight = Oversight(self, profiling_allowed=profiling.allowed())
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._link: DaemonLink | None = None
        self._last_report: jobs_pb2.Report | None = None
        self._timers = _Timers(self._since)
        self._chores: list[_Chore] = []
        self._outcome: Outcome | None = None

    # --- life ----------------------------------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` run in the leader's thread."""
        self._events.put(event)

    def attach_to(self, daemon: str) -> None:
        """Open the stream to flexod, as soon as there is something to tell it. Before `run`."""
        self._link = DaemonLink(
            daemon,
            self._hello,
            on_grants=lambda grants: self.post(lambda: self._on_grants(grants)),
            on_command=lambda command: self.post(
                lambda: self._oversight.commanded(command, time.monotonic())
            ),
            say=say,
        )

    def every(self, interval_s: float, work: Callable[[], None]) -> None:
        """Have `work` run about every `interval_s` in the leader's thread, from `run` on."""
        self._chores.append(_Chore(interval_s, work))

    def run(self) -> Outcome:
        """Lead until the job is over, or somebody else leads it."""
        self._trace.event("leader", agent=self.name, inherited=self._inherited)
        outcome = self._lead()
        try:
            if outcome.exit_code is None:
                self._step_down()
            else:
                self._say_goodbye(outcome.exit_code)
            for meeting in self._meetings.values():
                meeting.rendezvous.close()
        except Exception as error:  # how the job ended stands
            say_error(error)
        return outcome

    def _lead(self) -> Outcome:
        while self._outcome is None:
            try:
                self._one_event(TICK_S)
                self._tick()
            except Exception as error:
                say_error(error)
                if self._outcome is None:
                    self._outcome = Outcome(None, f"an error in it: {error!r}", failed=True)
                    self._tenure.pass_to(self._successor_holder())
        return self._outcome

    def stop(self, exit_code: int, why: str) -> None:
        """End the job from outside. Any thread."""
        self.post(lambda: self._end(exit_code, why))

    def lost_lease(self, holder: str) -> None:
        """Somebody else has it now, or ("") may have it. Any thread."""
        self.post(lambda: self._resign(f"{holder or 'nobody'} has the lease"))

    def _one_event(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        event()

    def _tick(self) -> None:
        now = time.monotonic()
        if now > self._timers.tick + STALL_S:
            self._forgive(now)
        self._timers.tick = now
        if self._membership.taking_over and self._all_agents_are_here():
            self._carry_out(self._membership.everybody_is_here(now))
        if self._shards_wait and not self._membership.taking_over:
            self._shards_wait = False
            self._shards.take_over(worker.worker_id for worker in self._membership.present())
        self._accounting.train(self._workers_in_satellites(), now)
        self._watch_base(now)
        self._watch_agents(now)
        self._carry_out(self._membership.tick(now))
        self._oversight.tick(now)
        self._borrowing.tick(now)
        self._report(now)
        for chore in self._chores:
            if now >= chore.due:
                chore.due = now + chore.interval_s
                chore.work()

    def _workers_in_satellites(self) -> int:
        """Those that train now: a worker may take long to end after the training function has returned."""
        if self._membership.finishing:
            return 0
        satellites = {name for name, link in self._agents.items() if not link.base}
        return sum(worker.agent in satellites for worker in self._membership.present())

    def _forgive(self, now: float) -> None:
        """Nobody was silent while this process did not run. What they have said meanwhile comes first."""
        for link in self._agents.values():
            link.heard_at = now

    def _end(self, exit_code: int, why: str) -> None:
        if self._outcome is None:
            self._outcome = Outcome(exit_code, why)

    def _base_is_here(self) -> bool:
        return any(link.base and link.lost_at is None for link in self._agents.values())

    def _leave_it_to_the_base(self, why: str) -> None:
        """A leader in a satellite has nobody left to train with. That is no end of the job: a base that says
        nothing may be suspended, and its own workers go on when Slurm resumes it.
        """
        if self._outcome is None:
            self._borrowing.close()
            self._tenure.pass_to("")
            self._resign(f"{why} here, and the base, which says nothing, may still go on")

    def _resign(self, why: str) -> None:
        if self._outcome is None:
            self._outcome = Outcome(None, why)

    def _say_goodbye(self, exit_code: int) -> None:
        """Dismiss everybody, wait for them a little, cancel what is left of the satellites."""
        assert self._outcome is not None
        why = self._outcome.why
        if exit_code:
            say(f"the job ends with exit code {exit_code}: {why}")
        self._trace.event("end", exit_code=exit_code, why=why)
        self._tenure.end(exit_code)
        farewell = workers_pb2.ToAgent(dismiss=workers_pb2.Dismiss(reason=why, exit_code=exit_code))
        for agent in self._agents.values():
            agent.outbox.put(farewell)
        self._borrowing.close()
        self._borrowing.end_those_without_agents()
        # A satellite that is just being submitted has no id yet: without it, it cannot be cancelled.
        deadline = time.monotonic() + GOODBYE_BOUND_S
        while time.monotonic() < deadline and (
            self._connected() or not self._events.empty() or self._borrowing.submitting()
        ):
            self._one_event(0.1)
        self._borrowing.end_all(min(deadline, time.monotonic() + ENDS_WITHIN_S))
        if self._link is not None:
            self._link.close(why)
        if self.plan.base.elastic:
            say(self._accounting.sentence(self.plan.base.shape.gpus))

    def _step_down(self) -> None:
        """The job goes on, led by somebody else."""
        assert self._outcome is not None
        say(f"the agent {self.name} leads no more: {self._outcome.why}")
        self._trace.event("stepped down", agent=self.name, why=self._outcome.why)
        self._borrowing.close()
        self._tell_state()
        for agent in self._agents.values():
            agent.outbox.put(workers_pb2.ToAgent(stepped_down=workers_pb2.SteppedDown()))
            agent.outbox.put(None)
        if self._link is not None:
            self._link.hang_up()

    # --- agents --------------------------------------------------------------------------------

    def agent_attached(self, name: str, hello: workers_pb2.AgentHello, outbox: AgentOutbox) -> None:
        """An agent has said hello (leader's thread, like everything below)."""
        unwanted, exit_code = "", 0
        if self._outcome is not None:
            unwanted, exit_code = "the job is over", self._outcome.exit_code or 0
        elif not hello.base:
            unwanted = self._borrowing.admit(name, hello)
        if unwanted and not hello.workers:
            dismiss = workers_pb2.Dismiss(reason=unwanted, exit_code=exit_code)
            outbox.put(workers_pb2.ToAgent(dismiss=dismiss))
            return
        now = time.monotonic()
        self._accounting.inherit(hello.leader_state.accounting)
        self._borrowing.submitted_elsewhere(hello.leader_state.submitting, now)
        known = self._agents.get(name)
        link = self._agents[name] = AgentLink(
            outbox,
            hello.base,
            hello.slurm_job_id,
            hello.holder,
            now,
            node=hello.node,
            gpus=tuple(hello.gpus),
            leaving=hello.leaving,
        )
        if self._state_told != workers_pb2.LeaderState():
            outbox.put(workers_pb2.ToAgent(leader_state=self._state_told))
        if known is not None:
            self._welcome_back(name, known, link, hello, now)
            if self._outcome is not None:
                return
        self._trace.event("agent", agent=name, slots=hello.slots, workers=len(hello.workers))
        for worker in hello.workers:
            self._home[worker.worker_id] = name
            self._entered[worker.worker_id] = worker.standing.generation
        running = [_running(worker) for worker in hello.workers]
        self._carry_out(self._membership.agent_joined(name, hello.slots, hello.base, now, running))
        if hello.leaving:
            self.agent_leaving(name, "Slurm takes the node back (SIGTERM)")
        elif unwanted:
            self.send_away(name, unwanted)

    def _welcome_back(
        self, name: str, known: AgentLink, link: AgentLink, hello: workers_pb2.AgentHello, now: float
    ) -> None:
        """Its stream had broken, or a new process has taken its place: its workers tell which."""
        if not hello.workers:
            self._lose(name, "its agent was started again", now)
            self._agents[name] = link
            return
        # Nobody knows what was lost under way. Whoever leads anew asks everybody where they stand.
        known.outbox.put(None)
        if self._outcome is None:
            self._borrowing.close()
            self._tenure.pass_to("")
            self._resign(f"the agent {name} was away for a moment")

    def agent_said(self, name: str, outbox: AgentOutbox, message: workers_pb2.FromAgent) -> None:
        """Anything else that an agent says."""
        link = self._agents.get(name)
        if link is None or link.outbox is not outbox:
            return
        link.heard_at = time.monotonic()
        kind = message.WhichOneof("body")
        if kind == "worker_said":
            self._worker_said(message.worker_said.worker_id, message.worker_said.said)
        elif kind == "worker_exited":
            gone = message.worker_exited
            self._worker_exited(gone.worker_id, gone.exit_code, gone.why)
        elif kind == "leaving":
            self.agent_leaving(name, message.leaving.reason)

    def agent_leaving(self, name: str, reason: str) -> None:
        """Slurm has told this agent to go."""
        link = self._agents.get(name)
        if link is None:
            return
        link.leaving = True
        if link.base:
            self._end(143, "Slurm ends the base (SIGTERM)")
            return
        self._borrowing.leaves(name, reason)
        self.send_away(name, reason)

    def send_away(self, agent: str, why: str) -> None:
        """See borrowing.Office. If it is the leader's own, another one leads first, and sends it away."""
        if agent == self.name and self._hand_over(why):
            return
        self._carry_out(self._membership.release(agent, why, time.monotonic()))

    def _hand_over(self, why: str) -> bool:
        """Have another agent lead, one of the base if there is any; whether there is one at all."""
        successor = self._successor()
        if self._outcome is not None or not successor:
            return False
        self._borrowing.close()
        self._tell_state()
        self._tenure.pass_to(self._agents[successor].holder)
        self._agents[successor].outbox.put(workers_pb2.ToAgent(hand_over=workers_pb2.HandOver()))
        self._resign(f"its node has to go ({why}), and {successor} goes on")
        return True

    def _successor(self) -> str:
        """An agent that could lead: one of the base if there is any. "": nobody."""
        candidates = [
            (not link.base, name)
            for name, link in self._agents.items()
            if name != self.name and link.lost_at is None and not link.leaving
        ]
        return min(candidates)[1] if candidates else ""

    def _successor_holder(self) -> str:
        """Its name in the election, or ""."""
        successor = self._agents.get(self._successor())
        return successor.holder if successor is not None else ""

    def agent_detached(self, name: str, outbox: AgentOutbox) -> None:
        """An agent's stream has ended."""
        link = self._agents.get(name)
        if link is None or link.outbox is not outbox:
            return
        if self._outcome is not None:
            del self._agents[name]
        elif link.lost_at is None:
            link.lost_at = time.monotonic()

    def _watch_agents(self, now: float) -> None:
        if now >= self._timers.alive:
            self._timers.alive = now + ALIVE_INTERVAL_S
            alive = workers_pb2.ToAgent(alive=workers_pb2.Alive())
            for link in self._agents.values():
                if link.lost_at is None:
                    link.outbox.put(alive)
            self._tell_state()
        for name, link in list(self._agents.items()):
            if link.base and self._membership.standing_still:
                continue
            if link.lost_at is not None and (now > link.lost_at + BACK_WITHIN_S or self._membership.broken):
                self._lose(name, "its agent is gone", now)
            elif now > link.heard_at + SILENCE_BOUND_S and self._tenure.certain():
                self._lose(name, f"its agent has said nothing for {SILENCE_BOUND_S:.0f} s", now)

    def _tell_state(self) -> None:
        """What only this leader knows, for the one after it."""
        state = workers_pb2.LeaderState(submitting=self._borrowing.submitting())
        if (accounting := self._accounting.told()) != workers_pb2.Accounting():
            state.accounting.CopyFrom(accounting)
        if state != self._state_told:
            self._state_told = state
            for link in self._agents.values():
                if link.lost_at is None:
                    link.outbox.put(workers_pb2.ToAgent(leader_state=state))

    def _lose(self, name: str, why: str, now: float) -> None:
        link = self._agents.pop(name)
        link.outbox.put(None)
        for worker_id in [w for w, home in self._home.items() if home == name]:
            self._forget_worker(worker_id)
        self._carry_out(self._membership.agent_lost(name, why, now))
        if not link.base:
            self._borrowing.gone(name)

    def _watch_base(self, now: float) -> None:
        """A leader in a satellite must not outlive the base, and not go on without one that is suspended."""
        heard = now <= self._since + BASE_SILENCE_S or any(
            link.base and link.lost_at is None and now <= link.heard_at + BASE_SILENCE_S
            for link in self._agents.values()
        )
        self._base_watch.look(self._inherited and not heard, now)
        if self._base_watch.ended:
            self._end(1, "the base has ended")
            return
        stand = self._base_watch.waited_for(now)
        if stand is not self._membership.standing_still:
            self._trace.event("stand still" if stand else "go on")
            self._carry_out(self._membership.stand_still(stand, now))

    def _all_agents_are_here(self) -> bool:
        here = {name for name, link in self._agents.items() if link.lost_at is None}
        return here >= self._base_agents and self._borrowing.everybody_is_here

    def _connected(self) -> bool:
        return any(link.lost_at is None for link in self._agents.values())

    # --- workers -------------------------------------------------------------------------------

    def _worker_said(self, worker_id: str, message: workers_pb2.FromWorker) -> None:
        now, members = time.monotonic(), self._membership
        kind = message.WhichOneof("body")
        if kind == "standing":
            self._trace_standing(worker_id, message.standing)
            if not members.taking_over:
                self._accounting.paused(message.standing.generation, message.standing.paused_s)
            self._carry_out(members.worker_stands(worker_id, _standing(message.standing), now))
            self._hand_out(self._shards.stands(worker_id, message.standing.held))
            self._oversight.stands(worker_id, message.standing, now)
        elif kind == "shards_wanted":
            self._hand_out(self._shards.wanted(worker_id, message.shards_wanted))
        elif kind == "shard_ledger":
            self._hand_out(self._shards.ledger(message.shard_ledger))
        elif kind == "task_done":
            self._oversight.task_done(worker_id, message.task_done)
        elif kind == "prepared":
            prepared = message.prepared
            self._trace.event(
                "prepared", worker=worker_id, generation=prepared.generation, failure=prepared.failure
            )
            if prepared.failure:
                which = f"worker {worker_id} (generation {prepared.generation})"
                say(f"{which} cannot be connected: {prepared.failure}")
            self._carry_out(members.worker_prepared(worker_id, prepared.generation, prepared.failure, now))
        elif kind == "accepted":
            said = message.accepted
            self._carry_out(
                members.worker_accepted(worker_id, said.generation, said.at, said.boundary, said.passed, now)
            )

    def _worker_exited(self, worker_id: str, exit_code: int, why: str) -> None:
        self._trace.event("left", worker=worker_id, exit_code=exit_code, why=why)
        self._forget_worker(worker_id)
        self._carry_out(self._membership.worker_exited(worker_id, exit_code, time.monotonic()))

    def _forget_worker(self, worker_id: str) -> None:
        self._home.pop(worker_id, None)
        self._entered.pop(worker_id, None)
        self._oversight.worker_gone(worker_id)
        self._hand_out(self._shards.worker_gone(worker_id))

    def _hand_out(self, answers: list[Answer]) -> None:
        for worker_id, shards in answers:
            self.tell_worker(worker_id, workers_pb2.ToWorker(shards=shards))

    def _trace_standing(self, worker_id: str, standing: workers_pb2.Standing) -> None:
        known = self._entered.get(worker_id, -1)
        if known < 0 and standing.phase == workers_pb2.WORKER_PHASE_READY:
            self._entered[worker_id] = 0
            self._trace.event("ready", worker=worker_id)
        elif standing.phase == workers_pb2.WORKER_PHASE_TRAINING and standing.generation > known:
            self._entered[worker_id] = standing.generation
            self._trace.event("entered", worker=worker_id, generation=standing.generation, rank=standing.rank)

    # --- what membership decides ---------------------------------------------------------------

    def _carry_out(self, commands: list[m.Command]) -> None:
        for command in commands:
            if isinstance(command, m.End):  # first of all, so that what goes with it is known for what it is
                if command.exit_code and not self._base_is_here():
                    self._leave_it_to_the_base(command.why)
                else:
                    self._end(command.exit_code, command.why)
        for command in commands:
            self._carry_out_one(command)

    def _carry_out_one(self, command: m.Command) -> None:
        match command:
            case m.Start():
                self._start_worker(command)
            case m.Kill(worker_id, agent, why):
                say(f"worker {worker_id} on {agent} is killed: {why}")
                kill = workers_pb2.KillWorker(worker_id=worker_id)
                self._tell_agent(agent, workers_pb2.ToAgent(kill_worker=kill))
            case m.Prepare(generation, places):
                self._prepare(generation, places)
            case m.Abandon(generation, worker_ids):
                self._abandon(generation, worker_ids)
            case m.Go():
                self._go(command)
            case m.Dismiss(agent, why):
                self._dismiss(agent, why)
            case m.Propose() | m.Withdraw() | m.Broken() | m.Leave():
                self._pass_on(command)

    def _pass_on(self, command: m.Propose | m.Withdraw | m.Broken | m.Leave) -> None:
        """What only has to be told to workers."""
        match command:
            case m.Propose(generation, at, worker_ids):
                self._trace.event("propose", generation=generation, at=at)
                propose = workers_pb2.Propose(generation=generation, at=at)
                self._tell_workers(worker_ids, workers_pb2.ToWorker(propose=propose))
            case m.Withdraw(generation, at, worker_ids):
                withdraw = workers_pb2.Withdraw(generation=generation, at=at)
                self._tell_workers(worker_ids, workers_pb2.ToWorker(withdraw=withdraw))
            case m.Broken(generation, worker_ids, why):
                self._trace.event("broken", generation=generation, why=why)
                broken = workers_pb2.Broken(generation=generation, why=why)
                self._tell_workers(worker_ids, workers_pb2.ToWorker(broken=broken))
            case m.Leave(worker_id, why):
                leave = workers_pb2.Leave(reason=why)
                self.tell_worker(worker_id, workers_pb2.ToWorker(leave=leave))

    def _start_worker(self, start: m.Start) -> None:
        if self._outcome is not None:
            return
        outlook = start.outlook
        self._home[start.worker_id] = start.agent
        order = workers_pb2.StartWorker(
            worker_id=start.worker_id,
            slot=start.slot,
            newcomer=start.newcomer,
            outlook=workers_pb2.Outlook(
                rank=outlook.rank,
                size=outlook.size,
                local_rank=outlook.local_rank,
                local_size=outlook.local_size,
                cross_rank=outlook.cross_rank,
                cross_size=outlook.cross_size,
            ),
        )
        self._trace.event("start", worker=start.worker_id, agent=start.agent, newcomer=start.newcomer)
        self._tell_agent(start.agent, workers_pb2.ToAgent(start_worker=order))

    def _prepare(self, generation: int, places: tuple[m.Place, ...]) -> None:
        ranks = {f"{place.agent}:{place.local_rank}": _rank_line(place) for place in places}

        def failed(error: Exception) -> None:
            self.post(lambda: self._rendezvous_failed(generation, error))

        rendezvous = Rendezvous(self._address, ranks, secrets.token_hex(16), failed)
        meeting = self._meetings[generation] = _Meeting(rendezvous, places)
        self._trace.event("prepare", generation=generation, workers=len(places))
        for place in places:
            prepare = workers_pb2.Prepare(
                generation=generation,
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                local_size=place.local_size,
                cross_rank=place.cross_rank,
                cross_size=place.cross_size,
                hostname=place.agent,
                rendezvous_address=meeting.rendezvous.address,
                rendezvous_port=meeting.rendezvous.port,
            )
            self.tell_worker(place.worker_id, workers_pb2.ToWorker(prepare=prepare))

    def _rendezvous_failed(self, generation: int, error: Exception) -> None:
        """Its members cannot meet: if they have not yet, this attempt is given up at once."""
        say_error(error)
        if meeting := self._meetings.get(generation):
            why, now = f"its rendezvous failed: {error!r}", time.monotonic()
            member = meeting.places[0].worker_id
            self._carry_out(self._membership.worker_prepared(member, generation, why, now))

    def _abandon(self, generation: int, worker_ids: tuple[str, ...]) -> None:
        self._trace.event("abandon", generation=generation)
        abandon = workers_pb2.Abandon(generation=generation)
        self._tell_workers(worker_ids, workers_pb2.ToWorker(abandon=abandon))
        if meeting := self._meetings.pop(generation, None):
            _close(meeting)

    def _go(self, go: m.Go) -> None:
        self._trace.event("go", generation=go.generation, sync=go.sync, commits=go.commits)
        places = self._meetings[go.generation].places
        self._oversight.goes(go.generation, [place.worker_id for place in places])
        for call in go.calls:
            word = workers_pb2.Go(
                generation=go.generation,
                at=call.at,
                sync=go.sync,
                leave=call.leave,
                aside=call.aside,
            )
            self.tell_worker(call.worker_id, workers_pb2.ToWorker(go=word))
        for generation in [each for each in self._meetings if each < go.generation]:
            _close(self._meetings.pop(generation))
        self._accounting.go(len(places))
        nodes = len({place.agent for place in places})
        say(
            f"{_count(len(places), 'worker')} on {_count(nodes, 'node')} "
            f"after {_count(go.commits, 'batch', 'batches')} (generation {go.generation})"
        )

    def _dismiss(self, agent: str, why: str) -> None:
        link = self._agents.get(agent)
        if link is None:
            return
        if not link.base and self._outcome is None:
            self._borrowing.failed(agent, why)
        if agent == self.name and not self._membership.finishing:
            self._hand_over(why)
        exit_code = self._outcome.exit_code if self._outcome is not None else None
        dismiss = workers_pb2.Dismiss(reason=why, exit_code=exit_code or 0)
        link.outbox.put(workers_pb2.ToAgent(dismiss=dismiss))

    def _tell_agent(self, agent: str, message: workers_pb2.ToAgent) -> None:
        if link := self._agents.get(agent):
            link.outbox.put(message)

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """Through its agent; silent about one that is gone."""
        tell = workers_pb2.TellWorker(worker_id=worker_id, message=message)
        self._tell_agent(self._home.get(worker_id, ""), workers_pb2.ToAgent(tell_worker=tell))

    def _tell_workers(self, worker_ids: tuple[str, ...], message: workers_pb2.ToWorker) -> None:
        for worker_id in worker_ids:
            self.tell_worker(worker_id, message)

    # --- what flexod asks for ------------------------------------------------------------------

    def _on_grants(self, grants: jobs_pb2.Grants) -> None:
        self._oversight.batch_wanted(grants.batch)
        self._oversight.speeds_are(grants.speeds)
        self._borrowing.on_grants(grants)

    def training(self) -> Training:
        """See oversight.Office."""
        members = self._membership
        workers = tuple(worker.worker_id for worker in members.present()) if members.scalable else ()
        return Training(members.generation, workers, members.changing)

    def home_of(self, worker_id: str) -> Home | None:
        """See oversight.Office."""
        worker, link = self._membership.worker(worker_id), self._agents.get(self._home.get(worker_id, ""))
        if worker is None or link is None:
            return None
        gpus = self.plan.base.shape.gpus
        here = sum(home == worker.agent for home in self._home.values())
        mine = link.gpus[worker.slot * gpus :][:gpus]
        return Home(worker.agent, link.node, link.base, here, mine)

    def limit_workers(self, workers: int | None) -> None:
        """See oversight.Office."""
        self._carry_out(self._membership.limit(workers, time.monotonic()))

    def give_back_slow(self, agent: str, why: str) -> None:
        """See oversight.Office."""
        self._borrowing.slow(agent, why)
        self.send_away(agent, why)

    # --- what flexod is told -------------------------------------------------------------------

    @property
    def finishing(self) -> bool:
        """See borrowing.Office."""
        return self._membership.finishing or self._outcome is not None

    def agent_trains(self, agent: str) -> bool:
        """See borrowing.Office."""
        return self._membership.agent_trains(agent)

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """See borrowing.Office."""
        if self._link is not None:
            self._link.send(message)

    def _report(self, now: float) -> None:
        """Report when something changed, and as often as flexod wants to hear it."""
        if self._link is None or not self._oriented(now):
            return
        report = self._present()
        changed = _without_progress(report) != _without_progress(self._last_report)
        if changed or now >= self._timers.report:
            self._timers.report = now + self._link.report_interval_s
            self._last_report = report
            self._link.start()
            self._link.send(jobs_pb2.FromLeader(report=report))

    def _oriented(self, now: float) -> bool:
        """Whether a leader that has taken over knows enough to speak for the job."""
        if self._last_report is not None or not self._inherited:
            return True
        known = self._borrowing.complete and self._membership.generation > 0
        return known or now > self._since + ATTACH_TO_FLEXOD_BOUND_S

    def _present(self) -> jobs_pb2.Report:
        return jobs_pb2.Report(
            workers=self._membership.size,
            generation=self._membership.generation,
            batches_committed=self._membership.commits,
            progress=self._membership.progress,
            scalable=self._membership.scalable
            and not self._membership.finishing
            and not self._oversight.unscalable_why,
            changing=self._membership.changing,
            errand=self._oversight.errand,
            unscalable_why=self._oversight.unscalable_why,
            satellites=self._borrowing.report(),
        )

    def _hello(self) -> jobs_pb2.Hello:
        """Asked for by the link's thread; reads the last report, which is never changed once made."""
        base = self.plan.base
        return jobs_pb2.Hello(
            job_id=base.job_id,
            restart_count=base.restart_count,
            workers=jobs_pb2.WorkerRange(min=base.minimum, max=base.maximum),
            shape=jobs_pb2.WorkerShape(
                gpus=base.shape.gpus,
                cpus=base.shape.cpus,
                memory_mib=base.shape.memory_mib,
                gpu_type=base.shape.gpu_type,
            ),
            base_nodes=[node.name for node in base.nodes],
            report=self._last_report or jobs_pb2.Report(),
            flexo_version=_release(),
            term=self._tenure.term,
            run=lease_place.parse(self.plan.leases).run,
        )


def _release() -> str:
    """This package's; "" where it is not installed, as in a checkout on PYTHONPATH."""
    try:
        return version("flexo")
    except PackageNotFoundError:
        return ""


def _standing(said: workers_pb2.Standing) -> Standing:
    return Standing(
        phase=Phase(said.phase or Phase.STARTING.value),
        generation=said.generation,
        rank=said.rank,
        size=said.size,
        commits=said.commits,
        progress=said.progress,
        boundary=said.boundary,
        in_loop=said.in_loop,
        holding=said.holding,
        prepared=said.prepared,
        called=said.called,
        going=said.going,
    )


def _running(worker: workers_pb2.RunningWorker) -> Running:
    return Running(worker.worker_id, worker.slot, worker.newcomer, _standing(worker.standing))


def _rank_line(place: m.Place) -> str:
    """What gloo_context.cc parses in answer to rank_and_size."""
    numbers = (place.rank, place.size, place.local_rank, place.local_size)
    return ",".join(map(str, (*numbers, place.cross_rank, place.cross_size)))


def _close(meeting: _Meeting) -> None:
    threading.Thread(target=meeting.rendezvous.close, name="close-rendezvous", daemon=True).start()


def _without_progress(report: jobs_pb2.Report | None) -> bytes:
    if report is None:
        return b"none"
    copy = jobs_pb2.Report()
    copy.CopyFrom(report)
    copy.batches_committed = 0
    copy.progress = 0.0
    return copy.SerializeToString()


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
