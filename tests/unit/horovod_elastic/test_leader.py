"""The leader's dealings with grants: what it submits, withdraws, gives back and cancels."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.leader import Leader
from horovod_elastic.satellites import Grant, QueueEntry, Refused, SlurmUser
from horovod_elastic.slurm_job import BaseJob, BaseNode, Shape

BOUND_S = 20.0
Failed = jobs_pb2.GrantFailed


@dataclass
class Slurm:
    """Gives every satellite the number that the test says, when the test says."""

    next_id: int = 101
    refusal: str = ""
    submitted: list[Grant] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def submit(self, grant: Grant, leader: str) -> int:
        self.submitted.append(grant)
        assert self.may_answer.wait(BOUND_S)
        if self.refusal:
            raise Refused(self.refusal)
        self.next_id += 1
        return self.next_id - 1

    def cancel(self, job_ids: Iterable[int]) -> None:
        self.cancelled += job_ids

    def queue(self, job_ids: Iterable[int]) -> dict[int, QueueEntry]:
        return {}


@dataclass
class Link:
    """Hears what flexod would."""

    heard: list[jobs_pb2.FromLeader] = field(default_factory=list)
    report_interval_s: float = 5.0

    def send(self, message: jobs_pb2.FromLeader) -> None:
        self.heard.append(message)

    def close(self, reason: str) -> None:
        self.heard.append(jobs_pb2.FromLeader(goodbye=jobs_pb2.Goodbye(reason=reason)))

    def failures(self) -> list[tuple[str, int]]:
        told = [
            message.grant_failed for message in self.heard if message.WhichOneof("body") == "grant_failed"
        ]
        return [(failed.grant_id, failed.reason) for failed in told]


@dataclass
class Job:
    """A leader in its own thread."""

    leader: Leader
    slurm: Slurm
    link: Link
    thread: threading.Thread
    codes: list[int]

    def grants(self, *ids: str) -> None:
        grants = [
            jobs_pb2.Grant(
                grant_id=i, node=f"n-{i}", workers=1, partition="flex", lease_s=300, start_within_s=60
            )
            for i in ids
        ]
        self.leader.post(lambda: self.leader._on_grants(jobs_pb2.Grants(grants=grants)))
        self.settle()

    def settle(self) -> None:
        """Until everything posted so far has been done."""
        done = threading.Event()
        self.leader.post(done.set)
        assert done.wait(BOUND_S)

    def attach(self, job_id: int, node: str) -> queue.SimpleQueue[workers_pb2.ToAgent | None]:
        outbox: queue.SimpleQueue[workers_pb2.ToAgent | None] = queue.SimpleQueue()
        hello = workers_pb2.AgentHello(slurm_job_id=job_id, node=node, slots=1)
        self.leader.post(lambda: self.leader.agent_attached(f"{node}-{job_id}", hello, outbox))
        self.settle()
        return outbox


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def job() -> Iterator[Job]:
    slurm, link, codes = Slurm(), Link(), list[int]()
    base = BaseJob(17, 0, (BaseNode("n1", 1),), Shape(1, 1, 0, ""), 1, 4, "")
    leader = Leader(base, "127.0.0.1", cast(SlurmUser, slurm))
    leader._link = cast(Any, link)
    thread = threading.Thread(target=lambda: codes.append(leader.run()), daemon=True)
    thread.start()
    yield Job(leader, slurm, link, thread, codes)
    slurm.may_answer.set()
    leader.stop(0, "the test is over")
    thread.join(BOUND_S)


def kinds(outbox: queue.SimpleQueue[workers_pb2.ToAgent | None]) -> list[str | None]:
    found = []
    while not outbox.empty():
        message = outbox.get()
        found.append(message.WhichOneof("body") if message else None)
    return found


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
    assert not job.leader._given_back


def test_an_agent_that_is_faster_than_sbatchs_answer_is_taken(job: Job) -> None:
    job.grants("g1")
    outbox = job.attach(101, "n-g1")
    assert "dismiss" not in kinds(outbox)
    job.slurm.may_answer.set()
    wait_until(lambda: job.slurm.next_id == 102)
    job.settle()
    assert job.leader._satellites["g1"].agent == "n-g1-101"
    job.leader.post(lambda: job.leader.agent_detached("n-g1-101"))


def test_a_grant_that_is_withdrawn_while_it_is_submitted_is_cancelled(job: Job) -> None:
    job.grants("g1")
    job.grants()
    job.slurm.may_answer.set()
    wait_until(lambda: job.slurm.cancelled == [101])
    outbox = job.attach(101, "n-g1")
    assert kinds(outbox) == ["dismiss"]


def test_an_agent_without_a_grant_is_sent_home(job: Job) -> None:
    assert kinds(job.attach(999, "n9")) == ["dismiss"]


def test_a_satellite_that_vanishes_is_lost_and_one_that_slurm_took_is_preempted(job: Job) -> None:
    job.slurm.may_answer.set()
    job.grants("g1", "g2")
    wait_until(lambda: all(satellite.job_id for satellite in job.leader._satellites.values()))
    ids = {key: satellite.job_id for key, satellite in job.leader._satellites.items()}
    for grant, job_id in ids.items():
        job.attach(job_id, f"n-{grant}")
    job.leader.post(lambda: job.leader.agent_detached(f"n-g1-{ids['g1']}"))
    job.leader.post(lambda: job.leader.agent_leaving(f"n-g2-{ids['g2']}", "SIGTERM"))
    job.leader.post(lambda: job.leader.agent_detached(f"n-g2-{ids['g2']}"))
    job.settle()
    assert job.link.failures() == [("g1", Failed.REASON_LOST), ("g2", Failed.REASON_PREEMPTED)]


def test_at_the_end_satellites_that_were_just_being_submitted_are_cancelled_too(job: Job) -> None:
    job.grants("g1")
    job.leader.stop(7, "the test says so")
    time.sleep(0.2)
    job.slurm.may_answer.set()
    job.thread.join(BOUND_S)
    assert job.codes == [7]
    assert job.slurm.cancelled == [101]
    assert job.link.heard[-1].goodbye.reason == "the test says so"


def test_an_agent_that_comes_when_the_job_is_over_is_sent_home(job: Job) -> None:
    job.leader._outcome = None
    job.leader.post(lambda: job.leader._end(0, "over"))
    outbox: queue.SimpleQueue[workers_pb2.ToAgent | None] = queue.SimpleQueue()
    hello = workers_pb2.AgentHello(slurm_job_id=17, node="n1", slots=1, base=True)
    job.leader.post(lambda: job.leader.agent_attached("n1-17", hello, outbox))
    job.thread.join(BOUND_S)
    assert job.codes == [0]
    assert kinds(outbox) == ["dismiss"]
