"""What a job borrows: flexod's grants made real as satellites, given back, and found again by a new leader.

Lives in the leader's thread, like the leader itself; only what is asked of the cluster runs in a pool and
posts what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import threads, wire
from horovod_elastic.platforms.base import (
    Found,
    Grant,
    JobControl,
    PreemptionNotices,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.trace import Trace, say, say_error

LOOK_INTERVAL_S = 5.0
"""How often the cluster is asked about satellites that have not attached yet, at first."""
_LONGEST_LOOK_S = 20.0
"""The longer they wait, the more seldom: a thousand leaders may wait beside each other. Less than what flexod
allows beyond start_within_s (flexo/grants.py)."""
ATTACH_BOUND_S = 60.0
"""How long a satellite that runs may take until its agent is here."""
SUBMITTED_WITHIN_S = 70.0
"""Until the cluster knows what an earlier leader submits: a little more than ANSWERS_WITHIN_S."""
START_WITHIN_S = 60
"""For a satellite of an earlier leader, until flexod has said how long its grant may take to start."""
_END_LOOK_S = 0.5
_Reason = jobs_pb2.GrantFailed.Reason
_State = jobs_pb2.SatelliteState
_Answer = TypeVar("_Answer")


@dataclass
class Satellite:
    """A grant on its way to being real, or back."""

    grant: Grant
    since: float
    id: str = ""
    """The cluster's, as soon as it is submitted."""
    agent: str = ""
    withdrawn: str = ""
    """Why flexod took the grant back, or the cluster the node; "" while it stands."""
    preempted: bool = False
    submission: Future[None] | None = None
    """It is being submitted."""
    running_since: float | None = None
    failed: str = ""
    slow: str = ""


class Office(Protocol):
    """What the leader does for its borrowing."""

    @property
    def finishing(self) -> bool:
        """The job is ending: nothing is borrowed any more."""
        ...

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` run in the leader's thread."""
        ...

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """Send it, if flexod is there."""
        ...

    def send_away(self, agent: str, why: str) -> None:
        """Have an agent's workers leave at the next boundary, and then the agent."""
        ...

    def agent_trains(self, agent: str) -> bool:
        """Whether any of its workers is in the present generation."""
        ...

    def agent_leaving(self, name: str, reason: str) -> None:
        """The cluster takes the satellite of an agent back: its workers leave, and it is told to `leaves`."""
        ...


class Borrowing:
    """See the module. `inherited`: there may be satellites of an earlier leader, to be found first."""

    def __init__(self, cluster: JobControl, office: Office, trace: Trace, *, inherited: bool) -> None:
        self._cluster = cluster
        self._office = office
        self._trace = trace
        self._satellites: dict[str, Satellite] = {}
        self._given_back: dict[str, jobs_pb2.GrantFailed] = {}
        """What flexod was told of grants that it may not know yet to be over; told again if it lists them."""
        self._commands = ThreadPoolExecutor(max_workers=4, thread_name_prefix="cluster")
        self._closed = False
        self._look_at = 0.0
        self._looking = False
        self._listed = not inherited
        """Whether flexod's list has been compared with what there is."""
        self.complete = not inherited
        """Whether all satellites are known."""
        self._latest: jobs_pb2.Grants | None = None
        self._elsewhere: dict[str, float] = {}
        """Grants that an earlier leader may still be submitting, and until when that is believed."""
        self._early_notices: dict[str, str] = {}
        """Of preemption, by the ids of satellites that are not known yet."""
        if isinstance(cluster, PreemptionNotices):
            cluster.on_preemption(lambda *notice: office.post(lambda: self._preempted(*notice)))

    # --- grants -----------------------------------------------------------------------------------------

    def on_grants(self, message: jobs_pb2.Grants) -> None:
        """Make the grants that stand real, and no others."""
        self._latest = message
        if not self.complete:
            return
        self._listed = True
        standing = {grant.grant_id: _grant(grant) for grant in message.grants}
        for satellite in list(self._satellites.values()):
            if satellite.grant.grant_id not in standing:
                self._withdraw(satellite)
        for grant in standing.values():
            if known := self._satellites.get(grant.grant_id):
                known.grant = replace(grant, signature=grant.signature or known.grant.signature)
            elif not self._office.finishing and grant.grant_id not in self._elsewhere:
                self._realise(grant)
        self._given_back = {key: told for key, told in self._given_back.items() if key in standing}

    def _realise(self, grant: Grant) -> None:
        if told := self._given_back.get(grant.grant_id):
            self._office.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
            return
        self._trace.event("grant", grant=grant.grant_id, node=grant.node, workers=grant.workers)
        self._satellites[grant.grant_id] = satellite = Satellite(grant, time.monotonic())
        self._submit(satellite)

    def submitted_elsewhere(self, grant_ids: Iterable[str], now: float) -> None:
        """An earlier leader was submitting these: the cluster may know its satellites only now."""
        if not self._listed:
            for grant_id in grant_ids:
                self._elsewhere.setdefault(grant_id, now + SUBMITTED_WITHIN_S)

    def submitting(self) -> list[str]:
        """Grants that are being submitted, for the next leader."""
        own = [
            grant_id
            for grant_id, satellite in self._satellites.items()
            if satellite.submission is not None and not satellite.submission.done()
        ]
        return sorted([*own, *self._elsewhere])

    def _withdraw(self, satellite: Satellite) -> None:
        if satellite.withdrawn:
            return
        satellite.withdrawn = "flexod needs the GPUs elsewhere"
        if satellite.agent:
            self._office.send_away(satellite.agent, satellite.withdrawn)
        elif satellite.id:
            self._cancel(satellite)

    def _ask_cluster(
        self, ask: Callable[[], _Answer], then: Callable[[_Answer | Refused], None]
    ) -> Future[None] | None:
        """Ask the cluster in a thread of the pool; `then` hears in the leader's thread what came of it."""
        if self._closed:
            return None

        def work() -> None:
            answer: _Answer | Refused
            try:
                answer = ask()
            except Refused as error:
                answer = error
            except Exception as error:  # without an answer nothing would be asked again
                say_error(error)
                answer = Refused(f"what {self._cluster.name} answered cannot be used: {error!r}")
            self._office.post(lambda: then(answer))

        return self._commands.submit(work)

    def _submit(self, satellite: Satellite) -> None:
        satellite.submission = self._ask_cluster(
            lambda: self._cluster.submit(satellite.grant), lambda answer: self._submitted(satellite, answer)
        )

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
        """Take note of a satellite's agent; why it has to go at once or soon, "" if its grant stands."""
        satellite = self._satellite_of(wire.job_id(hello.slurm_job_id), hello.node)
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
        """The cluster has told this agent to go."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.withdrawn, satellite.preempted = reason, True

    def _preempted(self, satellite_id: str, reason: str) -> None:
        """The cluster has told the job that it takes this satellite back."""
        satellite = self._satellite_of(satellite_id)
        if satellite is None:
            self._early_notices[satellite_id] = reason
        elif satellite.agent and not satellite.withdrawn:
            self._office.agent_leaving(satellite.agent, reason)
        elif not satellite.withdrawn:
            self._cancel_and_give_back(satellite, _Reason.REASON_PREEMPTED, reason)

    def _identified(self, satellite: Satellite) -> None:
        """The cluster has told its id."""
        if reason := self._early_notices.pop(satellite.id, ""):
            self._preempted(satellite.id, reason)

    def failed(self, name: str, why: str) -> None:
        """Membership has sent this agent away: its workers die again and again."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.failed = why

    def slow(self, name: str, why: str) -> None:
        """A worker there is slower than the others, and goes with its satellite."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.slow = why

    def gone(self, name: str) -> None:
        """This agent is gone, and its satellite with it."""
        satellite = self._of_agent(name)
        if satellite is None:
            return
        if self._office.finishing:
            self._forget(satellite)
        elif satellite.failed:
            self._give_back(satellite, _Reason.REASON_WORKERS_FAILED, satellite.failed)
        elif satellite.preempted:
            self._give_back(satellite, _Reason.REASON_PREEMPTED, satellite.withdrawn)
        elif satellite.slow:
            self._give_back(satellite, _Reason.REASON_SLOW_GPU, satellite.slow)
        elif not satellite.withdrawn:
            # Its batch script may outlive it: an agent that hangs, or that others cannot reach.
            self._cancel(satellite)
            self._give_back(satellite, _Reason.REASON_LOST, "its agent is gone")
        else:
            self._forget(satellite)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look after those that have not attached yet."""
        if self._closed or self._looking or now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL_S
        if not self.complete or self._elsewhere:
            self._look_for_inherited()
            return
        waiting = [s for s in self._satellites.values() if s.id and not s.agent and not s.withdrawn]
        if waiting:
            self._look_at = now + look_interval_s(now - max(s.since for s in waiting))
            self._look_at_the_queue(waiting)

    def _look_for_inherited(self) -> None:
        self._looking = True
        self._ask_cluster(self._cluster.find, self._inherit)

    def _inherit(self, found: list[Found] | Refused) -> None:
        self._looking = False
        if isinstance(found, Refused):
            return  # tried again; until then nothing is submitted twice because nothing is submitted
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
        """One that an earlier leader has submitted; None if its grant has a satellite already."""
        if not grant_id or grant_id in self._satellites:
            return None
        self._elsewhere.pop(grant_id, None)
        grant = Grant(grant_id, node, workers, "", 0, START_WITHIN_S)
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
            elif status.blocked:
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
        """Tell flexod that this grant did not become, or no longer is, a satellite."""
        grant_id = satellite.grant.grant_id
        told = jobs_pb2.GrantFailed(grant_id=grant_id, reason=reason, message=message[:500])
        self._given_back[grant_id] = told
        if not self._closed:
            self._office.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
        self._forget(satellite)

    # --- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give no more commands, and drop those that have not begun; the next leader hears of the rest."""
        self._closed = True
        self._commands.shutdown(wait=False, cancel_futures=True)

    def end_those_without_agents(self) -> None:
        """Beside the leader's thread, and before `end_all`: nobody tells them that the job is over."""
        if ids := self._without_agents():

            def failed(error: Exception) -> None:
                """`end_all` tries again."""

            threads.start(lambda: self._cluster.cancel(ids), name="end-satellites", failed=failed)

    def end_all(self, deadline: float) -> None:
        """Wait for the end of all satellites up to `deadline` (monotonic), and cancel what is left then.

        Agents have been dismissed: a satellite that is cancelled while it leaves looks like a failure.
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
        """All of them, for flexod."""
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
        """Whether all satellites are known, and those that run have their agents here."""
        return self.complete and all(
            satellite.agent or satellite.running_since is None for satellite in self._satellites.values()
        )

    def _state_of(self, satellite: Satellite) -> _State.ValueType:
        if satellite.withdrawn or satellite.failed or satellite.slow:
            return _State.SATELLITE_STATE_LEAVING
        if not satellite.agent:
            return _State.SATELLITE_STATE_PENDING
        if self._office.agent_trains(satellite.agent):
            return _State.SATELLITE_STATE_TRAINING
        return _State.SATELLITE_STATE_WARMING

    def _forget(self, satellite: Satellite) -> None:
        if self._satellites.get(satellite.grant.grant_id) is satellite:
            del self._satellites[satellite.grant.grant_id]

    def _of_agent(self, name: str) -> Satellite | None:
        return next((s for s in self._satellites.values() if s.agent == name), None)

    def _satellite_of(self, satellite_id: str, node: str = "") -> Satellite | None:
        """By its id; for one whose agent came before the cluster's answer with its id did, by its node."""
        for satellite in self._satellites.values():
            if satellite.id == satellite_id:
                return satellite
        for satellite in self._satellites.values():
            if not satellite.id and satellite.grant.node == node:
                return satellite
        return None


def look_interval_s(waited_s: float) -> float:
    """Until the next look; `waited_s`: how long the newest satellite has waited by now."""
    return max(LOOK_INTERVAL_S, min(_LONGEST_LOOK_S, waited_s / 3))


def _grant(grant: jobs_pb2.Grant) -> Grant:
    return Grant(
        grant.grant_id,
        grant.node,
        grant.workers,
        grant.partition,
        grant.lease_s,
        grant.start_within_s,
        grant.qos,
        grant.signature,
    )
