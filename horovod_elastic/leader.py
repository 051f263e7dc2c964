"""The leader of one job: carries out what membership decides, and makes flexod's grants real.

One thread (`run`) owns everything and takes events from a queue; streams, Slurm's commands and the link to
flexod live in threads of their own and only post events. So nothing here needs a lock.
"""

from __future__ import annotations

import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import membership as m
from horovod_elastic.daemon_link import DaemonLink
from horovod_elastic.rendezvous import Rendezvous
from horovod_elastic.satellites import Grant, QueueEntry, Refused, SlurmUser
from horovod_elastic.slurm_job import BaseJob

TICK_S = 0.5
LOOK_INTERVAL_S = 5.0
"""How often Slurm is asked about satellites that have not attached yet."""
ATTACH_BOUND_S = 60.0
"""How long a satellite that runs may take until its agent is here."""
GOODBYE_BOUND_S = 30.0

AgentOutbox = queue.SimpleQueue[workers_pb2.ToAgent | None]
WorkerOutbox = queue.SimpleQueue[workers_pb2.ToWorker | None]
_Reason = jobs_pb2.GrantFailed.Reason
_State = jobs_pb2.SatelliteState


@dataclass
class Satellite:
    """A grant on its way to being real, or back."""

    grant: Grant
    since: float
    job_id: int = 0
    agent: str = ""
    withdrawn: str = ""
    """Why flexod took the grant back, or Slurm the node; "" while it stands."""
    preempted: bool = False
    running_since: float | None = None
    failed: str = ""


@dataclass
class AgentLink:
    """A connected agent."""

    outbox: AgentOutbox
    base: bool
    job_id: int


@dataclass
class _Outcome:
    exit_code: int
    why: str


@dataclass
class _Timers:
    report: float = 0.0
    look: float = 0.0
    looking: bool = False


@dataclass
class _Chore:
    interval_s: float
    work: Callable[[], None]
    due: float = 0.0


@dataclass
class Streams:
    """Everybody who is connected."""

    agents: dict[str, AgentLink] = field(default_factory=dict)
    workers: dict[str, WorkerOutbox] = field(default_factory=dict)


class Leader:
    """See the module. `address` is where this node is reached; `slurm` submits as the job's user."""

    def __init__(
        self, base: BaseJob, address: str, slurm: SlurmUser, members: m.Membership | None = None
    ) -> None:
        self.base = base
        self.secret = secrets.token_hex(16)
        self.endpoint = ""
        self._address = address
        self._slurm = slurm
        base_agents = [agent_name(node.name, base.job_id) for node in base.nodes]
        self._membership = members or m.Membership(base.workers, base_agents)
        self._streams = Streams()
        self._satellites: dict[str, Satellite] = {}
        self._given_back: dict[str, jobs_pb2.GrantFailed] = {}
        """What flexod was told of grants that it may not know yet to be over; told again if it lists them."""
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._commands = ThreadPoolExecutor(max_workers=4, thread_name_prefix="slurm")
        self._rendezvous: Rendezvous | None = None
        self._link: DaemonLink | None = None
        self._last_report: jobs_pb2.Report | None = None
        self._timers = _Timers()
        self._chores: list[_Chore] = []
        self._outcome: _Outcome | None = None

    # --- life ----------------------------------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` run in the leader's thread."""
        self._events.put(event)

    def attach_to(self, address: str) -> None:
        """Open the stream to flexod."""
        self._link = DaemonLink(
            address, self._hello, lambda grants: self.post(lambda: self._on_grants(grants)), say
        )
        self._link.start()

    def every(self, interval_s: float, work: Callable[[], None]) -> None:
        """Have `work` run about every `interval_s` in the leader's thread, from `run` on."""
        self._chores.append(_Chore(interval_s, work))

    def run(self) -> int:
        """Lead until the job is over; its exit code."""
        while self._outcome is None:
            self._one_event(TICK_S)
            self._tick()
        self._say_goodbye()
        if self._outcome.exit_code:
            say(f"the job ends with exit code {self._outcome.exit_code}: {self._outcome.why}")
        return self._outcome.exit_code

    def stop(self, exit_code: int, why: str) -> None:
        """End the job from outside (a signal, an agent that could not start). Any thread."""
        self.post(lambda: self._end(exit_code, why))

    def _one_event(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        event()

    def _tick(self) -> None:
        now = time.monotonic()
        self._carry_out(self._membership.tick(now))
        if now >= self._timers.look and not self._timers.looking:
            self._look_at_the_queue(now)
        self._report(now)
        for chore in self._chores:
            if now >= chore.due:
                chore.due = now + chore.interval_s
                chore.work()

    def _end(self, exit_code: int, why: str) -> None:
        if self._outcome is None:
            self._outcome = _Outcome(exit_code, why)

    def _say_goodbye(self) -> None:
        """Dismiss everybody, wait for them a little, cancel what is left of the satellites."""
        assert self._outcome is not None
        for agent in self._streams.agents.values():
            agent.outbox.put(workers_pb2.ToAgent(dismiss=workers_pb2.Dismiss(reason=self._outcome.why)))
        # Satellites that are just being submitted have no id yet: wait for it, then they can be cancelled.
        self._commands.shutdown(wait=True)
        deadline = time.monotonic() + GOODBYE_BOUND_S
        while time.monotonic() < deadline and (self._streams.agents or not self._events.empty()):
            self._one_event(0.1)
        if left := [satellite.job_id for satellite in self._satellites.values() if satellite.job_id]:
            self._cancel_for_good(left, deadline)
        if self._link is not None:
            self._link.close(self._outcome.why)
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _cancel_for_good(self, job_ids: list[int], deadline: float) -> None:
        try:
            self._slurm.cancel(job_ids)
            while time.monotonic() < deadline and self._slurm.queue(job_ids):
                time.sleep(0.5)
        except Refused as error:
            say(f"satellites {job_ids} may be left until their time limit: {error}")

    # --- agents --------------------------------------------------------------------------------

    def agent_attached(self, name: str, hello: workers_pb2.AgentHello, outbox: AgentOutbox) -> None:
        """An agent has said hello (leader's thread, like everything below)."""
        satellite = None if hello.base else self._satellite_of(hello.slurm_job_id, hello.node)
        unwanted = ""
        if self._outcome is not None:
            unwanted = "the job is over"
        elif not hello.base and (satellite is None or satellite.withdrawn):
            unwanted = "its grant does not stand"
        if unwanted:
            outbox.put(workers_pb2.ToAgent(dismiss=workers_pb2.Dismiss(reason=unwanted)))
            return
        self._streams.agents[name] = AgentLink(outbox, hello.base, hello.slurm_job_id)
        if satellite is not None:
            satellite.agent, satellite.job_id = name, hello.slurm_job_id
        self._carry_out(self._membership.agent_joined(name, hello.slots, hello.base, time.monotonic()))

    def agent_leaving(self, name: str, reason: str) -> None:
        """Slurm has told this agent to go."""
        link = self._streams.agents.get(name)
        if link is None:
            return
        if link.base:
            self._end(143, "Slurm ends the base (SIGTERM)")
            return
        satellite = self._satellite_of(link.job_id)
        if satellite is not None and not satellite.withdrawn:
            satellite.withdrawn, satellite.preempted = reason, True
        self._carry_out(self._membership.release(name, reason, time.monotonic()))

    def agent_detached(self, name: str) -> None:
        """An agent's stream has ended."""
        link = self._streams.agents.pop(name, None)
        if link is None:
            return
        self._carry_out(self._membership.agent_lost(name, "its agent is gone", time.monotonic()))
        satellite = self._satellite_of(link.job_id)
        if satellite is None or link.base:
            return
        if self._membership.finishing:
            self._forget(satellite)
        elif satellite.failed:
            self._give_back(satellite, _Reason.REASON_WORKERS_FAILED, satellite.failed)
        elif satellite.preempted:
            self._give_back(satellite, _Reason.REASON_PREEMPTED, satellite.withdrawn)
        elif not satellite.withdrawn:
            self._give_back(satellite, _Reason.REASON_LOST, "its agent is gone")
        else:
            self._forget(satellite)

    # --- workers -------------------------------------------------------------------------------

    def worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """A worker has said hello."""
        self._streams.workers[worker_id] = outbox

    def worker_said(self, worker_id: str, message: workers_pb2.FromWorker) -> None:
        """Anything else that a worker says."""
        now, members = time.monotonic(), self._membership
        kind = message.WhichOneof("body")
        if kind == "ready":
            self._carry_out(members.worker_ready(worker_id, now))
        elif kind == "elastic_loop":
            self._carry_out(members.worker_in_loop(worker_id, now))
        elif kind == "arrived":
            arrived = message.arrived
            self._carry_out(members.worker_arrived(worker_id, arrived.generation, arrived.commits, now))
        elif kind == "progress":
            members.worker_progress(worker_id, message.progress.commits)
        elif kind == "finished":
            self._carry_out(members.worker_finished(worker_id, now))

    def worker_detached(self, worker_id: str) -> None:
        """A worker's stream has ended; whether it lives its agent knows."""
        self._streams.workers.pop(worker_id, None)

    def worker_exited(self, worker_id: str, exit_code: int) -> None:
        """An agent has seen a worker end."""
        self._carry_out(self._membership.worker_exited(worker_id, exit_code, time.monotonic()))

    # --- what membership decides ---------------------------------------------------------------

    def _carry_out(self, commands: list[m.Command]) -> None:
        for command in commands:
            if isinstance(command, m.Start):
                self._start_worker(command)
            elif isinstance(command, m.Kill):
                kill = workers_pb2.KillWorker(worker_id=command.worker_id)
                self._tell_agent(command.agent, workers_pb2.ToAgent(kill_worker=kill))
            elif isinstance(command, m.Form):
                self._form(command)
            elif isinstance(command, m.Interrupt):
                interrupt = workers_pb2.Interrupt(generation=command.generation)
                self._tell_worker(command.worker_id, workers_pb2.ToWorker(interrupt=interrupt))
            elif isinstance(command, m.Leave):
                leave = workers_pb2.Leave(reason=command.why)
                self._tell_worker(command.worker_id, workers_pb2.ToWorker(leave=leave))
            elif isinstance(command, m.Dismiss):
                self._dismiss(command)
            else:
                self._end(command.exit_code, command.why)

    def _start_worker(self, start: m.Start) -> None:
        order = workers_pb2.StartWorker(
            worker_id=start.worker_id,
            slot=start.slot,
            secret=self.secret,
            newcomer=start.newcomer,
            outlook=workers_pb2.Outlook(
                rank=start.outlook.rank,
                size=start.outlook.size,
                local_rank=start.outlook.local_rank,
                local_size=start.outlook.local_size,
                cross_rank=start.outlook.cross_rank,
                cross_size=start.outlook.cross_size,
            ),
        )
        self._tell_agent(start.agent, workers_pb2.ToAgent(start_worker=order))

    def _form(self, form: m.Form) -> None:
        old, self._rendezvous = (
            self._rendezvous,
            Rendezvous(self._address, {f"{p.agent}:{p.local_rank}": _rank_line(p) for p in form.places}),
        )
        for place in form.places:
            assignment = workers_pb2.Assignment(
                generation=form.generation,
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                local_size=place.local_size,
                cross_rank=place.cross_rank,
                cross_size=place.cross_size,
                hostname=place.agent,
                rendezvous_address=self._address,
                rendezvous_port=self._rendezvous.port,
                commits=form.commits,
            )
            self._tell_worker(place.worker_id, workers_pb2.ToWorker(assignment=assignment))
        if old is not None:
            threading.Thread(target=old.close, name="close-rendezvous", daemon=True).start()
        nodes = len({place.agent for place in form.places})
        say(
            f"{_count(len(form.places), 'worker')} on {_count(nodes, 'node')} "
            f"after {_count(form.commits, 'batch', 'batches')} (generation {form.generation})"
        )

    def _dismiss(self, command: m.Dismiss) -> None:
        link = self._streams.agents.get(command.agent)
        satellite = None if link is None else self._satellite_of(link.job_id)
        if satellite is not None and not satellite.withdrawn and self._outcome is None:
            satellite.failed = command.why
        dismiss = workers_pb2.Dismiss(reason=command.why)
        self._tell_agent(command.agent, workers_pb2.ToAgent(dismiss=dismiss))

    def _tell_agent(self, name: str, message: workers_pb2.ToAgent) -> None:
        link = self._streams.agents.get(name)
        if link is not None:
            link.outbox.put(message)

    def _tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        outbox = self._streams.workers.get(worker_id)
        if outbox is not None:
            outbox.put(message)

    # --- grants and satellites -----------------------------------------------------------------

    def _on_grants(self, message: jobs_pb2.Grants) -> None:
        """Make the grants that stand real, and no others."""
        standing = {grant.grant_id: _grant(grant) for grant in message.grants}
        for satellite in list(self._satellites.values()):
            if satellite.grant.grant_id not in standing:
                self._withdraw(satellite)
        for grant in standing.values():
            if grant.grant_id not in self._satellites and not self._membership.finishing:
                self._realise(grant)
        self._given_back = {key: told for key, told in self._given_back.items() if key in standing}

    def _realise(self, grant: Grant) -> None:
        if told := self._given_back.get(grant.grant_id):
            self._tell_flexod(told)
            return
        self._satellites[grant.grant_id] = satellite = Satellite(grant, time.monotonic())
        self._in_background(self._submit, satellite)

    def _withdraw(self, satellite: Satellite) -> None:
        if satellite.withdrawn:
            return
        satellite.withdrawn = "flexod needs the GPUs elsewhere"
        if satellite.agent:
            self._carry_out(self._membership.release(satellite.agent, satellite.withdrawn, time.monotonic()))
        elif satellite.job_id:
            self._in_background(self._cancel, satellite)

    def _in_background(self, work: Callable[[Satellite], None], satellite: Satellite) -> None:
        if self._outcome is None:
            self._commands.submit(work, satellite)

    def _submit(self, satellite: Satellite) -> None:
        """In a thread of the pool."""
        try:
            job_id = self._slurm.submit(satellite.grant, self.endpoint)
        except Refused as error:
            text = str(error)
            self.post(lambda: self._give_back(satellite, _Reason.REASON_REFUSED, text))
            return
        self.post(lambda: self._submitted(satellite, job_id))

    def _submitted(self, satellite: Satellite, job_id: int) -> None:
        satellite.job_id, satellite.since = job_id, time.monotonic()
        if satellite.withdrawn:
            self._in_background(self._cancel, satellite)

    def _cancel(self, satellite: Satellite) -> None:
        """In a thread of the pool."""
        try:
            self._slurm.cancel([satellite.job_id])
        except Refused as error:
            say(f"satellite {satellite.job_id} was not cancelled: {error}")
        self.post(lambda: self._forget(satellite) if not satellite.agent else None)

    def _look_at_the_queue(self, now: float) -> None:
        self._timers.look = now + LOOK_INTERVAL_S
        waiting = [s for s in self._satellites.values() if s.job_id and not s.agent and not s.withdrawn]
        if not waiting or self._outcome is not None:
            return
        self._timers.looking = True
        ids = [satellite.job_id for satellite in waiting]

        def look() -> None:
            try:
                entries = self._slurm.queue(ids)
            except Refused:
                entries = None
            self.post(lambda: self._looked(waiting, entries))

        self._commands.submit(look)

    def _looked(self, waiting: list[Satellite], entries: dict[int, QueueEntry] | None) -> None:
        self._timers.looking = False
        now = time.monotonic()
        for satellite in waiting:
            if entries is None or satellite.agent or satellite.withdrawn:
                continue
            entry = entries.get(satellite.job_id)
            if entry is None:
                self._give_back(satellite, _Reason.REASON_LOST, "it ended before its agent was here")
            elif entry.held_by_a_limit:
                self._cancel_and_give_back(satellite, _Reason.REASON_REFUSED, entry.reason)
            elif entry.state == "PD":
                if now > satellite.since + satellite.grant.start_within_s:
                    self._cancel_and_give_back(satellite, _Reason.REASON_NOT_STARTED, entry.reason)
            else:
                satellite.running_since = satellite.running_since or now
                if now > satellite.running_since + ATTACH_BOUND_S:
                    self._cancel_and_give_back(satellite, _Reason.REASON_LOST, "its agent did not attach")

    def _cancel_and_give_back(self, satellite: Satellite, reason: _Reason.ValueType, message: str) -> None:
        satellite.withdrawn = message
        self._in_background(self._cancel, satellite)
        self._give_back(satellite, reason, message)

    def _give_back(self, satellite: Satellite, reason: _Reason.ValueType, message: str) -> None:
        """Tell flexod that this grant did not become, or no longer is, a satellite."""
        grant_id = satellite.grant.grant_id
        told = jobs_pb2.GrantFailed(grant_id=grant_id, reason=reason, message=message[:500])
        self._given_back[grant_id] = told
        self._tell_flexod(told)
        self._forget(satellite)

    def _tell_flexod(self, failed: jobs_pb2.GrantFailed) -> None:
        if self._link is not None and self._outcome is None:
            self._link.send(jobs_pb2.FromLeader(grant_failed=failed))

    def _forget(self, satellite: Satellite) -> None:
        self._satellites.pop(satellite.grant.grant_id, None)

    def _satellite_of(self, job_id: int, node: str = "") -> Satellite | None:
        """By its Slurm job; for one that came before sbatch's answer with its id did, by its node."""
        for satellite in self._satellites.values():
            if satellite.job_id == job_id:
                return satellite
        for satellite in self._satellites.values():
            if satellite.job_id == 0 and satellite.grant.node == node:
                return satellite
        return None

    # --- what flexod is told -------------------------------------------------------------------

    def _report(self, now: float) -> None:
        """Report when something changed, and as often as flexod wants to hear it."""
        if self._link is None:
            return
        report = self._present()
        changed = _without_progress(report) != _without_progress(self._last_report)
        if changed or now >= self._timers.report:
            self._timers.report = now + self._link.report_interval_s
            self._last_report = report
            self._link.send(jobs_pb2.FromLeader(report=report))

    def _present(self) -> jobs_pb2.Report:
        return jobs_pb2.Report(
            workers=self._membership.size,
            generation=self._membership.generation,
            batches_committed=self._membership.commits,
            scalable=self._membership.scalable and not self._membership.finishing,
            satellites=[
                jobs_pb2.Satellite(
                    slurm_job_id=satellite.job_id,
                    grant_id=satellite.grant.grant_id,
                    node=satellite.grant.node,
                    workers=satellite.grant.workers,
                    state=self._state_of(satellite),
                )
                for satellite in self._satellites.values()
            ],
        )

    def _state_of(self, satellite: Satellite) -> _State.ValueType:
        if satellite.withdrawn or satellite.failed:
            return _State.SATELLITE_STATE_LEAVING
        if not satellite.agent:
            return _State.SATELLITE_STATE_PENDING
        if self._membership.agent_trains(satellite.agent):
            return _State.SATELLITE_STATE_TRAINING
        return _State.SATELLITE_STATE_WARMING

    def _hello(self) -> jobs_pb2.Hello:
        """Asked for by the link's thread; reads the last report, which is never changed once made."""
        base = self.base
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
        )


def agent_name(node: str, job_id: int) -> str:
    """What the agent of `node` in the Slurm job `job_id` is called; to Horovod's core it is a host."""
    return f"{node}-{job_id}"


def say(sentence: str) -> None:
    """One line for the user, in the job's output."""
    print(f"flexo: {sentence}", file=sys.stderr, flush=True)


def _grant(grant: jobs_pb2.Grant) -> Grant:
    return Grant(
        grant.grant_id, grant.node, grant.workers, grant.partition, grant.lease_s, grant.start_within_s
    )


def _rank_line(place: m.Place) -> str:
    """What gloo_context.cc parses in answer to rank_and_size."""
    numbers = (place.rank, place.size, place.local_rank, place.local_size)
    return ",".join(map(str, (*numbers, place.cross_rank, place.cross_size)))


def _without_progress(report: jobs_pb2.Report | None) -> bytes:
    if report is None:
        return b"none"
    copy = jobs_pb2.Report()
    copy.CopyFrom(report)
    copy.batches_committed = 0
    return copy.SerializeToString()


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
