"""The agent: one process for each node of a job. It starts, watches and represents the node's workers.

The node's supervisor (supervisor.py) starts the agent, in the base job and in each satellite. The workers are
the supervisor's children and outlive the agent. Workers speak only with their agent, which passes messages on
in both directions. So training goes on while the job has no leader. The agent then looks for a leader
(election.py), or leads itself, with the leader in a thread of this process.

An unforeseen exception in any thread ends this process and nothing else. The supervisor starts the agent
again, and the workers train on. An exception in the leader's thread ends only that leader, and another one
takes over.

The cluster's SIGTERM reaches the agent and its workers alike. In a satellite the workers ignore SIGTERM. The
agent tells the leader, and the leader lets the workers go at a mini-batch boundary. In the base SIGTERM is
the end of the job: workers die of it, or end as their script handles it.

The main thread owns everything and takes events from a queue; streams, waits and the leader live in threads
of their own and only post events.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flexo_protos import lease_place
from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import launch_commands, network, threads, wire
from horovod_elastic.agent import aggregator, shared_gpus
from horovod_elastic.agent.aggregator import LocalAggregator
from horovod_elastic.agent.leader_link import LeaderLink
from horovod_elastic.agent.lease_handle import AgentLeaseHandle
from horovod_elastic.agent.local_service import LocalService, WorkerOutbox
from horovod_elastic.agent.parked_link import ParkedLink
from horovod_elastic.agent.supervisor import EXIT_CANNOT_WORK, STEADY_S
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.agent.worker_environment import WorkerLocation, environment_of, projected
from horovod_elastic.core import choice
from horovod_elastic.election.election import Closed, Election, Following, Leading, Over, Role
from horovod_elastic.election.lease_client import JobRun, LeaseClient
from horovod_elastic.election.lease_places import open_lease
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.leader.leader import Leader, LeadershipOutcome
from horovod_elastic.leader.leader_service import LeaderPort
from horovod_elastic.leader.parked_store import FOLDER_VARIABLE, ParkedStore
from horovod_elastic.leader.try_batches import script_digest
from horovod_elastic.platforms.base import Platform, RankVariables, agent_name
from horovod_elastic.trace import say, say_error

TICK_S = 0.25
ALIVE_INTERVAL_S = 1.0
SILENT_LEADER_S = 5.0
"""After this silence of its leader, an agent looks for another leader."""
SILENCE_VARIABLE = "FLEXO_SILENCE_S"
"""Environment variable: longest silence of a worker, in seconds, once it has begun to report every second."""
DEFAULT_SILENCE_S = 30.0
NOBODY_LEADS_S = 60.0
"""Longest time that workers which need a leader to go on wait for one."""
STALL_S = 3.0
"""A tick that is this late means that this process itself was stopped, or starved."""
TOLD_AGAIN_S = 2 * SILENT_LEADER_S
"""A message sent this long before a leader was found to be gone may not have reached it."""
LAST_WORDS_S = 1.0
"""Longest time from a worker's end to its report, within which the worker's last messages are passed on."""
SILENT_SUPERVISOR_S = 20.0
"""After this silence of the supervisor, the agent kills it: it could not start or reap workers."""
KEPT_COME_WITHIN_S = 5.0
"""Longest time that a new agent waits for status reports of the workers that it finds, before it follows a
leader."""
SIGTERM_GRACE_S = 25.0
"""Time for the base's workers to end as their script handles SIGTERM; clusters often leave 30 s."""
LEADER_ENDS_WITHIN_S = 60.0
LEADERS_FAIL = 3
"""Number of times that leaders of this process may fail within STEADY_S; then the process is restarted."""
TERMINATED = 128 + signal.SIGTERM
_WAITING = (pb.WORKER_PHASE_READY, pb.WORKER_PHASE_ARRIVED)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options that this agent was started with, beside the job's plan."""

    slots: int
    base: bool
    grant_id: str
    again: bool
    """Another agent was started here before it, and ended."""
    pass_signals: bool
    """The cluster signals the agent alone."""
    command: tuple[str, ...]
    shared_gpus: tuple[int, ...] = ()
    """The GPUs of the workers, by slot, if other jobs hold these GPUs."""

    @property
    def only_sums(self) -> bool:
        """Whether this is a satellite without workers, which runs an Aggregator."""
        return not self.base and not self.slots

    def signalled(self, workers: Iterable[str]) -> tuple[str, ...]:
        """The workers to which the agent passes a signal: all, if the cluster signals the agent alone."""
        return tuple(workers) if self.pass_signals else ()

    def has_lost_its_gpu(self, exit_code: int) -> bool:
        """Whether a worker with this exit code may not use the GPU any more that its satellite shares."""
        return bool(self.shared_gpus) and shared_gpus.gpu_was_taken(exit_code)

    def leaves_with(self, workers: int) -> int | None:
        """The exit code of an agent that has to leave while nobody leads the job.

        None: it stays, because satellites' workers train beside it and somebody may lead them soon.
        """
        if self.base:
            return TERMINATED
        return None if workers else 0


@dataclass
class LocalWorker:
    """A training process of this node."""

    order: pb.StartWorker
    status: pb.WorkerStatus = field(default_factory=lambda: pb.WorkerStatus(phase=pb.WORKER_PHASE_STARTING))
    """The worker's last report on itself."""
    called: int = 0
    """The last generation to which the agent has passed on a call; the worker may not have read it yet."""
    outbox: WorkerOutbox | None = None
    """Outbox of the worker's stream; None while there is no stream."""
    spoke: bool = False
    """Whether the worker has connected to an agent here."""
    stands: bool = False
    """Whether the worker has reported its status to this agent."""
    heard_at: float = 0.0
    killed: str = ""
    """Why this agent killed the worker; "" if it did not."""
    ended_at: float | None = None
    """Time when the worker's process ended, while its exit is not reported yet; None before."""
    exit_code: int = 0
    """Exit code of a worker that has ended; negative for a signal, as in subprocess."""


@dataclass
class _Ended:
    """A worker that has ended."""

    worker: LocalWorker
    exited: pb.WorkerExited
    told_at: float
    """Time when a leader was first told of the end; 0: no leader was there."""


class LeaderFailed(Exception):
    """Leaders of this process have failed again and again; a new process may succeed."""


class Agent:
    """See the module."""

    def __init__(
        self,
        plan: JobPlan,
        post: AgentOptions,
        platform: Platform,
        authenticator: Authenticator,
        supervisor: SupervisorLink,
    ) -> None:
        self._plan = plan
        self._platform = platform
        self._options = post
        self._authenticator = authenticator
        allocation = platform.allocation()
        self._node = allocation.node or os.uname().nodename
        self._job_id = allocation.job_id
        self._gpus = allocation.gpus
        self._name = agent_name(self._node, self._job_id)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._supervisor = supervisor
        self._workers = {
            kept.order.worker_id: LocalWorker(kept.order, spoke=kept.spoke, heard_at=time.monotonic())
            for kept in supervisor.kept
            if kept.order.worker_id not in aggregator.PROCESS_IDS
        }
        self._ended_ones: list[_Ended] = []
        """Workers that have ended, of which the next leader may not know."""
        self._leaving = supervisor.terminated
        self._exit_code: int | None = None
        self._silence_s = float(os.environ.get(SILENCE_VARIABLE) or DEFAULT_SILENCE_S)
        self._address = network.own_address(platform.node_address(self._node), plan.site.controller)
        self._interface = network.interface_of(self._address)
        self._aggregator = LocalAggregator(supervisor, self._address, workers=not post.only_sums)
        authenticator.credential(wire.ATTACH_AGENT)  # raise NotAuthentic now rather than later
        link = ParkedLink(authenticator, self._leaders_address)
        self._local = LocalService(self, supervisor.endpoint, supervisor.secret, link)
        self._parked = _parked_store(plan, post)
        self._port = LeaderPort(self._address, authenticator, self._parked)
        self._lease = _lease_of(plan, authenticator)
        self._holder = f"{self._name}-{secrets.token_hex(4)}"
        self._election = Election(
            self._lease, self._holder, lambda: self._port.endpoint, _role(plan, post, supervisor), say=say
        )
        self._leader: Leader | None = None
        self._leader_thread: threading.Thread | None = None
        self._leaders_failed_at: list[float] = []
        self._link: LeaderLink | None = None
        self._followed: Following | None = None
        """The leader that this agent follows, or followed last."""
        self._followed_term = 0
        """The highest term of the leaders before the one in `_followed`."""
        self._leader_state = pb.LeaderState()
        """The last LeaderState that a leader has sent, for the next leader."""
        self._lost_why = ""
        self._seeking = False
        self._leaderless_since = time.monotonic()
        self._next_alive = 0.0
        self._next_sign = 0.0
        self._ticked_at = time.monotonic()

    # --- life -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve this node until the job dismisses it. Return the exit code: for the base's nodes, the job's.

        An exception leaves everything as it is, for the agent that the supervisor starts after this process.
        """
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            # A signal that the user has asked the cluster for is for the script. It would end this process.
            signal.signal(number, self._pass_on)
        if not self._options.base and self._platform.takes_back(self._job_id):
            self._events.put(self._on_taken_back)
        self._supervisor.listen(
            ended=lambda *ended: self._events.put(lambda: self._ended(*ended)),
            terminated=lambda: self._events.put(self._on_taken_back),
            failed=self._crash,
        )
        if choice.sums_by_service():
            self._aggregator.start()
        self._wait_for_the_kept()
        self._seek(None)
        while self._exit_code is None:
            self._one_event()
            self._tick()
        self._close()
        return self._exit_code

    def _crash(self, error: Exception) -> None:
        """Raise the error of a failed thread in the main thread. Any thread may call it."""

        def crash() -> None:
            raise error

        self._events.put(crash)

    def _wait_for_the_kept(self) -> None:
        deadline = time.monotonic() + KEPT_COME_WITHIN_S
        while time.monotonic() < deadline and any(
            worker.spoke and not worker.stands and worker.ended_at is None
            for worker in self._workers.values()
        ):
            self._one_event()

    def _one_event(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=TICK_S)()

    def _leaders_address(self) -> str:
        """The present leader's host:port; "" if this agent knows none. Any thread may call it."""
        link = self._link
        return "" if link is None else link.address

    def _end(self, exit_code: int) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code

    def _close(self) -> None:
        """End everything that this agent has opened. A failure does not change the job's exit code."""
        link, leader = self._link, self._leader_thread
        for step in (
            self._supervisor.end,
            self._end_workers,
            link.close if link is not None else None,
            (lambda: leader.join(LEADER_ENDS_WITHIN_S)) if leader is not None else None,
            self._election.close,
            self._lease.close,
            self._local.close,
            self._port.close,
        ):
            try:
                if step is not None:
                    step()
            except Exception as error:
                say_error(error)

    def _end_workers(self) -> None:
        if self._leaving and self._options.base:
            self._wait_for_workers(SIGTERM_GRACE_S)
        for worker_id in self._workers:
            self._supervisor.kill(worker_id)

    def _tick(self) -> None:
        now = time.monotonic()
        if now > self._ticked_at + STALL_S:
            self._forgive(now)
        self._ticked_at = now
        if now >= self._next_sign:
            self._next_sign = now + ALIVE_INTERVAL_S
            self._supervisor.alive()
            if now > self._supervisor.heard_at + SILENT_SUPERVISOR_S:
                say(f"the supervisor on {self._node} is stuck for {SILENT_SUPERVISOR_S:.0f} s and is killed")
                self._supervisor.end_everything()
        for worker_id, worker in list(self._workers.items()):
            if worker.ended_at is not None:
                if worker.outbox is None or now > worker.ended_at + LAST_WORDS_S:
                    self._tell_end(worker_id, worker)
            elif worker.spoke and now > worker.heard_at + self._silence_s:
                worker.killed = worker.killed or f"it has said nothing for {self._silence_s:.0f} s"
                self._supervisor.kill(worker_id)
        self._watch_leader(now)

    def _forgive(self, now: float) -> None:
        """Reset the times of silence: this process did not run, so it could not hear anybody."""
        for worker in self._workers.values():
            worker.heard_at = now
        if self._link is not None:
            self._link.heard_at = now
        self._supervisor.heard_at = now

    # --- the leader -------------------------------------------------------------------------------

    def _seek(self, lost: Following | None) -> None:
        """Find the leader, in a thread; this agent itself may become the leader."""
        if self._seeking or self._exit_code is not None:
            return
        self._seeking = True

        def seek() -> None:
            try:
                found = self._election.follow(lost)
            except Closed:
                return
            self._events.put(lambda: self._found(found))

        threads.start(seek, name="seek", failed=self._crash)

    def _found(self, found: Leading | Following | Over) -> None:
        self._seeking = False
        if isinstance(found, Over):
            self._end(found.exit_code if self._options.base else 0)
        if self._exit_code is not None or isinstance(found, Over):
            return
        if isinstance(found, Leading):
            if self._leader is None:
                self._lead(found)
            else:  # only the stream to this agent's own leader broke
                self._election.keep(self._leader.lost_lease)
            found = Following(self._port.endpoint, self._holder, found.term)
        if self._followed is not None and self._followed.holder != found.holder:
            self._followed_term = max(self._followed_term, self._followed.term)
        self._followed = found
        recent = time.monotonic() - TOLD_AGAIN_S
        self._ended_ones = [each for each in self._ended_ones if not each.told_at or each.told_at > recent]
        self._link = LeaderLink(
            found.address,
            self._hello(),
            lambda link, message: self._events.put(lambda: self._hear(link, message)),
            lambda link, why: self._events.put(lambda: self._lost_leader(link, why)),
            self._authenticator,
        )
        now = time.monotonic()
        for ended in self._ended_ones:
            self._link.send(pb.FromAgent(worker_exited=ended.exited))
            if not ended.told_at:
                ended.told_at = now
                self._supervisor.forget(ended.worker.order.worker_id)

    def _lead(self, leading: Leading) -> None:
        if leading.heir:
            say(f"the agent on {self._node} leads this job now{self._lost_why and f': {self._lost_why}'}")
        cluster = self._platform.control(self._plan, self._options.command)
        lease = AgentLeaseHandle(self._election, self._lease)
        leader = Leader(
            *(self._plan, self._name, self._address, cluster, lease),
            inherited=leading.heir,
            parked=self._parked,
            script=script_digest(self._options.command),
            python=launch_commands.python_in(self._options.command),
        )
        if self._plan.daemon:
            leader.attach_to(self._plan.daemon)
        self._leader = leader
        self._port.start_serving(leader)
        self._election.keep(leader.lost_lease)

        def lead() -> None:
            outcome = leader.run()
            self._events.put(lambda: self._led(leader, outcome))

        self._leader_thread = threads.start(lead, name="leader", failed=self._crash)

    def _led(self, leader: Leader, outcome: LeadershipOutcome) -> None:
        if outcome.failed:
            now = time.monotonic()
            self._leaders_failed_at = [at for at in self._leaders_failed_at if now < at + STEADY_S] + [now]
            if len(self._leaders_failed_at) > LEADERS_FAIL:
                raise LeaderFailed(f"{len(self._leaders_failed_at)} leaders on {self._node} have failed")
        self._port.stop_serving(leader)
        if self._leader is leader:
            self._leader = None
        if outcome.exit_code is not None:
            self._end(outcome.exit_code if self._options.base else 0)

    def _hear(self, link: LeaderLink, message: pb.ToAgent) -> None:
        if link is not self._link:
            return
        self._leaderless_since = 0.0
        match message.WhichOneof("body"):
            case "start_worker":
                self._start(message.start_worker)
            case "kill_worker":
                self._kill(message.kill_worker.worker_id)
            case "tell_worker":
                self._tell_worker(message.tell_worker)
            case "dismiss":
                self._end(message.dismiss.exit_code if self._options.base else 0)
            case "leader_state":
                self._leader_state = message.leader_state
            case "aggregators":
                self._aggregator.assign(message.aggregators)
            case "hand_over" | "stepped_down":
                self._lost_why = "the one before has handed over"
                if self._leader is not None:
                    self._port.stop_serving(self._leader)
                    self._leader = None
                self._leave_link()
                self._seek(None)

    def _lost_leader(self, link: LeaderLink, why: str) -> None:
        if link is not self._link:
            return
        if self._leaderless_since == 0.0:
            say(f"the agent on {self._node} has lost its leader ({why}); training goes on")
        self._lost_why = f"the one before is gone ({why})"
        self._leave_link()
        self._seek(self._followed)

    def _leave_link(self) -> None:
        assert self._link is not None
        self._link.close()
        self._link = None
        self._leaderless_since = self._leaderless_since or time.monotonic()

    def _watch_leader(self, now: float) -> None:
        link = self._link
        if link is not None and now > link.heard_at + SILENT_LEADER_S:
            self._lost_leader(link, f"it has said nothing for {SILENT_LEADER_S:.0f} s")
        elif link is not None and now >= self._next_alive:
            self._next_alive = now + ALIVE_INTERVAL_S
            link.send(pb.FromAgent(alive=pb.Alive()))
            if (usage := self._aggregator.usage()) is not None:
                link.send(pb.FromAgent(aggregator_usage=usage))
            if (place := self._aggregator.place()) is not None:
                link.send(pb.FromAgent(aggregator_place=place))
        elif self._leaderless_since and now > self._leaderless_since + NOBODY_LEADS_S:
            self._give_up_if_idle()
        if self._leaderless_since and self._leaving:
            code = self._options.leaves_with(len(self._workers))
            if code is not None:
                self._end(code)

    def _give_up_if_idle(self) -> None:
        phases = [worker.status.phase for worker in self._workers.values()]
        if not phases or any(phase in _WAITING for phase in phases):
            say(
                f"the agent on {self._node} ends: nobody has led this job for {NOBODY_LEADS_S:.0f} s, and "
                f"its workers cannot go on without (the lease is kept at {self._plan.leases})"
            )
            self._end(EXIT_CANNOT_WORK)

    def _say(self, message: pb.FromAgent) -> None:
        """Send `message` to the leader, if there is one. The next leader is told everything anyway."""
        if self._link is not None:
            self._link.send(message)

    def _hello(self) -> pb.AgentHello:
        return pb.AgentHello(
            slurm_job_id=wire.job_number(self._job_id),
            node=self._node,
            slots=self._options.slots,
            base=self._options.base,
            grant_id=self._options.grant_id,
            holder=self._holder,
            leaving=self._leaving,
            gpus=self._gpus,
            leader_state=self._leader_state,
            followed_term=self._followed_term,
            aggregators=self._aggregator.assigned if self._aggregator.assigned.version else None,
            aggregator_place=self._aggregator.place(),
            workers=map(_running, [*self._workers.values(), *(each.worker for each in self._ended_ones)]),
        )

    # --- workers ------------------------------------------------------------------------------------

    def worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """See local_service.Host."""
        self._events.put(lambda: self._worker_attached(worker_id, outbox))

    def worker_said(self, worker_id: str, message: pb.FromWorker) -> None:
        """See local_service.Host."""
        self._events.put(lambda: self._worker_said(worker_id, message))

    def worker_detached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """See local_service.Host."""
        self._events.put(lambda: self._worker_detached(worker_id, outbox))

    def _worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            outbox.put(None)
            return
        worker.outbox, worker.heard_at, worker.spoke = outbox, time.monotonic(), True
        self._supervisor.spoke(worker_id)

    def _worker_said(self, worker_id: str, message: pb.FromWorker) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.heard_at = time.monotonic()
        if message.HasField("status"):
            worker.status, worker.stands = message.status, True
        self._say(pb.FromAgent(worker_said=pb.WorkerSaid(worker_id=worker_id, said=message)))

    def _worker_detached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None and worker.outbox is outbox:
            worker.outbox = None

    def _tell_worker(self, tell: pb.TellWorker) -> None:
        worker = self._workers.get(tell.worker_id)
        if worker is not None and worker.outbox is not None:
            worker.called = max(worker.called, tell.message.go.generation)
            worker.outbox.put(tell.message)

    def _start(self, order: pb.StartWorker) -> None:
        if self._exit_code is not None:
            return
        self._workers[order.worker_id] = LocalWorker(order)
        place = WorkerLocation(self._node, self._interface, self._options.slots, base=self._options.base)
        environment = environment_of(order, place, self._supervisor, self._plan.base)
        if isinstance(self._platform, RankVariables):
            rank = projected(order, place, self._plan.base)
            environment.update(self._platform.rank_variables(rank.rank, rank.size, rank.local_rank))
        command = self._share(order, environment)
        self._supervisor.start(order, command, environment, deaf=not self._options.base)

    def _share(self, order: pb.StartWorker, environment: dict[str, str]) -> Sequence[str]:
        """Add the variables of a worker whose GPU two jobs use. Returns the command to run."""
        command, job_id = self._options.command, self._plan.base.job_id
        if shared := self._options.shared_gpus:
            gpu = shared[order.slot % len(shared)]
            environment.update(shared_gpus.of_opportunistic(environment, self._node, gpu, shared, job_id))
            return shared_gpus.supervised(command, gpu, job_id)
        if self._options.base and self._plan.base.cohost:
            environment.update(shared_gpus.of_guarantee(environment, self._node, self._gpus, job_id))
        return command

    def _ended(self, worker_id: str, exit_code: int, error: str) -> None:
        if worker_id in aggregator.PROCESS_IDS:
            self._aggregator.ended(worker_id, exit_code)
            return
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        if error:
            say(f"{self._options.command[0]} cannot be run: {error}")
        if self._options.has_lost_its_gpu(exit_code):
            exit_code = -signal.SIGKILL  # by its supervisor: its script has not failed
            self._leave(f"the GPU that {self._node} shares was given to another job")
        worker.ended_at, worker.exit_code = time.monotonic(), exit_code
        if worker.outbox is None:
            self._tell_end(worker_id, worker)

    def _tell_end(self, worker_id: str, worker: LocalWorker) -> None:
        del self._workers[worker_id]
        exited = pb.WorkerExited(worker_id=worker_id, exit_code=worker.exit_code, why=worker.killed)
        self._ended_ones.append(_Ended(worker, exited, 0.0 if self._link is None else time.monotonic()))
        if self._link is not None:
            self._supervisor.forget(worker_id)
        self._say(pb.FromAgent(worker_exited=exited))

    def _kill(self, worker_id: str) -> None:
        if worker_id in self._workers:
            self._supervisor.kill(worker_id)

    def _wait_for_workers(self, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while time.monotonic() < deadline:
            if all(worker.ended_at is not None for worker in self._workers.values()):
                return
            self._one_event()

    # --- signals ----------------------------------------------------------------------------------------

    def _pass_on(self, signum: int, frame: object) -> None:
        """Pass a signal on to the workers, where the cluster signals only processes that it has started."""
        self._events.put(lambda: self._signal_workers(signum))  # safe inside a signal handler

    def _signal_workers(self, signum: int) -> None:
        for worker_id in self._options.signalled(self._workers):
            self._supervisor.signal(worker_id, signum)

    def _on_sigterm(self, signum: int, frame: object) -> None:
        self._pass_on(signum, frame)
        self._events.put(self._on_taken_back)

    def _on_taken_back(self) -> None:
        self._leave(f"{self._platform.name} takes the node back (SIGTERM)")

    def _leave(self, reason: str) -> None:
        if self._leaving:  # the cluster's signal and the supervisor's message may both have come
            return
        self._leaving = True
        self._say(pb.FromAgent(leaving=pb.AgentLeaving(reason=reason)))


def _running(worker: LocalWorker) -> pb.RunningWorker:
    order, status = worker.order, pb.WorkerStatus()
    status.CopyFrom(worker.status)
    if status.phase == pb.WORKER_PHASE_STARTING:  # it has said nothing yet
        status.rank = order.projected_rank.rank
    status.called = max(status.called, worker.called)
    return pb.RunningWorker(
        worker_id=order.worker_id, slot=order.slot, newcomer=order.newcomer, status=status
    )


def _lease_of(plan: JobPlan, authenticator: Authenticator) -> LeaseClient:
    run = JobRun(plan.base.job_id, plan.base.restart_count)
    return open_lease(lease_place.parse(plan.leases), run, authenticator)


def _parked_store(plan: JobPlan, post: AgentOptions) -> ParkedStore | None:
    """The store for the parked state, in an opportunistic job's base. Raises ValueError."""
    if not post.base or not plan.base.opportunistic:
        return None
    store = ParkedStore(plan.base.job_id, plan.base.restart_count)
    try:
        store.make()
    except OSError as error:
        raise ValueError(
            f"the base cannot keep the state of training ({FOLDER_VARIABLE}): {error}"
        ) from error
    return store


def _role(plan: JobPlan, post: AgentOptions, supervisor: SupervisorLink) -> Role:
    if not post.base:
        return Role.FOLLOWER if plan.base.opportunistic or post.only_sums else Role.SATELLITE
    return Role.BASE if post.again or supervisor.again else Role.FOUNDER
