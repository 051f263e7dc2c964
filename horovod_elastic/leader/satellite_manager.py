"""The satellites of a job: a leader submits one for each grant, gives it back, and finds an earlier leader's.

All of it runs in the leader's thread. Only the requests to the cluster run in a pool, and post their answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from flexo_protos.resources import Devices
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import threads, wire
from horovod_elastic.platforms.base import (
    AggregatorSatellites,
    Found,
    GrantedWorkers,
    JobControl,
    PreemptionNotices,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.trace import Trace, say, say_error

POLL_INTERVAL_S = 5.0
"""First interval at which the leader polls the cluster for satellites whose agents have not attached yet."""
_LONGEST_POLL_S = 20.0
"""Longest such interval. Intervals grow with the wait, because a thousand leaders may wait at a time. It is
less than what flexod allows beyond start_within_s (flexo/grants.py)."""
ATTACH_BOUND_S = 60.0
"""Longest time from a satellite's start until its agent attaches."""
SUBMITTED_WITHIN_S = 70.0
"""Time until the cluster knows all that an earlier leader submits: a little more than ANSWERS_WITHIN_S."""
START_WITHIN_S = 60
"""Time for an earlier leader's satellite to start, until flexod has sent its grant's start_within_s."""
_END_LOOK_S = 0.5
_Reason = jobs_pb2.GrantFailed.Reason
_State = jobs_pb2.SatelliteState
_Answer = TypeVar("_Answer")


@dataclass
class Satellite:
    """A grant, and the satellite that uses it: being submitted, waiting, running, or on its way back."""

    grant: GrantedWorkers
    since: float
    id: str = ""
    """The cluster's id, once the satellite is submitted; "" before."""
    agent: str = ""
    withdrawn: str = ""
    """Why flexod withdrew the grant, or the cluster takes the node back; "" while the grant stands."""
    preempted: bool = False
    submission: Future[None] | None = None
    """The request to the cluster that submits it."""
    running_since: float | None = None
    failed: str = ""
    slow: str = ""


class LeaderContext(Protocol):
    """The leader's interface for its satellites."""

    @property
    def finishing(self) -> bool:
        """Whether the job is ending: no satellite is submitted any more."""
        ...

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` run in the leader's thread."""
        ...

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """Send `message` to flexod, if flexod is there."""
        ...

    def send_away(self, agent: str, why: str) -> None:
        """Have an agent's workers leave at the next boundary, and then the agent."""
        ...

    def agent_trains(self, agent: str) -> bool:
        """Whether any worker of this agent is in the present generation, or its Aggregator is assigned."""
        ...

    def agent_leaving(self, name: str, reason: str) -> None:
        """The cluster takes an agent's satellite back: the workers leave, and the leader calls `leaves`."""
        ...


class SatelliteManager:
    """See the module. `inherited`: an earlier leader may have satellites, which must be found first."""

    def __init__(self, cluster: JobControl, leader: LeaderContext, trace: Trace, *, inherited: bool) -> None:
        self._cluster = cluster
        self._leader = leader
        self._trace = trace
        self._satellites: dict[str, Satellite] = {}
        self._given_back: dict[str, jobs_pb2.GrantFailed] = {}
        """By id, grants that were given back, until flexod lists them no more. flexod is told again if it
        lists one."""
        self._commands = ThreadPoolExecutor(max_workers=4, thread_name_prefix="cluster")
        self._closed = False
        self._poll_at = 0.0
        self._looking = False
        self._listed = not inherited
        """Whether flexod's list of grants has been compared with the satellites."""
        self.complete = not inherited
        """Whether all satellites are known."""
        self._latest: jobs_pb2.Grants | None = None
        self._elsewhere: dict[str, float] = {}
        """Grants that an earlier leader may still be submitting, with the time until which it may."""
        self._early_notices: dict[str, str] = {}
        """Notices of preemption, by the ids of satellites that are not known yet."""
        if isinstance(cluster, PreemptionNotices):
            cluster.on_preemption(lambda *notice: leader.post(lambda: self._preempted(*notice)))

    # --- grants -----------------------------------------------------------------------------------------

    def on_grants(self, message: jobs_pb2.Grants) -> None:
        """Submit satellites for new grants, and withdraw satellites whose grants do not stand any more."""
        self._latest = message
        if not self.complete:
            return
        self._listed = True
        granted = {grant.grant_id: _grant(grant) for grant in message.grants}
        for satellite in list(self._satellites.values()):
            if satellite.grant.grant_id not in granted:
                self._withdraw(satellite)
        for grant in granted.values():
            if known := self._satellites.get(grant.grant_id):
                known.grant = replace(grant, signature=grant.signature or known.grant.signature)
            elif not self._leader.finishing and grant.grant_id not in self._elsewhere:
                self._realise(grant)
        self._given_back = {key: told for key, told in self._given_back.items() if key in granted}

    def _realise(self, grant: GrantedWorkers) -> None:
        if told := self._given_back.get(grant.grant_id):
            self._leader.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
            return
        self._trace.event("grant", grant=grant.grant_id, node=grant.node, workers=grant.workers)
        self._satellites[grant.grant_id] = satellite = Satellite(grant, time.monotonic())
        self._submit(satellite)

    def submitted_elsewhere(self, grant_ids: Iterable[str], now: float) -> None:
        """Note grants that an earlier leader was submitting: the cluster may not know the satellites yet."""
        if not self._listed:
            for grant_id in grant_ids:
                self._elsewhere.setdefault(grant_id, now + SUBMITTED_WITHIN_S)

    def submitting(self) -> list[str]:
        """Ids of the grants that are being submitted, for the next leader."""
        own = [
            grant_id
            for grant_id, satellite in self._satellites.items()
            if satellite.submission is not None and not satellite.submission.done()
        ]
        return sorted([*own, *self._elsewhere])

    def _withdraw(self, satellite: Satellite) -> None:
        if satellite.withdrawn:
            return
        satellite.withdrawn = f"flexod takes the {'GPUs' if satellite.grant.workers else 'CPU'} back"
        if satellite.agent:
            self._leader.send_away(satellite.agent, satellite.withdrawn)
        elif satellite.id:
            self._cancel(satellite)

    def _ask_cluster(
        self, ask: Callable[[], _Answer], then: Callable[[_Answer | Refused], None]
    ) -> Future[None] | None:
        """Ask the cluster in a thread of the pool. `then`: called in the leader's thread with the answer."""
        if self._closed:
            return None

        def work() -> None:
            answer: _Answer | Refused
            try:
                answer = ask()
            except Refused as error:
                answer = error
            except Exception as error:  # without an answer, the cluster would not be asked again
                say_error(error)
                answer = Refused(f"what {self._cluster.name} answered cannot be used: {error!r}")
            self._leader.post(lambda: then(answer))

        return self._commands.submit(work)

    def _submit(self, satellite: Satellite) -> None:
        satellite.submission = self._ask_cluster(
            lambda: self._submit_now(satellite.grant), lambda answer: self._submitted(satellite, answer)
        )

    def _submit_now(self, grant: GrantedWorkers) -> str:
        """Submit the satellite of a grant; return its id. Any thread may call it. Raises Refused."""
        if grant.workers:
            return self._cluster.submit(grant)
        if not isinstance(self._cluster, AggregatorSatellites):
            raise Refused(f"{self._cluster.name} has no satellites with CPUs only")
        return self._cluster.submit_aggregator(grant)

    def _submitted(self, satellite: Satellite, answer: str | Refused) -> None:
        if isinstance(answer, Refused):
            self._give_back(satellite, _Reason.REASON_REFUSED, str(answer))
            return
        self._trace.event("submitted", grant=satellite.grant.grant_id, satellite=answer)
        satellite.id, satellite.since = answer, time.monotonic()
        if satellite.withdrawn:
            self._cancel(satellite)
        self._identified(satellite)

    def _cancel(self, satellite: Satellite) -> None:
        def cancelled(answer: Refused | None) -> None:
            if isinstance(answer, Refused):
                say(f"satellite {satellite.id} was not cancelled: {answer}")
            if not satellite.agent:
                self._forget(satellite)

        self._ask_cluster(lambda: self._cluster.cancel([satellite.id]), cancelled)

    # --- agents of satellites -----------------------------------------------------------------------------

    def admit(self, name: str, hello: workers_pb2.AgentHello) -> str:
        """Note a satellite's agent. Return why it has to go, now or soon; "" if its grant stands."""
        satellite = self._satellite_of(wire.job_id(hello.slurm_job_id), hello.grant_id)
        expected = not self._listed or hello.grant_id in self._elsewhere
        if satellite is None and (expected or hello.workers):
            satellite = self._adopt(wire.job_id(hello.slurm_job_id), hello.grant_id, hello.node, hello.slots)
            if satellite is not None and not expected:
                satellite.withdrawn = "its grant does not stand"
        if satellite is None:
            return "its grant does not stand"
        if satellite.withdrawn and not hello.workers:
            return satellite.withdrawn
        satellite.agent, satellite.id = name, wire.job_id(hello.slurm_job_id)
        if hello.leaving and not satellite.withdrawn:
            satellite.withdrawn = f"{self._cluster.name} takes the node back (SIGTERM)"
            satellite.preempted = True
        return satellite.withdrawn

    def leaves(self, name: str, reason: str) -> None:
        """Note that the cluster takes the satellite of this agent back."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.withdrawn, satellite.preempted = reason, True

    def _preempted(self, satellite_id: str, reason: str) -> None:
        """Handle the cluster's notice to the job that it takes this satellite back."""
        satellite = self._satellite_of(satellite_id)
        if satellite is None:
            self._early_notices[satellite_id] = reason
        elif satellite.agent and not satellite.withdrawn:
            self._leader.agent_leaving(satellite.agent, reason)
        elif not satellite.withdrawn:
            self._cancel_and_give_back(satellite, _Reason.REASON_PREEMPTED, reason)

    def _identified(self, satellite: Satellite) -> None:
        """Handle an earlier notice of preemption for a satellite whose id is known now."""
        if reason := self._early_notices.pop(satellite.id, ""):
            self._preempted(satellite.id, reason)

    def failed(self, name: str, why: str) -> None:
        """Note that membership has sent this agent away, because its workers die again and again."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.failed = why

    def slow(self, name: str, why: str) -> None:
        """Note that this agent's satellite leaves, because one of its workers is slower than the others."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.slow = why

    def gone(self, name: str) -> str:
        """Give back or forget the satellite of an agent that is gone. Returns why, if nobody asked for it."""
        satellite = self._of_agent(name)
        if satellite is None:
            return ""
        if self._leader.finishing:
            self._forget(satellite)
        elif satellite.failed:
            self._give_back(satellite, _Reason.REASON_WORKERS_FAILED, satellite.failed)
            return satellite.failed
        elif satellite.preempted:
            self._give_back(satellite, _Reason.REASON_PREEMPTED, satellite.withdrawn)
        elif satellite.slow:
            self._give_back(satellite, _Reason.REASON_SLOW_GPU, satellite.slow)
        elif not satellite.withdrawn:
            # The batch script may outlive an agent that hangs, or that nobody can reach.
            self._cancel(satellite)
            self._give_back(satellite, _Reason.REASON_LOST, "its agent is gone")
            return "its agent is gone"
        else:
            self._forget(satellite)
        return ""

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Poll the cluster for satellites whose agents have not attached yet."""
        if self._closed or self._looking or now < self._poll_at:
            return
        self._poll_at = now + POLL_INTERVAL_S
        if not self.complete or self._elsewhere:
            self._look_for_inherited()
            return
        waiting = [s for s in self._satellites.values() if s.id and not s.agent and not s.withdrawn]
        if waiting:
            self._poll_at = now + poll_interval_s(now - max(s.since for s in waiting))
            self._look_at_the_queue(waiting)

    def _look_for_inherited(self) -> None:
        self._looking = True
        self._ask_cluster(self._cluster.find, self._inherit)

    def _inherit(self, found: list[Found] | Refused) -> None:
        self._looking = False
        if isinstance(found, Refused):
            return  # `tick` asks again; until then no satellite is submitted, so none is submitted twice
        for each in found:
            if self._satellite_of(each.id) is None:
                satellite = self._adopt(each.id, each.grant_id, each.node, each.workers)
                if satellite is not None and each.runs:
                    satellite.running_since = time.monotonic()
        self.complete = True
        now = time.monotonic()
        self._elsewhere = {grant: until for grant, until in self._elsewhere.items() if now < until}
        if self._latest is not None:
            self.on_grants(self._latest)
        for satellite in list(self._satellites.values()):
            self._identified(satellite)

    def _adopt(self, satellite_id: str, grant_id: str, node: str, workers: int) -> Satellite | None:
        """Add a satellite that an earlier leader has submitted; None if its grant has a satellite already."""
        if not grant_id or grant_id in self._satellites:
            return None
        self._elsewhere.pop(grant_id, None)
        grant = GrantedWorkers(grant_id, node, workers, "", 0, START_WITHIN_S)
        self._satellites[grant_id] = satellite = Satellite(grant, time.monotonic(), satellite_id)
        return satellite

    def _look_at_the_queue(self, waiting: list[Satellite]) -> None:
        self._looking = True
        ids = [satellite.id for satellite in waiting]

        self._ask_cluster(lambda: self._cluster.status(ids), lambda answer: self._looked(waiting, answer))

    def _looked(self, waiting: list[Satellite], found: dict[str, SatelliteStatus] | Refused) -> None:
        self._looking = False
        if isinstance(found, Refused):
            return
        now = time.monotonic()
        for satellite in waiting:
            if satellite.agent or satellite.withdrawn:
                continue
            status = found.get(satellite.id)
            if status is None:
                self._give_back(satellite, _Reason.REASON_LOST, "it ended before its agent was here")
            elif status.blocked or (status.held and not satellite.grant.shared_gpus):
                self._cancel_and_give_back(satellite, _Reason.REASON_REFUSED, status.reason)
            elif not status.placed:
                if now > satellite.since + satellite.grant.start_within_s:
                    self._cancel_and_give_back(satellite, _Reason.REASON_NOT_STARTED, status.reason)
            else:
                satellite.running_since = satellite.running_since or now
                if now > satellite.running_since + ATTACH_BOUND_S:
                    self._cancel_and_give_back(satellite, _Reason.REASON_LOST, "its agent did not attach")

    def _cancel_and_give_back(self, satellite: Satellite, reason: _Reason.ValueType, message: str) -> None:
        satellite.withdrawn = message
        self._cancel(satellite)
        self._give_back(satellite, reason, message)

    def _give_back(self, satellite: Satellite, reason: _Reason.ValueType, message: str) -> None:
        """Tell flexod that this grant has no satellite, or none any more."""
        grant_id = satellite.grant.grant_id
        told = jobs_pb2.GrantFailed(grant_id=grant_id, reason=reason, message=message[:500])
        self._given_back[grant_id] = told
        if not self._closed:
            self._leader.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
        self._forget(satellite)

    # --- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send no more requests to the cluster, and drop those that have not begun. The next leader learns of
        the rest.
        """
        self._closed = True
        self._commands.shutdown(wait=False, cancel_futures=True)

    def end_those_without_agents(self) -> None:
        """Cancel satellites without agents, in a thread: no agent could tell them that the job is over.

        Call it before `end_all`.
        """
        if ids := self._without_agents():

            def failed(error: Exception) -> None:
                """Do nothing: `end_all` tries again."""

            threads.start(lambda: self._cluster.cancel(ids), name="end-satellites", failed=failed)

    def end_all(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic) for all satellites to end, then cancel the remaining ones.

        Their agents have been dismissed. A satellite that is cancelled while it leaves looks like a failure.
        """
        left = [satellite.id for satellite in self._satellites.values() if satellite.id]
        without_agents = self._without_agents()
        why = ""
        while left:
            may_take_s = deadline - time.monotonic()
            try:
                self._cluster.cancel(without_agents if may_take_s > 0 else left, max(0.0, may_take_s))
                left, why = list(self._cluster.status(left)), ""
            except Refused as error:
                why = str(error)
            if may_take_s <= 0:
                break
            if left:
                time.sleep(_END_LOOK_S)
        if left and why:
            say(
                f"{self._cluster.name} was not told to end satellites {', '.join(left)}: {why}. flexod ends"
                f" them, or their time limit does; `{self._cluster.how_to_cancel(left)}` ends them at once"
            )

    def _without_agents(self) -> list[str]:
        return [each.id for each in self._satellites.values() if each.id and not each.agent]

    # --- small questions ----------------------------------------------------------------------------------

    def report(self) -> list[jobs_pb2.Satellite]:
        """All satellites, as flexod's report lists them."""
        return [
            jobs_pb2.Satellite(
                slurm_job_id=wire.job_number(satellite.id),
                grant_id=satellite.grant.grant_id,
                node=satellite.grant.node,
                workers=satellite.grant.workers,
                state=self._state_of(satellite),
                signature=satellite.grant.signature,
            )
            for satellite in self._satellites.values()
        ]

    @property
    def everybody_is_here(self) -> bool:
        """Whether all satellites are known, and the agents of those that run have attached."""
        return self.complete and all(
            satellite.agent or satellite.running_since is None for satellite in self._satellites.values()
        )

    def _state_of(self, satellite: Satellite) -> _State.ValueType:
        if satellite.withdrawn or satellite.failed or satellite.slow:
            return _State.SATELLITE_STATE_LEAVING
        if not satellite.agent:
            return _State.SATELLITE_STATE_PENDING
        if self._leader.agent_trains(satellite.agent):
            return _State.SATELLITE_STATE_TRAINING
        return _State.SATELLITE_STATE_WARMING

    def _forget(self, satellite: Satellite) -> None:
        if self._satellites.get(satellite.grant.grant_id) is satellite:
            del self._satellites[satellite.grant.grant_id]

    def _of_agent(self, name: str) -> Satellite | None:
        return next((s for s in self._satellites.values() if s.agent == name), None)

    def _satellite_of(self, satellite_id: str, grant_id: str = "") -> Satellite | None:
        """The satellite with this id; else that of the grant, if it has no id yet.

        An agent may attach before the cluster has answered with the id.
        """
        for satellite in self._satellites.values():
            if satellite.id == satellite_id:
                return satellite
        satellite_of_grant = self._satellites.get(grant_id)
        return None if satellite_of_grant is None or satellite_of_grant.id else satellite_of_grant


def poll_interval_s(waited_s: float) -> float:
    """Seconds until the next poll of the cluster. `waited_s`: how long the newest satellite has waited."""
    return max(POLL_INTERVAL_S, min(_LONGEST_POLL_S, waited_s / 3))


def _grant(grant: jobs_pb2.Grant) -> GrantedWorkers:
    return GrantedWorkers(
        grant.grant_id,
        grant.node,
        grant.workers,
        grant.partition,
        grant.time_limit_s,
        grant.start_within_s,
        grant.qos,
        grant.signature,
        tuple(Devices(each.name, each.type, each.count) for each in grant.shared_gpus),
    )
