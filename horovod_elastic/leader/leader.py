"""The leader of one job: its thread, its agents, and its end.

The leader lives in the agent that holds the job's lease. One thread (`run`) owns everything and takes events
from a queue. Streams, the cluster's commands and the link to flexod live in threads of their own and only
post events. So nothing here needs a lock.

A leader that is not the job's first learns everything from the agents that attach to it, and from the
cluster's queue. Training goes on meanwhile. A leader ends with the job. It ends earlier when another agent
has its lease, or when its own node has to go and another agent can lead. An unforeseen exception ends the
leader too; the next leader learns everything anew.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from flexo_protos.resources import rounded_up
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import reproducible
from horovod_elastic.job_plan import BaseJob, JobPlan
from horovod_elastic.leader import profiling
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.agent_links import AgentLink, AgentLinks, AgentOutbox
from horovod_elastic.leader.assigned_sums import AssignedSums
from horovod_elastic.leader.attendance import Attendance
from horovod_elastic.leader.base_watch import BaseWatch
from horovod_elastic.leader.command_executor import CommandExecutor
from horovod_elastic.leader.daemon_link import DaemonLink
from horovod_elastic.leader.failed_workers import FailureCollector
from horovod_elastic.leader.membership.commands import (
    Command,
    Dismiss,
    End,
    GoBack,
    Start,
    WorkerFailed,
)
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.virtual_workers import Slot, VirtualWorkers, slot_of
from horovod_elastic.leader.notices import Notices, wanted
from horovod_elastic.leader.oversight import Home, Oversight
from horovod_elastic.leader.parked_store import ParkedStore
from horovod_elastic.leader.pending_commands import Training
from horovod_elastic.leader.reporting import Reporter
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.leader.satellite_sums import SatelliteSums
from horovod_elastic.leader.succession import LeaseHandle, Succession
from horovod_elastic.leader.worker_messages import WorkerMessages
from horovod_elastic.platforms.base import (
    ENDS_WITHIN_S,
    AggregatorSatellites,
    JobControl,
    agent_name,
)
from horovod_elastic.trace import VARIABLE as TRACE
from horovod_elastic.trace import Trace, say, say_error

TICK_S = 0.5
ALIVE_INTERVAL_S = 1.0
GOODBYE_BOUND_S = 30.0
ANSWERS_WITHIN_S = 30.0
"""Longest time until the leader's thread has answered a thread that asks it."""
_TAKEN_BACK = "the cluster takes the node back (SIGTERM)"
_TERMINATED = "it was cancelled, interrupted, preempted or out of time (SIGTERM)"


@dataclass(frozen=True, slots=True)
class LeadershipOutcome:
    """The end of a leader's time. `exit_code` is None when the job goes on under another leader."""

    exit_code: int | None
    why: str
    failed: bool = False
    """Whether an exception ended it."""


@dataclass
class _Chore:
    interval_s: float
    work: Callable[[], None]
    due: float = 0.0


class Leader:
    """See the module.

    `name`: name of the agent in whose process the leader lives. `address`: address at which this node is
    reached. `inherited`: whether another leader has led this job before. `parked`: the base's store for the
    state of an opportunistic job. `script`: see try_batches.script_digest.
    `python`: the Python that workers run; "": they run something else.
    """

    def __init__(
        self,
        plan: JobPlan,
        name: str,
        address: str,
        cluster: JobControl,
        lease: LeaseHandle,
        *,
        members: Membership | None = None,
        inherited: bool = False,
        parked: ParkedStore | None = None,
        script: str = "",
        python: str = "",
    ) -> None:
        self.plan = plan
        self._python = python
        self._parked = parked
        self.name = name
        self._lease = lease
        self._began_under = lease.term
        self._inherited = inherited
        since = time.monotonic()
        self._alive_due = 0.0
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._chores: list[_Chore] = []
        self._outcome: LeadershipOutcome | None = None
        base_agents = [agent_name(node.name, plan.base.job_id) for node in plan.base.nodes]
        head = None if parked is None else parked.head()
        self._membership = members or Membership(
            plan.base.founders,
            base_agents,
            taking_over=since if inherited else None,
            gap=100 + secrets.randbelow(10_000),
            unit=plan.base.unit,
            virtual=_virtual_workers(plan.base),
            minimum=plan.base.minimum if plan.base.opportunistic else 0,
            parked=None if head is None else head.commits,
        )
        self._trace = Trace(os.environ.get(TRACE, ""))
        self._agents = AgentLinks(of_base=plan.base.opportunistic)
        self._sums = AssignedSums(self._agents)
        self._satellite_sums = SatelliteSums(plan.base, possible=isinstance(cluster, AggregatorSatellites))
        self._knows_sums = not inherited
        """Whether the agents of all satellites have attached that an earlier leader may have assigned."""
        self._accounting = Accounting(since)
        self._failed_workers = FailureCollector()
        self._notices = Notices(wanted(os.environ), plan.base.job_id, plan.base.restart_count)
        self._satellites = SatelliteManager(cluster, self, self._trace, inherited=inherited)
        self._attendance = Attendance(
            self._agents,
            self._membership,
            lease,
            BaseWatch(cluster.base_state, self.post),
            base_agents,
            inherited=inherited,
            since=since,
        )
        allowed = profiling.allowed()
        self._oversight = Oversight(
            self, profiling_allowed=allowed, unit=plan.base.unit, batch=plan.base.batch
        )
        self._executor = CommandExecutor(
            self._agents,
            address,
            self._oversight,
            self._accounting,
            self._notices,
            self._trace,
            lambda generation, error: self.post(lambda: self._rendezvous_failed(generation, error)),
        )
        self._workers = WorkerMessages(
            self._membership,
            self._agents,
            self._oversight,
            self._accounting,
            self._trace,
            self._carry_out,
            inherited=inherited,
        )
        if head is not None:
            self._workers.goes_on_from(head.epoch, head.batches)
        self._succession = Succession(name, lease, self._agents, self._satellites, self._accounting)
        self._reporter = Reporter(
            plan,
            lease,
            self._membership,
            self._satellites,
            self._oversight,
            self._sums,
            self._satellite_sums,
            self._accounting,
            inherited=inherited,
            since=since,
            script=script,
        )

    # --- life ----------------------------------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` run in the leader's thread."""
        self._events.put(event)

    def attach_to(self, daemon: str) -> None:
        """Open a stream to flexod as soon as there is a first report. Call it before `run`."""
        self._reporter.attach(
            DaemonLink(
                daemon,
                self._reporter.hello,
                on_grants=lambda grants: self.post(lambda: self._on_grants(grants)),
                on_command=lambda command: self.post(
                    lambda: self._oversight.commanded(command, time.monotonic())
                ),
                say=say,
                on_aggregators=lambda told: self.post(lambda: self._on_aggregators(told)),
                on_welcome=lambda welcome: self.post(lambda: self._oversight.welcomed(welcome)),
            )
        )

    def every(self, interval_s: float, work: Callable[[], None]) -> None:
        """Have `work` run in the leader's thread, about every `interval_s`, once `run` has begun."""
        self._chores.append(_Chore(interval_s, work))

    def run(self) -> LeadershipOutcome:
        """Lead until the job is over, or another leader has it."""
        self._trace.event("leader", agent=self.name, inherited=self._inherited)
        outcome = self._lead()
        try:
            if outcome.exit_code is None:
                self._step_down()
            else:
                self._say_goodbye(outcome.exit_code)
            self._executor.close()
        except Exception as error:  # it does not change the outcome
            say_error(error)
        return outcome

    def _lead(self) -> LeadershipOutcome:
        while self._outcome is None:
            try:
                self._one_event(TICK_S)
                self._tick()
            except Exception as error:
                say_error(error)
                if self._outcome is None:
                    self._outcome = LeadershipOutcome(None, f"an error in it: {error!r}", failed=True)
                    self._succession.fail()
        return self._outcome

    def stop(self, exit_code: int, why: str) -> None:
        """End the job from outside. Any thread may call it."""
        self.post(lambda: self._end(exit_code, why))

    def lost_lease(self, holder: str) -> None:
        """Stop leading: `holder` has the lease now; "": some other agent may have it. For any thread."""
        self.post(lambda: self._resign(f"{holder or 'nobody'} has the lease"))

    def _one_event(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        event()

    def _tick(self) -> None:
        now = time.monotonic()
        self._attendance.tick(now)
        if self._membership.taking_over and self._everybody_is_here():
            self._carry_out(self._membership.everybody_is_here(now))
        self._workers.tick()
        self._accounting.train(self._workers_in_satellites(), now)
        self._watch_base(now)
        self._watch_agents(now)
        self._carry_out(self._membership.tick(now))
        self._tell_of_failed_workers(now)
        self._oversight.tick(now)
        self._satellites.tick(now)
        self._place_sums(now)
        self._renew_sums(now)
        self._reporter.tick(now)
        for chore in self._chores:
            if now >= chore.due:
                chore.due = now + chore.interval_s
                chore.work()

    def _workers_in_satellites(self) -> int:
        """Number of workers in satellites that train now.

        A worker may take long to end after the training function has returned; it does not count then.
        """
        if self._membership.finishing:
            return 0
        satellites = self._agents.satellites()
        members = self._membership.present()
        return len({slot_of(worker) for worker in members if worker.agent in satellites})

    def _tell_of_failed_workers(self, now: float) -> None:
        for failed in self._failed_workers.take(now):
            say(failed.sentence(self._membership.size))
            if failed.again:  # else the grant is given back, and the reason with it
                self._reporter.send(jobs_pb2.FromLeader(workers_failed=failed.told()))
            self._trace.event(
                "workers failed",
                node=failed.node,
                workers=failed.workers,
                exit_code=failed.exit_code,
                trained=failed.trained,
                again=failed.again,
            )

    # --- the end -------------------------------------------------------------------------------

    def _end(self, exit_code: int, why: str) -> None:
        if self._outcome is None:
            self._outcome = LeadershipOutcome(exit_code, why)

    def _resign(self, why: str) -> None:
        if self._outcome is None:
            self._outcome = LeadershipOutcome(None, why)

    def _hand_over(self, why: str) -> bool:
        """Have another agent lead, one of the base if possible; return whether there is another agent."""
        successor = self._succession.hand_over() if self._outcome is None else ""
        if successor:
            self._resign(f"its node has to go ({why}), and {successor} goes on")
        return bool(successor)

    def _let_anybody_lead(self, why: str) -> None:
        if self._outcome is None:
            self._succession.let_anybody_lead()
            self._resign(why)

    def _say_goodbye(self, exit_code: int) -> None:
        """Dismiss all agents, wait up to GOODBYE_BOUND_S for them, and cancel the remaining satellites."""
        assert self._outcome is not None
        why = self._outcome.why
        if exit_code:
            say(f"the job ends with exit code {exit_code}: {why}")
        self._trace.event("end", exit_code=exit_code, why=why)
        self._lease.end(exit_code)
        dismiss = workers_pb2.Dismiss(reason=why, exit_code=exit_code)
        self._agents.tell_all(workers_pb2.ToAgent(dismiss=dismiss))
        self._satellites.close()
        self._satellites.end_those_without_agents()
        # A satellite that is just being submitted has no id yet, and cannot be cancelled without its id.
        deadline = time.monotonic() + GOODBYE_BOUND_S
        while time.monotonic() < deadline and (
            self._agents.here() or not self._events.empty() or self._satellites.submitting()
        ):
            self._one_event(0.1)
        self._satellites.end_all(min(deadline, time.monotonic() + ENDS_WITHIN_S))
        self._reporter.close(why)
        if self._parked is not None:
            self._parked.remove()
        gained = self._accounting.sentence(self.plan.base.shape.gpus)
        if self.plan.base.elastic:
            say(gained)
        self._notices.ended(exit_code, f"{why}; {gained}" if self.plan.base.elastic else why)
        self._notices.close()

    def _step_down(self) -> None:
        """Tell the agents that another leader leads from now on."""
        assert self._outcome is not None
        say(f"the agent {self.name} leads no more: {self._outcome.why}")
        self._trace.event("stepped down", agent=self.name, why=self._outcome.why)
        self._satellites.close()
        self._succession.tell()
        self._agents.step_down()
        self._notices.close()
        self._reporter.hang_up()

    # --- agents --------------------------------------------------------------------------------

    def agent_attached(self, name: str, hello: workers_pb2.AgentHello, outbox: AgentOutbox) -> None:
        """Take an agent's hello. Runs in the leader's thread, like all methods below."""
        if hello.followed_term > self._began_under:
            self._give_way(name, hello.followed_term, outbox)
            return
        unwanted, exit_code = "", 0
        if self._outcome is not None:
            unwanted, exit_code = "the job is over", self._outcome.exit_code or 0
        elif not hello.base:
            unwanted = self._satellites.admit(name, hello)
        if unwanted and not hello.workers:
            dismiss = workers_pb2.Dismiss(reason=unwanted, exit_code=exit_code)
            outbox.put(workers_pb2.ToAgent(dismiss=dismiss))
            return
        now = time.monotonic()
        self._succession.inherit(hello.leader_state, now)
        known = self._agents.by_name.get(name)
        link = self._agents.by_name[name] = _link_of(hello, outbox, now)
        self._sums.inherit(hello.aggregators, now)
        self._satellite_sums.joined(name, hello, now)
        self._succession.tell_newcomer(outbox)
        self._sums.tell_newcomer(outbox)
        if known is not None:
            self._welcome_back(name, known, link, hello, now)
            if self._outcome is not None:
                return
        self._trace.event("agent", agent=name, slots=hello.slots, workers=len(hello.workers))
        running = [self._workers.found(name, worker) for worker in hello.workers]
        self._carry_out(self._membership.agent_joined(name, hello.slots, hello.base, now, running))
        if hello.leaving:
            self.agent_leaving(name, _TAKEN_BACK)
        elif unwanted:
            self.send_away(name, unwanted)

    def _give_way(self, name: str, term: int, outbox: AgentOutbox) -> None:
        """Step down, because another agent has led since this one began: this one's knowledge is out of date.

        This agent's process was stopped meanwhile. Afterwards it found the lease free again, or at a flexod
        that had forgotten the lease.
        """
        outbox.put(workers_pb2.ToAgent(stepped_down=workers_pb2.SteppedDown()))
        outbox.put(None)
        if self._outcome is None:
            self._succession.yield_to(term)
            self._resign(f"the agent {name} has followed a leader of term {term} since")

    def _welcome_back(
        self, name: str, known: AgentLink, link: AgentLink, hello: workers_pb2.AgentHello, now: float
    ) -> None:
        """Take back a known agent. Without workers it has begun anew, and its earlier workers are lost."""
        if not hello.workers:
            self._lose(name, "its agent was started again", now)
            self._agents.by_name[name] = link
            return
        # Messages may have been lost on the way. A new leader asks all workers for their status.
        known.outbox.put(None)
        self._let_anybody_lead(f"the agent {name} was away for a moment")

    def agent_said(self, name: str, outbox: AgentOutbox, message: workers_pb2.FromAgent) -> None:
        """Take any other message of an agent."""
        link = self._agents.of(name, outbox)
        if link is None:
            return
        link.heard_at = time.monotonic()
        kind = message.WhichOneof("body")
        if kind == "worker_said":
            self._workers.said(message.worker_said.worker_id, message.worker_said.said)
        elif kind == "worker_exited":
            gone = message.worker_exited
            self._workers.exited(gone.worker_id, gone.exit_code, gone.why)
        elif kind == "leaving":
            self.agent_leaving(name, message.leaving.reason)
        elif kind == "aggregator_usage":
            self._sums.used(name, message.aggregator_usage, self._membership.generation, link.heard_at)
        elif kind == "aggregator_place":
            self._satellite_sums.serves(name, message.aggregator_place, link.heard_at)

    def agent_leaving(self, name: str, reason: str) -> None:
        """Let an agent go, because the cluster takes its node back. For the base, end the job."""
        link = self._agents.by_name.get(name)
        if link is None:
            return
        link.leaving = True
        if link.base:
            self._end(143, _TERMINATED)
            return
        self._satellites.leaves(name, reason)
        self.send_away(name, reason)

    def send_away(self, agent: str, why: str) -> None:
        """See satellite_manager.LeaderContext. To send its own agent away, the leader first hands over, if it
        can; the next leader then sends the agent away.
        """
        now = time.monotonic()
        if agent == self.name and self._hand_over(why):
            return
        if link := self._agents.by_name.get(agent):
            self._notices.leaves(link.node, why)
        if not self._satellite_sums.leaves(agent, why, now):
            self._carry_out(self._membership.release(agent, why, now))

    def agent_detached(self, name: str, outbox: AgentOutbox) -> None:
        """Note that an agent's stream has ended. The agent may attach again."""
        link = self._agents.of(name, outbox)
        if link is None:
            return
        if self._outcome is not None:
            del self._agents.by_name[name]
        elif link.connected:
            link.lost_at = time.monotonic()

    def _watch_agents(self, now: float) -> None:
        if now >= self._alive_due:
            self._alive_due = now + ALIVE_INTERVAL_S
            self._agents.tell_connected(workers_pb2.ToAgent(alive=workers_pb2.Alive()))
            self._succession.tell()
        for name, why in self._attendance.lost(now):
            self._lose(name, why, now)

    def _lose(self, name: str, why: str, now: float) -> None:
        link = self._agents.by_name.pop(name)
        link.outbox.put(None)
        for worker_id in self._agents.workers_of(name):
            self._workers.forget(worker_id)
        self._carry_out(self._membership.agent_lost(name, why, now))
        if not link.base:
            self._satellite_sums.gone(name)
            if lost := self._satellites.gone(name):
                self._notices.lost(link.node, lost)

    def _watch_base(self, now: float) -> None:
        """End with a base that has ended, and stand still while the base is suspended."""
        if self._attendance.base_has_ended(now):
            self._end(1, "the base has ended")
            return
        stand = self._attendance.base_is_waited_for(now)
        if stand is not self._membership.standing_still:
            self._trace.event("stand still" if stand else "go on")
            self._carry_out(self._membership.stand_still(stand, now))

    def _everybody_is_here(self) -> bool:
        return self._attendance.base_is_connected() and self._satellites.everybody_is_here

    # --- what membership decides ---------------------------------------------------------------

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, End):  # first, so that the other commands count as parts of the end
                self._job_over(command)
        for command in commands:
            match command:
                case Dismiss(agent, why):
                    self._dismiss(agent, why)
                case WorkerFailed():
                    self._failed_workers.add(command, time.monotonic())
                case Start() if self._outcome is not None:
                    pass
                case GoBack():
                    self._go_back()
                    self._executor.carry_out(command)
                case _:
                    self._executor.carry_out(command)

    def _job_over(self, end: End) -> None:
        """End the job. If it failed here but no agent of the base is connected, only stop leading.

        The base may be suspended, and its own workers go on when the cluster resumes it.
        """
        if end.exit_code and not self._agents.base_is_here():
            self._let_anybody_lead(f"{end.why} here, and the base, which says nothing, may still go on")
        else:
            began = self._membership.generation > 0
            ran = f". Workers ran {self._python}" if self._python and end.exit_code and not began else ""
            self._end(end.exit_code, f"{end.why}{ran}")

    def _rendezvous_failed(self, generation: int, error: Exception) -> None:
        """Give up the attempt at a generation whose rendezvous failed, if its members have not met yet."""
        say_error(error)
        if member := self._executor.a_member_of(generation):
            why, now = f"its rendezvous failed: {error!r}", time.monotonic()
            self._carry_out(self._membership.worker_prepared(member, generation, why, now))

    def _dismiss(self, agent: str, why: str) -> None:
        link = self._agents.by_name.get(agent)
        if link is None:
            return
        if not link.base and self._outcome is None:
            self._satellites.failed(agent, why)
        if agent == self.name and not self._membership.finishing:
            self._hand_over(why)
        exit_code = self._outcome.exit_code if self._outcome is not None else None
        dismiss = workers_pb2.Dismiss(reason=why, exit_code=exit_code or 0)
        link.dismissed = True
        link.outbox.put(workers_pb2.ToAgent(dismiss=dismiss))

    # --- the parked state ------------------------------------------------------------------------

    def welcomes(self, head: workers_pb2.ParkedHead) -> bool:
        """Whether a parked state is that of the job. For any thread: the leader's thread answers."""
        answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.post(lambda: answer.put(self._membership.may_park(head.worker_id)))
        try:
            return answer.get(timeout=ANSWERS_WITHIN_S)
        except queue.Empty:
            return False

    def state_is_parked(self) -> None:
        """Note that the base keeps a new state."""
        head = None if self._parked is None else self._parked.head()
        if head is None or self._outcome is not None:
            return
        self._trace.event("parked", commits=head.commits, worker=head.worker_id)
        if self._membership.paused:
            self._workers.goes_on_from(head.epoch, head.batches)
        self._carry_out(self._membership.parked(head.commits, time.monotonic()))

    def _go_back(self) -> None:
        """Have newcomers go as far as the parked state, and no further."""
        head = None if self._parked is None else self._parked.head()
        self._workers.goes_on_from(0 if head is None else head.epoch, () if head is None else head.batches)

    # --- what flexod asks for (see OversightContext and LeaderContext) --------------------------

    def _on_grants(self, grants: jobs_pb2.Grants) -> None:
        self._oversight.batch_wanted(grants.batch)
        self._oversight.speeds_are(grants.speeds)
        self._satellites.on_grants(grants)

    def _on_aggregators(self, told: jobs_pb2.Aggregators) -> None:
        """Have Aggregators of a pool sum, as flexod says."""
        if self._outcome is None and self._sums.of_pool and not self._satellite_sums.serves_any:
            self._assign_sums(told)

    def _assign_sums(self, told: jobs_pb2.Aggregators) -> None:
        """Have other Aggregators sum, in the present generation if it can migrate to them."""
        now, before = time.monotonic(), self._sums.assignment.version
        needs_generation = self._sums.assigned(told, now)
        if self._sums.assignment.version > before:
            self._trace.event("aggregators", version=told.version, assigned=len(told.aggregators))
        if needs_generation:
            self._carry_out(self._membership.renew(now))

    def _place_sums(self, now: float) -> None:
        """Have the Aggregators in the job's satellites sum that serve, and let those go that have to."""
        self._knows_sums = self._knows_sums or self._satellites.everybody_is_here
        if self._membership.taking_over or not self._knows_sums:
            return
        if not self._membership.finishing:
            told = self._satellite_sums.next_assignment(self._sums.assignment, now)
            if told is not None:
                self._assign_sums(told)
        migrated = not self._membership.changing and self._sums.in_use(now)
        for agent, why in self._satellite_sums.to_release(migrated=migrated, now=now):
            self._carry_out(self._membership.release(agent, why, now))

    def _renew_sums(self, now: float) -> None:
        """Begin the generation for an assignment that the present one has not migrated to."""
        if self._membership.taking_over or self._membership.finishing:
            return
        if self._sums.renewal_is_due(now):
            self._carry_out(self._membership.renew(now))

    def training(self) -> Training:
        """See oversight.OversightContext."""
        members = self._membership
        workers = tuple(worker.worker_id for worker in members.present()) if members.scalable else ()
        return Training(members.generation, workers, members.changing)

    def home_of(self, worker_id: str) -> Home | None:
        """See oversight.OversightContext."""
        worker = self._membership.worker(worker_id)
        link = self._agents.by_name.get(self._agents.homes.get(worker_id, ""))
        if worker is None or link is None:
            return None
        gpus = rounded_up(self.plan.base.shape.gpus, 1)
        here = len(self._agents.workers_of(worker.agent))
        mine = link.gpus[worker.slot * gpus :][:gpus]
        return Home(worker.agent, link.node, link.base, here, mine)

    def limit_workers(self, workers: int | None) -> None:
        """See oversight.OversightContext."""
        self._carry_out(self._membership.limit(workers, time.monotonic()))

    def renew(self) -> None:
        """See oversight.OversightContext."""
        if not self._membership.taking_over and not self._membership.finishing:
            self._carry_out(self._membership.renew(time.monotonic()))

    def give_back_slow(self, agent: str, why: str) -> None:
        """See oversight.OversightContext."""
        self._satellites.slow(agent, why)
        self.send_away(agent, why)

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """See oversight.OversightContext."""
        self._agents.tell_worker(worker_id, message)

    @property
    def finishing(self) -> bool:
        """See satellite_manager.LeaderContext."""
        return self._membership.finishing or self._outcome is not None

    def agent_trains(self, agent: str) -> bool:
        """See satellite_manager.LeaderContext."""
        sums = self._satellite_sums.is_assigned(agent, self._sums.assignment)
        return sums or self._membership.agent_trains(agent)

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """See satellite_manager.LeaderContext."""
        self._reporter.send(message)


def _link_of(hello: workers_pb2.AgentHello, outbox: AgentOutbox, now: float) -> AgentLink:
    """The link of an agent that says hello."""
    return AgentLink(
        outbox,
        hello.base,
        hello.slurm_job_id,
        hello.holder,
        now,
        node=hello.node,
        gpus=tuple(hello.gpus),
        leaving=hello.leaving,
        only_sums=not hello.base and not hello.slots,
    )


def _virtual_workers(base: BaseJob) -> VirtualWorkers | None:
    """The virtual workers of a job in reproducible mode, else None."""
    count = reproducible.virtual_workers(os.environ)
    if not count:
        return None
    agents = [(agent_name(node.name, base.job_id), node.workers) for node in base.nodes]
    slots = [Slot(agent, number) for agent, workers in agents for number in range(workers)]
    return VirtualWorkers(count, slots)
