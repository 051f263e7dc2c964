"""The leader's dealings with grants and agents: submit, withdraw, give back, find again, hand over, end."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
from says import says

from flexo_protos.resources import Devices, Resources
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import rendezvous
from horovod_elastic.core import choice
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site
from horovod_elastic.leader import attendance, base_watch, failed_workers, satellite_manager, satellite_sums
from horovod_elastic.leader import leader as leaders
from horovod_elastic.leader.leader import Leader, LeadershipOutcome
from horovod_elastic.leader.membership import takeover
from horovod_elastic.leader.notices import Notices
from horovod_elastic.leader.parked_store import FOLDER_VARIABLE, ParkedStore
from horovod_elastic.platforms.base import (
    BaseState,
    Found,
    GrantedWorkers,
    JobControl,
    Refused,
    SatelliteStatus,
)

BOUND_S = 20.0
Failed = jobs_pb2.GrantFailed
AgentOutbox = queue.SimpleQueue[workers_pb2.ToAgent | None]


@dataclass
class Slurm:
    """Gives every satellite the number that the test says, when the test says."""

    name: str = "Slurm"
    next_id: int = 101
    refusal: str = ""
    submitted: list[GrantedWorkers] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)
    found: list[Found] | None = field(default_factory=list)
    """What find says; None: slurmctld does not answer."""
    base: BaseState | None = BaseState.RUNS
    """What Slurm says of it; None: slurmctld does not answer."""

    def submit(self, grant: GrantedWorkers) -> str:
        self.submitted.append(grant)
        assert self.may_answer.wait(BOUND_S)
        if self.refusal:
            raise Refused(self.refusal)
        self.next_id += 1
        return str(self.next_id - 1)

    def submit_aggregator(self, grant: GrantedWorkers) -> str:
        return self.submit(grant)

    def cancel(self, satellite_ids: Iterable[str], within_s: float = 0.0) -> None:
        self.cancelled += satellite_ids

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        return {each.id: SatelliteStatus(placed=True) for each in self.found or ()}

    def find(self) -> list[Found]:
        if self.found is None:
            raise Refused("squeue: no answer")
        return self.found

    def base_state(self) -> BaseState:
        if self.base is None:
            raise Refused("squeue: no answer")
        return self.base


@dataclass
class Link:
    """Hears what flexod would."""

    heard: list[jobs_pb2.FromLeader] = field(default_factory=list)
    report_interval_s: float = 5.0
    started: bool = False
    hung_up: bool = False

    def start(self) -> None:
        self.started = True

    def send(self, message: jobs_pb2.FromLeader) -> None:
        self.heard.append(message)

    def close(self, reason: str) -> None:
        self.heard.append(jobs_pb2.FromLeader(goodbye=jobs_pb2.Goodbye(reason=reason)))

    def hang_up(self) -> None:
        self.hung_up = True

    def failures(self) -> list[tuple[str, int]]:
        told = [
            message.grant_failed for message in self.heard if message.WhichOneof("body") == "grant_failed"
        ]
        return [(failed.grant_id, failed.reason) for failed in told]


@dataclass
class Lease:
    """Says what became of it."""

    passed_to: list[str] = field(default_factory=list)
    yielded_to: list[int] = field(default_factory=list)
    ended_with: list[int] = field(default_factory=list)
    sure: bool = True
    term: int = 3

    def certain(self) -> bool:
        return self.sure

    def pass_to(self, successor: str) -> None:
        self.passed_to.append(successor)

    def yield_to(self, term: int) -> None:
        self.yielded_to.append(term)

    def end(self, exit_code: int) -> None:
        self.ended_with.append(exit_code)


@dataclass
class Job:
    """A leader in its own thread."""

    leader: Leader
    slurm: Slurm
    link: Link
    lease: Lease
    thread: threading.Thread
    outcomes: list[LeadershipOutcome]

    def grants(self, *ids: str, workers: int = 1) -> None:
        grants = [
            jobs_pb2.Grant(
                grant_id=i,
                node=f"n-{i}",
                workers=workers,
                partition="flex",
                time_limit_s=300,
                start_within_s=60,
            )
            for i in ids
        ]
        self.do(lambda: self.leader._satellites.on_grants(jobs_pb2.Grants(grants=grants)))

    def do(self, what: Callable[[], object]) -> None:
        """In the leader's thread; everything posted before has been done then, too."""
        done = threading.Event()
        self.leader.post(lambda: (what(), done.set()))  # type: ignore[func-returns-value]
        assert done.wait(BOUND_S)

    def settle(self) -> None:
        self.do(lambda: None)

    def attach(self, job_id: int, node: str, base: bool = False, slots: int = 1, **hello: Any) -> AgentOutbox:
        outbox: AgentOutbox = queue.SimpleQueue()
        said = workers_pb2.AgentHello(
            slurm_job_id=job_id, node=node, slots=slots, base=base, holder=f"{node}-holder", **hello
        )
        self.do(lambda: self.leader.agent_attached(f"{node}-{job_id}", said, outbox))
        return outbox

    def detach(self, name: str) -> None:
        """And do not wait until it may be back."""
        link = self.leader._agents.by_name[name]
        self.do(lambda: self.leader.agent_detached(name, link.outbox))
        self.do(lambda: self.leader._lose(name, "its agent is gone", time.monotonic()))

    def satellites(self) -> dict[str, Any]:
        return self.leader._satellites._satellites


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


G1, G2 = Found("55", "g1", "n7", 1), Found("56", "g2", "n8", 1)
"""Satellites that Slurm still runs when a new leader looks."""


@pytest.fixture
def lead() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(
        slurm: Slurm | None = None,
        inherited: bool = False,
        name: str = "n1-17",
        parked: ParkedStore | None = None,
    ) -> Job:
        slurm, link, lease, outcomes = slurm or Slurm(), Link(), Lease(), list[LeadershipOutcome]()
        base = BaseJob("17", 0, (BaseNode("n1", 1),), Resources(1, 1, 0, ""), 1, 4, "")
        if parked is not None:
            base = dataclasses.replace(base, nodes=(BaseNode("n1", 0),), opportunistic=True)
        plan = JobPlan(base, Site(), "", "", "run://n1:1#r7")
        leader = Leader(
            plan, name, "127.0.0.1", cast(JobControl, slurm), lease, inherited=inherited, parked=parked
        )
        leader._reporter.attach(cast(Any, link))
        thread = threading.Thread(target=lambda: outcomes.append(leader.run()), daemon=True)
        thread.start()
        jobs.append(Job(leader, slurm, link, lease, thread, outcomes))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.slurm.may_answer.set()
        job.slurm.found = []
        job.leader.post(job.leader._agents.by_name.clear)
        job.leader.stop(0, "the test is over")
        job.thread.join(BOUND_S)


@pytest.fixture
def job(lead: Callable[..., Job]) -> Job:
    return lead()


def drained(outbox: AgentOutbox) -> list[workers_pb2.ToAgent]:
    """All messages that an agent was told."""
    found = []
    while not outbox.empty():
        if (message := outbox.get()) is not None:
            found.append(message)
    return found


def kinds(outbox: AgentOutbox) -> list[str]:
    """What an agent was told, without the signs of life."""
    found = []
    while not outbox.empty():
        message = outbox.get()
        kind = message.WhichOneof("body") if message else "the end"
        if kind and kind != "alive":
            found.append(kind)
    return found


def running(worker_id: str, generation: int = 3, rank: int = 0, size: int = 1) -> workers_pb2.RunningWorker:
    return workers_pb2.RunningWorker(
        worker_id=worker_id,
        status=workers_pb2.WorkerStatus(
            phase=workers_pb2.WORKER_PHASE_TRAINING,
            generation=generation,
            called=generation,
            rank=rank,
            size=size,
            commits=7,
            in_loop=True,
        ),
    )


def test_a_grant_is_submitted_once_however_often_it_is_told(job: Job) -> None:
    job.slurm.may_answer.set()
    job.grants("g1")
    job.grants("g1", "g2")
    job.grants("g2", "g1")
    wait_until(lambda: len(job.slurm.submitted) == 2)
    job.settle()
    assert sorted(grant.grant_id for grant in job.slurm.submitted) == ["g1", "g2"]


def test_a_grant_that_failed_is_not_tried_again_but_told_again_while_it_is_listed(job: Job) -> None:
    """The failure may have crossed the list on its way, or been lost with a connection."""
    job.slurm.refusal = "QOSMaxSubmitJobPerUserLimit"
    job.slurm.may_answer.set()
    job.grants("g1")
    wait_until(lambda: job.link.failures() == [("g1", Failed.REASON_REFUSED)])
    job.grants("g1", "g2")
    wait_until(lambda: len(job.link.failures()) == 3)
    assert [grant.grant_id for grant in job.slurm.submitted] == ["g1", "g2"]
    job.grants()
    assert not job.leader._satellites._given_back


def test_an_agent_that_is_faster_than_sbatchs_answer_is_taken(job: Job) -> None:
    job.grants("g1")
    outbox = job.attach(101, "n-g1", grant_id="g1")
    assert "dismiss" not in kinds(outbox)
    job.slurm.may_answer.set()
    wait_until(lambda: job.slurm.next_id == 102)
    job.settle()
    assert job.satellites()["g1"].agent == "n-g1-101"


def test_a_grant_that_is_withdrawn_while_it_is_submitted_is_cancelled(job: Job) -> None:
    job.grants("g1")
    job.grants()
    job.slurm.may_answer.set()
    wait_until(lambda: job.slurm.cancelled == ["101"])
    outbox = job.attach(101, "n-g1")
    assert kinds(outbox) == ["dismiss"]


def test_an_agent_without_a_grant_is_sent_home(job: Job) -> None:
    assert kinds(job.attach(999, "n9")) == ["dismiss"]


def test_what_flexod_commands_reaches_those_who_see_to_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is answered at once where it cannot be done: nobody trains yet."""
    links: list[dict[str, Any]] = []

    def dial(address: str, hello: object, **how: Any) -> Link:
        links.append(how)
        return job.link

    monkeypatch.setattr(leaders, "DaemonLink", dial)
    job.leader.attach_to("head:1")
    links[0]["on_command"](
        jobs_pb2.Command(id=7, checkpoint=jobs_pb2.CheckpointCommand(path="/tmp/flexo-test"))
    )
    job.settle()
    told = [message.command_done for message in job.link.heard if message.HasField("command_done")]
    assert [done.id for done in told] == [7]


def test_a_satellite_that_vanishes_is_lost_and_one_that_slurm_took_is_preempted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(Notices, "lost", lambda _, node, why: lost.append(node))
    job.slurm.may_answer.set()
    job.grants("g1", "g2")
    wait_until(lambda: all(satellite.id for satellite in job.satellites().values()))
    ids = {key: satellite.id for key, satellite in job.satellites().items()}
    for grant, job_id in ids.items():
        job.attach(int(job_id), f"n-{grant}")
    job.detach(f"n-g1-{ids['g1']}")
    job.do(lambda: job.leader.agent_leaving(f"n-g2-{ids['g2']}", "SIGTERM"))
    job.detach(f"n-g2-{ids['g2']}")
    assert job.link.failures() == [("g1", Failed.REASON_LOST), ("g2", Failed.REASON_PREEMPTED)]
    wait_until(lambda: job.slurm.cancelled == [ids["g1"]])  # its batch script may hang with its agent
    assert lost == ["n-g1"], "its user hears of it"


def test_at_the_end_satellites_that_were_just_being_submitted_are_cancelled_too(job: Job) -> None:
    job.grants("g1")
    job.leader.stop(7, "the test says so")
    time.sleep(0.2)
    job.slurm.may_answer.set()
    job.thread.join(BOUND_S)
    assert job.outcomes == [LeadershipOutcome(7, "the test says so")]
    assert job.lease.ended_with == [7]
    assert job.slurm.cancelled == ["101"]
    assert job.link.heard[-1].goodbye.reason == "the test says so"


def test_an_agent_that_comes_when_the_job_is_over_learns_its_exit_code(job: Job) -> None:
    job.leader.post(lambda: job.leader._end(5, "over"))
    outbox: AgentOutbox = queue.SimpleQueue()
    hello = workers_pb2.AgentHello(slurm_job_id=17, node="n1", slots=1, base=True)
    job.leader.post(lambda: job.leader.agent_attached("n1-17", hello, outbox))
    job.thread.join(BOUND_S)
    assert job.outcomes == [LeadershipOutcome(5, "over")]
    message = outbox.get()
    assert message is not None
    assert message.dismiss.exit_code == 5


def test_workers_meet_where_only_they_are_answered_and_nowhere_when_the_job_is_over(job: Job) -> None:
    outbox = job.attach(17, "n1", base=True)
    ready = workers_pb2.WorkerStatus(phase=workers_pb2.WORKER_PHASE_READY)
    said = workers_pb2.WorkerSaid(worker_id="w1", said=workers_pb2.FromWorker(status=ready))
    job.do(lambda: job.leader.agent_said("n1-17", outbox, workers_pb2.FromAgent(worker_said=said)))
    told = [message.tell_worker.message for message in drained(outbox) if message.HasField("tell_worker")]
    (prepare,) = [message.prepare for message in told if message.HasField("prepare")]
    assert prepare.rendezvous_address.startswith("127.0.0.1:")
    place = f"/rank_and_size/{prepare.hostname}:0"
    url = f"http://{prepare.rendezvous_address}:{prepare.rendezvous_port}"
    with urllib.request.urlopen(url + place, timeout=BOUND_S) as answer:
        assert answer.read()
    open_ = f"http://127.0.0.1:{prepare.rendezvous_port}"
    for guess in ("", "/", "/" + "0" * 32, f"/{'0' * 32}:{prepare.rendezvous_port}"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(open_ + guess + place, timeout=BOUND_S)
    job.leader.post(job.leader._agents.by_name.clear)
    job.leader.stop(0, "the test says so")
    job.thread.join(BOUND_S)
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url + place, timeout=BOUND_S)


def test_an_attempt_whose_rendezvous_has_failed_is_given_up_at_once_and_made_anew(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = job.attach(17, "n1", base=True)
    ready = workers_pb2.WorkerStatus(phase=workers_pb2.WORKER_PHASE_READY)
    said = workers_pb2.WorkerSaid(worker_id="w1", said=workers_pb2.FromWorker(status=ready))
    job.do(lambda: job.leader.agent_said("n1-17", outbox, workers_pb2.FromAgent(worker_said=said)))
    told = [message.tell_worker.message for message in drained(outbox)]
    (first,) = [message.prepare for message in told if message.HasField("prepare")]

    def broken(*_: object) -> None:
        raise ArithmeticError("of the test")

    with monkeypatch.context() as patched:
        patched.setattr(rendezvous, "drop_silent", broken)
        told = wait_for(outbox, lambda message: message.HasField("abandon"))
        assert told.abandon.generation == first.generation
    anew = wait_for(outbox, lambda message: message.HasField("prepare")).prepare
    assert anew.generation > first.generation
    assert anew.rendezvous_port != first.rendezvous_port


def wait_for(outbox: AgentOutbox, wanted: Callable[[workers_pb2.ToWorker], bool]) -> workers_pb2.ToWorker:
    """The first word for a worker that is `wanted`."""
    while (message := outbox.get(timeout=BOUND_S)) is not None:
        if message.HasField("tell_worker") and wanted(message.tell_worker.message):
            return message.tell_worker.message
    raise AssertionError("the agent's stream has ended")


# --- agents that come back, and do not ---------------------------------------------------------------------


@pytest.mark.parametrize("followed_term", [0, 2, 3])
def test_an_agent_that_followed_an_earlier_leader_or_does_not_say_is_taken(
    job: Job, followed_term: int
) -> None:
    agent = job.attach(17, "n1", base=True, followed_term=followed_term)
    assert kinds(agent) == ["start_worker"]
    assert job.outcomes == []


def test_a_leader_that_missed_another_one_steps_down_with_the_first_agent_that_followed_that_one(
    job: Job,
) -> None:
    first = job.attach(17, "n1", base=True)
    job.lease.term = 9  # flexod has forgotten the lease, and this leader took it once more
    missed = job.attach(18, "n2", base=True, followed_term=4, workers=[running("w2")])
    job.thread.join(BOUND_S)
    assert kinds(missed) == ["stepped_down", "the end"]
    assert kinds(first)[-2:] == ["stepped_down", "the end"]
    assert job.lease.yielded_to == [4]
    (outcome,) = job.outcomes
    assert outcome.exit_code is None
    assert not outcome.failed
    assert "n2-18" in outcome.why
    assert "term 4" in outcome.why


def test_an_agent_that_was_away_may_have_missed_something_so_somebody_leads_anew(job: Job) -> None:
    first = job.attach(17, "n1", base=True)
    assert kinds(first) == ["start_worker"]
    job.do(lambda: job.leader.agent_detached("n1-17", first))
    second = job.attach(17, "n1", base=True, workers=[workers_pb2.RunningWorker(worker_id="w1")])
    job.thread.join(BOUND_S)
    assert kinds(second) == ["stepped_down", "the end"]
    (outcome,) = job.outcomes
    assert outcome == LeadershipOutcome(None, outcome.why)
    assert says(outcome.why, "n1-17", "away")
    assert job.leader._lease.passed_to == [""]


def test_an_agent_that_was_started_again_gets_new_workers(lead: Callable[..., Job]) -> None:
    job = lead(Slurm(found=[G1]), inherited=True)
    job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=2)])
    job.attach(55, "n7", grant_id="g1", workers=[running("w2", rank=1, size=2)])
    again = job.attach(17, "n1", base=True)
    assert "start_worker" in kinds(again)
    assert set(job.leader._agents.homes.values()) == {"n1-17", "n7-55"}
    assert "w1" not in job.leader._agents.homes


def test_a_silent_agent_is_lost_but_not_while_somebody_else_may_lead(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "SILENCE_BOUND_S", 0.2)
    job.lease.sure = False
    outbox = job.attach(17, "n1", base=True)
    time.sleep(1.0)
    job.settle()
    assert "n1-17" in job.leader._agents.by_name
    job.lease.sure = True
    wait_until(lambda: "n1-17" not in job.leader._agents.by_name)
    assert kinds(outbox)[-1] == "the end"


# --- one leader after the other -----------------------------------------------------------------------------


def test_a_new_leader_finds_the_satellites_of_the_one_before_it_before_it_submits_any(
    lead: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(satellite_manager, "POLL_INTERVAL_S", 0.05)
    job = lead(Slurm(found=None), inherited=True)
    job.slurm.may_answer.set()
    job.grants("g1", "g2")
    assert not job.slurm.submitted
    job.slurm.found = [Found("55", "g1", "n-g1", 1), Found("56", "g0", "n-g0", 1)]
    wait_until(lambda: [grant.grant_id for grant in job.slurm.submitted] == ["g2"])
    wait_until(lambda: job.slurm.cancelled == ["56"])  # whose grant stands no more
    assert job.satellites()["g1"].id == "55"
    assert job.satellites()["g1"].grant.time_limit_s == 300


def test_training_goes_on_under_a_new_leader_with_all_whom_it_finds(lead: Callable[..., Job]) -> None:
    job = lead(Slurm(found=[G1]), inherited=True)
    base = job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=2)])
    satellite = job.attach(55, "n7", grant_id="g1", workers=[running("w2", rank=1, size=2)])
    job.settle()
    assert (job.leader._membership.size, job.leader._membership.generation) == (2, 3)
    told = {*kinds(base), *kinds(satellite)}
    assert "kill_worker" not in told
    assert "start_worker" not in told
    assert job.satellites()["g1"].agent == "n7-55"
    wait_until(lambda: job.link.started)
    report = next(message.report for message in job.link.heard if message.HasField("report"))
    assert (report.workers, report.satellites[0].slurm_job_id) == (2, 55)


def test_a_new_leader_waits_no_longer_when_all_agents_are_here_though_workers_are_lost(
    lead: Callable[..., Job],
) -> None:
    """Those of the leader before it died with its node: of three workers one is left."""
    job = lead(Slurm(found=[G1, dataclasses.replace(G2, runs=False)]), inherited=True)
    job.attach(17, "n1", base=True)
    wait_until(lambda: job.leader._satellites.complete)
    time.sleep(0.7)
    job.settle()
    assert job.leader._membership.taking_over  # one runs whose agent is not here yet
    satellite = job.attach(55, "n7", grant_id="g1", workers=[running("w2", rank=1, size=3)])
    wait_until(lambda: not job.leader._membership.taking_over)
    assert job.leader._membership.worker("w2") is not None
    assert "tell_worker" in kinds(satellite)


def test_a_leader_whose_own_satellite_has_to_go_hands_over_to_the_base(lead: Callable[..., Job]) -> None:
    job = lead(Slurm(found=[G1, G2]), inherited=True, name="n7-55")
    base = job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=3)])
    own = job.attach(55, "n7", grant_id="g1", workers=[running("w2", rank=1, size=3)])
    other = job.attach(56, "n8", grant_id="g2", workers=[running("w3", rank=2, size=3)])
    job.do(lambda: job.leader.agent_leaving("n7-55", "SIGTERM"))
    job.thread.join(BOUND_S)
    assert job.outcomes[0].exit_code is None
    assert job.lease.passed_to == ["n1-holder"]
    assert "hand_over" in kinds(base)
    for outbox in (own, other):
        told = kinds(outbox)
        assert told[-2:] == ["stepped_down", "the end"]
        assert not {"dismiss", "kill_worker"} & set(told)
    assert job.link.hung_up
    assert not [message for message in job.link.heard if message.HasField("goodbye")]
    assert not job.slurm.cancelled


def test_a_hand_over_does_not_wait_for_slurm_and_the_next_leader_submits_nothing_twice(
    lead: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch hangs: who leads next waits until its satellite is in the queue, and then has it."""
    monkeypatch.setattr(satellite_manager, "POLL_INTERVAL_S", 0.05)
    before = lead(Slurm(found=[G1]), inherited=True, name="n7-55")
    before.attach(55, "n7", grant_id="g1", workers=[running("w1", rank=0, size=2)])
    base = before.attach(17, "n1", base=True, workers=[running("w2", rank=1, size=2)])
    before.grants("g1", *(f"h{n}" for n in range(6)))
    wait_until(lambda: len(before.slurm.submitted) == 4)  # as many as are told to Slurm at once
    before.do(lambda: before.leader.agent_leaving("n7-55", "SIGTERM"))
    before.thread.join(BOUND_S)
    assert before.lease.passed_to == ["n1-holder"]
    told = drained(base)
    handed = [message.WhichOneof("body") for message in told]
    state = [message.leader_state for message in told if message.HasField("leader_state")][-1]
    assert handed.index("hand_over") > handed.index("leader_state")
    assert sorted(state.submitting) == ["h0", "h1", "h2", "h3"], "the other two have not begun"

    slurm = Slurm(found=[G1])
    slurm.may_answer.set()
    after = lead(slurm, inherited=True, name="n1-17")
    after.attach(17, "n1", base=True, workers=[running("w2", rank=1, size=2)], leader_state=state)
    after.attach(55, "n7", grant_id="g1", workers=[running("w1", rank=0, size=2)], leader_state=state)
    after.grants("g1", *(f"h{n}" for n in range(6)))
    wait_until(lambda: len(slurm.submitted) == 2)
    slurm.found = [G1, *(Found(str(60 + n), f"h{n}", f"n-h{n}", 1) for n in range(3))]
    wait_until(lambda: len(after.satellites()) == 6)
    assert {grant.grant_id for grant in slurm.submitted} == {"h4", "h5"}
    assert after.satellites()["h0"].id == "60"
    after.leader._satellites._elsewhere["h3"] = 0.0  # that sbatch can succeed no more
    wait_until(lambda: len(slurm.submitted) == 3)
    assert {grant.grant_id for grant in slurm.submitted} == {"h3", "h4", "h5"}


def test_a_satellite_whose_sbatch_an_earlier_leader_began_is_taken_when_it_comes(
    lead: Callable[..., Job],
) -> None:
    job = lead(inherited=True)
    state = workers_pb2.LeaderState(submitting=["g1"])
    job.attach(17, "n1", base=True, workers=[running("w1")], leader_state=state)
    wait_until(lambda: job.leader._satellites.complete)
    job.grants("g1")
    assert "dismiss" not in kinds(job.attach(55, "n-g1", grant_id="g1"))
    assert job.satellites()["g1"].id == "55"
    assert job.slurm.submitted == []


def test_what_the_job_has_gained_survives_its_leaders_and_is_flexos_last_line(
    lead: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    gained = workers_pb2.Accounting(satellite_worker_s=24_720, resizes=7, paused_s=0.3, workers=1)
    state = workers_pb2.LeaderState(accounting=gained)
    job = lead(inherited=True)
    outbox = job.attach(17, "n1", base=True, workers=[running("w1")], leader_state=state)
    other = job.attach(55, "n7", grant_id="g1")
    job.do(lambda: job.leader._succession.tell())
    for each in (outbox, other):
        told = [message.leader_state for message in drained(each) if message.HasField("leader_state")]
        assert (told[-1].accounting.resizes, told[-1].accounting.paused_s) == (7, 0.3)
    job.leader.post(job.leader._agents.by_name.clear)
    job.leader.stop(0, "the script has ended")
    job.thread.join(BOUND_S)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "flexo: 412 GPU minutes trained on satellites, 7 resizes, 0.3 s paused"
    )


def started_on(outbox: AgentOutbox) -> list[str]:
    """The workers that an agent was told to start."""
    return [message.start_worker.worker_id for message in drained(outbox) if message.HasField("start_worker")]


def test_new_workers_that_fail_are_told_of_in_one_line(
    lead: Callable[..., Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_workers, "COLLECTED_S", 0.2)
    job = lead(Slurm(found=[G1]), inherited=True)
    job.attach(17, "n1", base=True, workers=[running("w1")])
    wait_until(lambda: not job.leader._membership.taking_over)
    outbox = job.attach(55, "n7", grant_id="g1", slots=2)
    for again in (True, False):
        workers = started_on(outbox)
        assert len(workers) == 2
        job.do(lambda workers=workers: [job.leader._workers.exited(each, 1, "") for each in workers])
        told: list[str] = []
        wait_until(lambda told=told: told.extend(capsys.readouterr().err.splitlines()) or told)
        (line,) = [each for each in told if "worker" in each]
        assert says(line, "n7", "exit code 1")
        assert ("2 new workers" in line) is again
        assert says(line, "1 worker", "the script as it is now") is not again
    assert [each.workers_failed.workers for each in job.link.heard if each.HasField("workers_failed")] == [2]
    wait_until(lambda: job.leader._satellites._satellites["g1"].failed)


def test_a_job_that_fails_before_training_says_which_python_ran(job: Job) -> None:
    job.leader._python = "/opt/env/bin/python"
    outbox = job.attach(17, "n1", base=True)
    (worker,) = started_on(outbox)
    job.do(lambda: job.leader._workers.exited(worker, 1, ""))
    job.leader.post(job.leader._agents.by_name.clear)
    job.thread.join(BOUND_S)
    assert says(job.outcomes[0].why, "rank 0 on n1", "exit code 1", "/opt/env/bin/python")


def test_a_base_that_gets_sigterm_is_told_what_that_may_mean(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.attach(17, "n1", base=True)
    job.do(lambda: job.leader.agent_leaving("n1-17", "SIGTERM"))
    job.leader.post(job.leader._agents.by_name.clear)
    job.thread.join(BOUND_S)
    assert says(capsys.readouterr().err, "143", "cancelled", "preempted", "out of time", "SIGTERM")


def test_an_agent_that_has_to_go_is_sent_away_by_the_leader_that_it_comes_to(
    lead: Callable[..., Job],
) -> None:
    job = lead(Slurm(found=[G1]), inherited=True)
    job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=2)])
    job.attach(55, "n7", grant_id="g1", leaving=True, workers=[running("w2", rank=1, size=2)])
    assert job.leader._membership._roster.agents["n7-55"].leaving
    assert job.satellites()["g1"].preempted


def test_a_leader_says_hello_with_the_term_of_its_lease_as_it_is_then(job: Job) -> None:
    assert (job.leader._reporter.hello().run, job.leader._reporter.hello().term) == ("r7", 3)
    job.lease.term = 1004  # flexod was started again, and the lease with it
    assert job.leader._reporter.hello().term == 1004


def test_a_leader_that_has_lost_its_lease_steps_down(job: Job) -> None:
    outbox = job.attach(17, "n1", base=True)
    job.leader.lost_lease("n2-17-ab")
    job.thread.join(BOUND_S)
    assert job.outcomes == [LeadershipOutcome(None, "n2-17-ab has the lease")]
    assert kinds(outbox)[-2:] == ["stepped_down", "the end"]
    assert not job.lease.ended_with


def broken() -> None:
    raise ValueError("nobody foresaw this")


def test_a_leader_that_fails_resigns_to_an_agent_of_the_base_and_ends_nothing(
    lead: Callable[..., Job],
) -> None:
    job = lead(inherited=True, name="n7-55")
    own = job.attach(55, "n7", grant_id="g1", workers=[running("w1", rank=0, size=2)])
    base = job.attach(17, "n1", base=True, workers=[running("w2", rank=1, size=2)])
    job.leader.post(broken)
    job.thread.join(BOUND_S)
    (outcome,) = job.outcomes
    assert (outcome.exit_code, outcome.failed) == (None, True)
    assert job.lease.passed_to == ["n1-holder"]
    assert job.lease.ended_with == []
    for outbox in (own, base):
        told = kinds(outbox)
        assert told[-2:] == ["stepped_down", "the end"]
        assert "dismiss" not in told
        assert "kill_worker" not in told


def test_a_leader_that_fails_when_the_job_has_ended_ends_it_all_the_same(job: Job) -> None:
    outbox = job.attach(17, "n1", base=True)

    def end_and_fail() -> None:
        job.leader._end(3, "the script failed")
        broken()

    job.leader._satellites.close = broken  # type: ignore[method-assign]
    job.leader.post(end_and_fail)
    job.thread.join(BOUND_S)
    assert [(outcome.exit_code, outcome.failed) for outcome in job.outcomes] == [(3, False)]
    assert job.lease.ended_with == [3]
    assert "dismiss" in kinds(outbox)


@pytest.mark.parametrize("command", ["submit", "status", "find", "cancel"])
def test_an_answer_of_slurms_that_nobody_understands_is_asked_for_again_or_given_back(
    command: str, lead: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that asked ended, and nothing was asked any more."""
    monkeypatch.setattr(satellite_manager, "POLL_INTERVAL_S", 0.05)
    slurm = Slurm()
    slurm.may_answer.set()
    asked: list[float] = []

    def odd(*_: object) -> None:
        asked.append(time.monotonic())
        broken()

    monkeypatch.setattr(slurm, command, odd)
    job = lead(slurm, inherited=command == "find")
    job.grants("g1")
    if command == "submit":
        wait_until(lambda: job.link.failures() == [("g1", Failed.REASON_REFUSED)])
        return
    if command == "cancel":
        wait_until(lambda: job.satellites()["g1"].id)
        job.grants()
        wait_until(lambda: not job.satellites())
        return
    wait_until(lambda: len(asked) >= 3)
    assert not job.outcomes


def test_a_leader_in_a_satellite_does_not_outlive_the_base(
    lead: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "BASE_SILENCE_S", 0.1)
    job = lead(Slurm(found=[G1], base=BaseState.ENDED), inherited=True, name="n7-55")
    outbox = job.attach(55, "n7", grant_id="g1", workers=[running("w2")])
    job.do(lambda: None)
    wait_until(lambda: job.lease.ended_with == [1])
    assert "dismiss" in kinds(outbox)


def test_satellites_of_a_suspended_base_wait_for_it_and_nobody_is_lost(
    lead: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they trained without it would be lost with them."""
    monkeypatch.setattr(attendance, "BASE_SILENCE_S", 0.1)
    monkeypatch.setattr(base_watch, "POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr(takeover, "TAKEOVER_BOUND_S", 0.5)
    job = lead(Slurm(found=[G1], base=BaseState.SUSPENDED), inherited=True, name="n7-55")
    members = job.leader._membership
    workers = [running("w2", rank=1, size=2)]

    def stands(phase: Any, worker: str, agent: str, outbox: AgentOutbox) -> None:
        said = running(worker, rank=int(worker == "w2"), size=2).status
        said.phase = phase
        told = workers_pb2.WorkerSaid(worker_id=worker, said=workers_pb2.FromWorker(status=said))
        job.do(lambda: job.leader.agent_said(agent, outbox, workers_pb2.FromAgent(worker_said=told)))

    satellite = job.attach(55, "n7", grant_id="g1", workers=workers)
    wait_until(lambda: members.standing_still)
    base = job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=2)])
    stands(workers_pb2.WORKER_PHASE_TRAINING, "w1", "n1-17", base)
    wait_until(lambda: not members.taking_over)
    # suspended again, as by gang scheduling, for longer than an agent may be silent
    stands(workers_pb2.WORKER_PHASE_ARRIVED, "w2", "n7-55", satellite)
    link = job.leader._agents.by_name["n1-17"]
    job.do(lambda: setattr(link, "heard_at", link.heard_at - 10 * attendance.SILENCE_BOUND_S))
    wait_until(lambda: members.standing_still)
    time.sleep(3 * leaders.TICK_S)
    job.settle()
    assert members.standing_still
    assert "n1-17" in job.leader._agents.by_name
    assert not {"kill_worker", "dismiss"} & {*kinds(base), *kinds(satellite)}
    assert members.size == 2
    stands(workers_pb2.WORKER_PHASE_ARRIVED, "w1", "n1-17", base)
    job.slurm.base = BaseState.RUNS
    wait_until(lambda: any(map(_prepares, drained(satellite))))


def _prepares(message: workers_pb2.ToAgent) -> bool:
    return message.tell_worker.message.WhichOneof("body") == "prepare"


@pytest.mark.parametrize("base_is_here", [True, False])
def test_a_leader_in_a_satellite_ends_no_job_whose_base_says_nothing(
    lead: Callable[..., Job], base_is_here: bool
) -> None:
    """Slurm has suspended the base, and takes the satellite back: the base goes on when it is resumed."""
    job = lead(Slurm(found=[G1]), inherited=True, name="n7-55")
    own = job.attach(55, "n7", grant_id="g1", workers=[running("w2")])
    if base_is_here:
        job.attach(17, "n1", base=True)
    job.do(lambda: job.leader._carry_out(job.leader._membership.everybody_is_here(time.monotonic())))
    killed = workers_pb2.WorkerExited(worker_id="w2", exit_code=-9)
    job.do(lambda: job.leader.agent_said("n7-55", own, workers_pb2.FromAgent(worker_exited=killed)))
    wait_until(lambda: job.lease.ended_with or job.lease.passed_to)
    assert job.lease.ended_with == ([137] if base_is_here else [])
    assert job.lease.passed_to == ([] if base_is_here else [""])
    if not base_is_here:
        job.thread.join(BOUND_S)
        assert job.outcomes[0].exit_code is None
        assert not [message for message in job.link.heard if message.HasField("goodbye")]
        assert "dismiss" in kinds(own), "its GPUs are given back"


def test_the_end_of_the_job_dismisses_its_leader_too_instead_of_having_it_hand_over(
    lead: Callable[..., Job],
) -> None:
    job = lead(Slurm(found=[G1]), inherited=True)
    own = job.attach(17, "n1", base=True, workers=[running("w1", rank=0, size=2)])
    other = job.attach(55, "n7", grant_id="g1", workers=[running("w2", rank=1, size=2)])
    exited = [
        workers_pb2.FromAgent(worker_exited=workers_pb2.WorkerExited(worker_id=w, exit_code=0))
        for w in ("w1", "w2")
    ]
    job.do(lambda: job.leader.agent_said("n1-17", own, exited[0]))
    job.do(lambda: job.leader.agent_said("n7-55", other, exited[1]))
    wait_until(lambda: job.lease.ended_with == [0])
    assert not job.lease.passed_to
    assert "dismiss" in kinds(own)


def test_a_plan_reaches_agents_unchanged() -> None:
    from horovod_elastic import job_plan

    base = BaseJob(
        "17", 2, (BaseNode("n1", 2), BaseNode("n2", 1)), Resources(2, 4, 1500, "a100"), 3, 8, "physics"
    )
    plan = JobPlan(base, Site(False, False, "head"), "/home/ü ser/o'ut", "head:1", "run://h:2#ab")
    assert job_plan.from_text(plan.to_text()) == plan
    half = Resources(Fraction(1, 2), 4, devices=(Devices("spare", "s1"),))
    shared = dataclasses.replace(plan, base=dataclasses.replace(base, shape=half))
    assert job_plan.from_text(shared.to_text()) == shared
    assert "opportunistic" not in plan.to_text(), "older releases know no such jobs"
    base = dataclasses.replace(plan.base, opportunistic=True)
    opportunistic = dataclasses.replace(plan, base=base)
    assert job_plan.from_text(opportunistic.to_text()) == opportunistic
    for text in ("", "{}", "[]", plan.to_text()[:-1], dataclasses.replace(plan).to_text() + "x"):
        with pytest.raises(ValueError, match="no job's plan"):
            job_plan.from_text(text)


def test_flexods_signature_of_a_grant_is_shown_again_and_outlives_a_flexod_without_any(job: Job) -> None:
    def told(signature: bytes) -> None:
        grants = [jobs_pb2.Grant(grant_id="g1", node="n-g1", workers=1, signature=signature)]
        job.do(lambda: job.leader._satellites.on_grants(jobs_pb2.Grants(grants=grants)))

    told(b"flexod's")
    assert [each.signature for each in job.leader._satellites.report()] == [b"flexod's"]
    told(b"")
    assert [each.signature for each in job.leader._satellites.report()] == [b"flexod's"]
    told(b"renewed")
    assert [each.signature for each in job.leader._satellites.report()] == [b"renewed"]


# --- opportunistic jobs -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParkedStore:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    store = ParkedStore("17", 0)
    store.make()
    return store


def keep(store: ParkedStore, commits: int, epoch: int) -> None:
    head = workers_pb2.ParkedHead(worker_id="w1", commits=commits, epoch=epoch, batches=[32])
    whole = workers_pb2.ParkedPiece(whole=True)
    store.keep(iter([workers_pb2.ParkedPiece(head=head), whole]), lambda _: True)


def test_a_new_leader_finds_the_parked_state_and_newcomers_go_as_far_as_that(
    lead: Callable[..., Job], store: ParkedStore
) -> None:
    keep(store, 7, 3)
    job = lead(Slurm(found=[G1]), inherited=True, parked=store)
    job.attach(17, "n1", base=True, slots=0)
    warming = workers_pb2.WorkerStatus(phase=workers_pb2.WORKER_PHASE_STARTING)
    newcomer = workers_pb2.RunningWorker(worker_id="w2", newcomer=True, status=warming)
    satellite = job.attach(55, "n7", grant_id="g1", workers=[newcomer])
    wait_until(lambda: job.link.started)
    report = next(message.report for message in job.link.heard if message.HasField("report"))
    assert (report.paused, report.workers) == (True, 0)
    hello = job.leader._reporter.hello()
    assert (hello.opportunistic, hello.workers.min, hello.workers.max) == (True, 1, 4)
    name, outbox = "n7-55", job.leader._agents.by_name["n7-55"].outbox
    said = workers_pb2.WorkerSaid(worker_id="w2", said=workers_pb2.FromWorker(status=warming))
    job.do(lambda: job.leader.agent_said(name, outbox, workers_pb2.FromAgent(worker_said=said)))
    epochs = [each.tell_worker.message.epoch for each in drained(satellite)]
    assert [(each.number, list(each.batches)) for each in epochs if each.number] == [(3, [32])]


def test_a_leader_keeps_states_of_its_own_workers_only(lead: Callable[..., Job], store: ParkedStore) -> None:
    job = lead(Slurm(found=[G1]), inherited=True, parked=store)
    job.attach(17, "n1", base=True, slots=0)
    job.attach(55, "n7", grant_id="g1", workers=[running("w1")])
    assert job.leader.welcomes(workers_pb2.ParkedHead(worker_id="w1"))
    assert not job.leader.welcomes(workers_pb2.ParkedHead(worker_id="w2"))


def test_the_base_of_an_opportunistic_job_has_no_successor_in_a_satellite(
    lead: Callable[..., Job], store: ParkedStore
) -> None:
    job = lead(Slurm(found=[G1]), inherited=True, parked=store)
    job.attach(17, "n1", base=True, slots=0)
    job.attach(55, "n7", grant_id="g1", workers=[running("w1")])
    assert job.leader._agents.successor_of("n1-17") == ""


def test_the_parked_state_ends_with_the_job(lead: Callable[..., Job], store: ParkedStore) -> None:
    keep(store, 7, 3)
    job = lead(parked=store)
    job.leader.stop(0, "it is over")
    job.thread.join(BOUND_S)
    assert not store.folder.exists()


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> jobs_pb2.Aggregators:
    """An assignment of flexod's, in a job that has asked for a pool."""
    monkeypatch.setenv(choice.VARIABLE, choice.SERVICE)
    monkeypatch.setenv(choice.AGGREGATORS_VARIABLE, choice.POOL)
    monkeypatch.setenv(choice.CORES_VARIABLE, "2")
    assigned = jobs_pb2.AssignedAggregator(host="c1", port=7000, token="t", share=1)
    return jobs_pb2.Aggregators(version=1, aggregators=[assigned])


def test_an_agent_hears_of_aggregators_to_which_its_generation_migrates(
    pooled: jobs_pb2.Aggregators, lead: Callable[..., Job]
) -> None:
    job = lead(inherited=True)
    outbox = job.attach(17, "n1", base=True, workers=[running("w1")])
    wait_until(lambda: not job.leader._membership.taking_over)
    kinds(outbox)
    job.do(lambda: job.leader._on_aggregators(pooled))
    job.settle()
    assert "aggregators" in (heard := kinds(outbox))
    assert "tell_worker" not in heard


def test_an_agent_hears_of_aggregators_before_its_workers_hear_of_a_generation_that_uses_them(
    pooled: jobs_pb2.Aggregators, lead: Callable[..., Job]
) -> None:
    job = lead(inherited=True)
    outbox = job.attach(17, "n1", base=True, workers=[running("w1")])
    wait_until(lambda: not job.leader._membership.taking_over)
    kinds(outbox)
    job.do(lambda: job.leader._on_aggregators(pooled))
    kinds(outbox)
    again = jobs_pb2.Aggregators(version=2, aggregators=pooled.aggregators)  # one that serves already
    job.do(lambda: job.leader._on_aggregators(again))
    assert kinds(outbox)[:2] == ["aggregators", "tell_worker"]
    job.do(lambda: job.leader._on_aggregators(again))
    assert kinds(outbox) == ["aggregators"]


def test_the_next_leader_has_the_aggregators_from_an_agent_and_tells_the_others(
    pooled: jobs_pb2.Aggregators, lead: Callable[..., Job]
) -> None:
    job = lead(inherited=True)
    job.attach(17, "n1", base=True, workers=[running("w1")], aggregators=pooled)
    other = job.attach(17, "n2", base=True)
    assert [told.aggregators for told in drained(other) if told.HasField("aggregators")] == [pooled]


def test_flexod_hears_how_aggregators_are_used_and_at_once_that_a_pool_is_asked_for(
    pooled: jobs_pb2.Aggregators, lead: Callable[..., Job]
) -> None:
    job = lead()
    outbox = job.attach(17, "n1", base=True)
    used = workers_pb2.AggregatorUsage(bytes=50, rounds=3, version=0)
    said = workers_pb2.FromAgent(aggregator_usage=used)
    job.do(lambda: job.leader.agent_said("n1-17", outbox, said))

    def told() -> list[jobs_pb2.AggregationUse]:
        return [message.report.aggregation for message in job.link.heard if message.HasField("report")]

    wait_until(lambda: told() and told()[-1].bytes == 50)
    assert told()[-1].wants_pool
    assert job.leader._reporter.hello().reserves == 2


def test_a_job_that_asks_for_no_pool_reports_nothing_of_aggregators(job: Job) -> None:
    job.attach(17, "n1", base=True)
    wait_until(lambda: any(message.HasField("report") for message in job.link.heard))
    assert not job.link.heard[-1].report.HasField("aggregation")


@pytest.fixture(params=[choice.SATELLITES])
def in_satellites(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, lead: Callable[..., Job]
) -> Job:
    """A job that trains on n1, asks for an Aggregator in a satellite, and has the grant g1 for it."""
    monkeypatch.setenv(choice.VARIABLE, choice.SERVICE)
    monkeypatch.setenv(choice.AGGREGATORS_VARIABLE, request.param)
    monkeypatch.delenv(choice.CORES_VARIABLE, raising=False)
    job = lead(inherited=True)
    job.attach(17, "n1", base=True, workers=[running("w1")])
    wait_until(lambda: not job.leader._membership.taking_over)
    wait_until(lambda: job.leader._satellites.complete)
    job.slurm.may_answer.set()
    job.grants("g1", workers=0)
    wait_until(lambda: job.slurm.submitted)
    return job


def serving(job: Job, job_id: int = 101) -> AgentOutbox:
    """The agent of the satellite, whose Aggregator serves."""
    place = workers_pb2.AggregatorPlace(host="c1", port=7000, token="t")
    return job.attach(job_id, "n-g1", slots=0, grant_id="g1", aggregator_place=place)


def test_an_aggregator_in_a_satellite_is_assigned_as_soon_as_it_serves(in_satellites: Job) -> None:
    job = in_satellites
    assert [grant.workers for grant in job.slurm.submitted] == [0]
    outbox = serving(job)
    wait_until(lambda: job.leader._sums.assignment.version == 1)
    assert [each.host for each in job.leader._sums.assignment.aggregators] == ["c1"]
    assert "start_worker" not in kinds(outbox)
    job.settle()
    (told,) = job.leader._satellites.report()
    assert (told.workers, told.state) == (0, jobs_pb2.SATELLITE_STATE_TRAINING)


def test_flexod_hears_how_many_satellites_are_asked_for(in_satellites: Job) -> None:
    wait_until(
        lambda: any(
            message.report.aggregation.satellites == 1
            for message in in_satellites.link.heard
            if message.HasField("report")
        )
    )


def test_flexods_own_assignments_are_for_jobs_that_ask_for_a_pool(in_satellites: Job) -> None:
    job = in_satellites
    job.do(lambda: job.leader._on_aggregators(jobs_pb2.Aggregators(version=9)))
    assert job.leader._sums.assignment.version == 0


@pytest.mark.parametrize("in_satellites", [choice.AUTO], indirect=True)
def test_a_job_that_leaves_the_choice_takes_flexods_assignments_unless_a_satellite_sums(
    in_satellites: Job,
) -> None:
    job = in_satellites
    pooled = jobs_pb2.AssignedAggregator(host="p1", port=7000, token="t", share=1)
    job.do(lambda: job.leader._on_aggregators(jobs_pb2.Aggregators(version=2, aggregators=[pooled])))
    assert job.leader._sums.assignment.version == 2
    serving(job)
    wait_until(lambda: job.leader._sums.assignment.version == 3)
    assert [each.host for each in job.leader._sums.assignment.aggregators] == ["c1"]
    job.do(lambda: job.leader._on_aggregators(jobs_pb2.Aggregators(version=9)))
    assert job.leader._sums.assignment.version == 3


def test_an_aggregator_whose_satellite_is_taken_back_goes_after_its_sums_have_moved(
    in_satellites: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_satellites
    outbox = serving(job)
    wait_until(lambda: job.leader._sums.assignment.version == 1)
    usage = workers_pb2.FromAgent(aggregator_usage=workers_pb2.AggregatorUsage(rounds=1, version=1))
    leaving = workers_pb2.FromAgent(leaving=workers_pb2.AgentLeaving(reason="SIGTERM"))
    base = job.leader._agents.by_name["n1-17"].outbox
    job.do(lambda: job.leader.agent_said("n1-17", base, usage))
    job.do(lambda: job.leader.agent_said("n-g1-101", outbox, leaving))
    wait_until(lambda: job.leader._sums.assignment.version == 2)
    assert not job.leader._sums.assignment.aggregators
    job.settle()
    assert "dismiss" not in kinds(outbox), "n1 still uses it"
    monkeypatch.setattr(satellite_sums, "LEAVES_WITHIN_S", 0.0)
    wait_until(lambda: "dismiss" in kinds(outbox))
    job.do(lambda: job.leader.agent_detached("n-g1-101", outbox))
    wait_until(lambda: job.link.failures() == [("g1", Failed.REASON_PREEMPTED)])


def test_a_satellite_without_workers_never_leads(in_satellites: Job) -> None:
    job = in_satellites
    serving(job)
    job.settle()
    assert job.leader._agents.successor_of("n1-17") == ""


def test_a_cluster_without_such_satellites_refuses_the_grant(
    in_satellites: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Slurm, "submit_aggregator")
    in_satellites.grants("g1", "g2", workers=0)
    wait_until(lambda: ("g2", Failed.REASON_REFUSED) in in_satellites.link.failures())
