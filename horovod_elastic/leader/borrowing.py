"""What a job borrows: flexod's grants made real as satellites, given back, and found again by a new leader.

Lives in the leader's thread, like the leader itself; only Slurm's commands run in a pool and post what came
of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.leader.satellites import Found, Grant, QueueEntry, Refused, SlurmUser
from horovod_elastic.trace import Trace, say

LOOK_INTERVAL_S = 5.0
"""How often Slurm is asked about satellites that have not attached yet, at first."""
_LONGEST_LOOK_S = 20.0
"""The longer they wait, the more seldom: a thousand leaders may wait beside each other. Less than what flexod
allows beyond start_within_s (flexo/grants.py)."""
ATTACH_BOUND_S = 60.0
"""How long a satellite that runs may take until its agent is here."""
START_WITHIN_S = 60
"""For a satellite of an earlier leader, until flexod has said how long its grant may take to start."""
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


class Borrowing:
    """See the module. `inherited`: there may be satellites of an earlier leader, to be found first."""

    def __init__(self, slurm: SlurmUser, office: Office, trace: Trace, *, inherited: bool) -> None:
        self._slurm = slurm
        self._office = office
        self._trace = trace
        self._satellites: dict[str, Satellite] = {}
        self._given_back: dict[str, jobs_pb2.GrantFailed] = {}
        """What flexod was told of grants that it may not know yet to be over; told again if it lists them."""
        self._commands = ThreadPoolExecutor(max_workers=4, thread_name_prefix="slurm")
        self._closed = False
        self._look_at = 0.0
        self._looking = False
        self._listed = not inherited
        """Whether flexod's list has been compared with what there is."""
        self.complete = not inherited
        """Whether all satellites are known."""
        self._latest: jobs_pb2.Grants | None = None

    # --- grants -----------------------------------------------------------------------------------------

    def on_grants(self, message: jobs_pb2.Grants) -> None:
        """Make the grants that stand real, and no others."""
        if not self.complete:
            self._latest = message
            return
        self._listed = True
        standing = {grant.grant_id: _grant(grant) for grant in message.grants}
        for satellite in list(self._satellites.values()):
            if satellite.grant.grant_id not in standing:
                self._withdraw(satellite)
        for grant in standing.values():
            if known := self._satellites.get(grant.grant_id):
                known.grant = grant
            elif not self._office.finishing:
                self._realise(grant)
        self._given_back = {key: told for key, told in self._given_back.items() if key in standing}

    def _realise(self, grant: Grant) -> None:
        if told := self._given_back.get(grant.grant_id):
            self._office.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
            return
        self._trace.event("grant", grant=grant.grant_id, node=grant.node, workers=grant.workers)
        self._satellites[grant.grant_id] = satellite = Satellite(grant, time.monotonic())
        self._in_background(self._submit, satellite)

    def _withdraw(self, satellite: Satellite) -> None:
        if satellite.withdrawn:
            return
        satellite.withdrawn = "flexod needs the GPUs elsewhere"
        if satellite.agent:
            self._office.send_away(satellite.agent, satellite.withdrawn)
        elif satellite.job_id:
            self._in_background(self._cancel, satellite)

    def _in_background(self, work: Callable[[Satellite], None], satellite: Satellite) -> None:
        if not self._closed:
            self._commands.submit(work, satellite)

    def _submit(self, satellite: Satellite) -> None:
        """In a thread of the pool."""
        try:
            job_id = self._slurm.submit(satellite.grant)
        except Refused as error:
            text = str(error)
            self._office.post(lambda: self._give_back(satellite, _Reason.REASON_REFUSED, text))
            return
        self._office.post(lambda: self._submitted(satellite, job_id))

    def _submitted(self, satellite: Satellite, job_id: int) -> None:
        self._trace.event("submitted", grant=satellite.grant.grant_id, slurm_job=job_id)
        satellite.job_id, satellite.since = job_id, time.monotonic()
        if satellite.withdrawn:
            self._in_background(self._cancel, satellite)

    def _cancel(self, satellite: Satellite) -> None:
        """In a thread of the pool."""
        try:
            self._slurm.cancel([satellite.job_id])
        except Refused as error:
            say(f"satellite {satellite.job_id} was not cancelled: {error}")
        self._office.post(lambda: self._forget(satellite) if not satellite.agent else None)

    # --- agents of satellites -----------------------------------------------------------------------------

    def admit(self, name: str, hello: workers_pb2.AgentHello) -> str:
        """Take note of a satellite's agent; why it has to go at once or soon, "" if its grant stands."""
        satellite = self._satellite_of(hello.slurm_job_id, hello.node)
        if satellite is None and (not self._listed or hello.workers):
            satellite = self._adopt(hello.slurm_job_id, hello.grant_id, hello.node, hello.slots)
            if satellite is not None and self._listed:
                satellite.withdrawn = "its grant does not stand"
        if satellite is None:
            return "its grant does not stand"
        if satellite.withdrawn and not hello.workers:
            return satellite.withdrawn
        satellite.agent, satellite.job_id = name, hello.slurm_job_id
        if hello.leaving and not satellite.withdrawn:
            satellite.withdrawn, satellite.preempted = "Slurm takes the node back (SIGTERM)", True
        return satellite.withdrawn

    def leaves(self, name: str, reason: str) -> None:
        """Slurm has told this agent to go."""
        satellite = self._of_agent(name)
        if satellite is not None and not satellite.withdrawn:
            satellite.withdrawn, satellite.preempted = reason, True

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
            self._in_background(self._cancel, satellite)
            self._give_back(satellite, _Reason.REASON_LOST, "its agent is gone")
        else:
            self._forget(satellite)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look after those that have not attached yet."""
        if self._closed or self._looking or now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL_S
        if not self.complete:
            self._look_for_inherited()
            return
        waiting = [s for s in self._satellites.values() if s.job_id and not s.agent and not s.withdrawn]
        if waiting:
            self._look_at = now + look_interval_s(now - max(s.since for s in waiting))
            self._look_at_the_queue(waiting)

    def _look_for_inherited(self) -> None:
        self._looking = True

        def look() -> None:
            try:
                found = self._slurm.find()
            except Refused:
                found = (
                    None  # tried again; until then nothing is submitted twice because nothing is submitted
                )
            self._office.post(lambda: self._inherit(found))

        self._commands.submit(look)

    def _inherit(self, found: list[Found] | None) -> None:
        self._looking = False
        if found is None or self.complete:
            return
        for each in found:
            if self._satellite_of(each.job_id) is None:
                satellite = self._adopt(each.job_id, each.grant_id, each.node, each.workers)
                if satellite is not None and each.runs:
                    satellite.running_since = time.monotonic()
        self.complete = True
        if self._latest is not None:
            self.on_grants(self._latest)

    def _adopt(self, job_id: int, grant_id: str, node: str, workers: int) -> Satellite | None:
        """One that an earlier leader has submitted; None if its grant has a satellite already."""
        if not grant_id or grant_id in self._satellites:
            return None
        grant = Grant(grant_id, node, workers, "", 0, START_WITHIN_S)
        self._satellites[grant_id] = satellite = Satellite(grant, time.monotonic(), job_id)
        return satellite

    def _look_at_the_queue(self, waiting: list[Satellite]) -> None:
        self._looking = True
        ids = [satellite.job_id for satellite in waiting]

        def look() -> None:
            try:
                entries = self._slurm.queue(ids)
            except Refused:
                entries = None
            self._office.post(lambda: self._looked(waiting, entries))

        self._commands.submit(look)

    def _looked(self, waiting: list[Satellite], entries: dict[int, QueueEntry] | None) -> None:
        self._looking = False
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
        if not self._closed:
            self._office.tell_flexod(jobs_pb2.FromLeader(grant_failed=told))
        self._forget(satellite)

    # --- the end -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for Slurm's commands that are under way, and give no more."""
        self._closed = True
        self._commands.shutdown(wait=True)

    def cancel_all(self, deadline: float) -> None:
        """After `settle`: end what is left, and wait for its end up to `deadline` (monotonic)."""
        left = [satellite.job_id for satellite in self._satellites.values() if satellite.job_id]
        if not left:
            return
        try:
            self._slurm.cancel(left)
            while time.monotonic() < deadline and self._slurm.queue(left):
                time.sleep(0.5)
        except Refused as error:
            say(f"satellites {left} may be left until their time limit: {error}")

    # --- small questions ----------------------------------------------------------------------------------

    def report(self) -> list[jobs_pb2.Satellite]:
        """All of them, for flexod."""
        return [
            jobs_pb2.Satellite(
                slurm_job_id=satellite.job_id,
                grant_id=satellite.grant.grant_id,
                node=satellite.grant.node,
                workers=satellite.grant.workers,
                state=self._state_of(satellite),
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

    def _satellite_of(self, job_id: int, node: str = "") -> Satellite | None:
        """By its Slurm job; for one that came before sbatch's answer with its id did, by its node."""
        for satellite in self._satellites.values():
            if satellite.job_id == job_id:
                return satellite
        for satellite in self._satellites.values():
            if satellite.job_id == 0 and satellite.grant.node == node:
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
    )
