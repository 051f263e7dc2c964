"""Leases of jobs' leaders in a real flexod with real MUNGE: who reaches which, and what a restart does."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Iterator

import grpc
import pytest

from flexo_lab import Lab
from flexo_protos.credentials import METADATA_KEY, Munge
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.v1 import leases_pb2, leases_pb2_grpc
from horovod_elastic.election.election import Election, Following, Leading, Role
from horovod_elastic.election.lease_client import JobRun
from horovod_elastic.election.lease_places import open_lease

JOB = JobRun("7", 0)
LOOK = "/flexo.v1.LeaseService/Look"
STRANGER = "games"


@pytest.fixture(scope="module")
def flexod(lab: Lab) -> Iterator[Lab]:
    """The lab with its flexod running."""
    lab.start_flexod()
    yield lab
    lab.stop_flexod()


def place_in(lab: Lab) -> LeasePlace:
    return LeasePlace(Kind.FLEXOD, (lab.daemon_address,), run=uuid.uuid4().hex)


def agent(lab: Lab, place: LeasePlace, name: str, role: Role = Role.FOUNDER) -> Election:
    store = open_lease(place, JOB, Munge(str(lab.layout.munge_socket)))
    return Election(store, name, lambda: f"{name}:1", role)


def until(condition: Callable[[], bool], what: str, bound_s: float = 90.0) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_a_stranger_who_names_the_job_finds_no_leader_of_it(flexod: Lab) -> None:
    place = place_in(flexod)
    leader = agent(flexod, place, "a")
    assert isinstance(leader.follow(), Leading)
    leader.keep(lambda holder: None)
    socket = f"--socket={flexod.layout.munge_socket}"
    command = ["runuser", "-u", STRANGER, "--", "munge", socket, f"--string=flexo {LOOK}"]
    credential = flexod.run(command).stdout.strip()
    request = leases_pb2.LookRequest(job=leases_pb2.JobKey(job_id=7, run=place.run))
    with grpc.insecure_channel(flexod.daemon_address) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        looked = stub.Look(request, metadata=((METADATA_KEY, credential),), timeout=60)
        assert (looked.holder, looked.address) == ("", "")
        with pytest.raises(grpc.RpcError) as refusal:  # a credential is good for one call
            stub.Look(request, metadata=((METADATA_KEY, credential),), timeout=60)
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert agent(flexod, place, "b").follow() == Following("a:1", "a", leader.term)
    assert leader.resign()


def test_a_leader_outlives_a_restart_of_flexod_and_nobody_takes_its_place(flexod: Lab) -> None:
    place = place_in(flexod)
    leader, late = agent(flexod, place, "a"), agent(flexod, place, "b", Role.BASE)
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert isinstance(leader.follow(), Leading)
    before = leader.term
    leader.keep(lost.put)
    flexod.stop_flexod()
    until(lambda: not leader.certain(), "the leader to know that flexod is away")
    flexod.start_flexod()
    following = late.follow()  # asks a flexod that has just begun
    assert isinstance(following, Following)
    assert (following.holder, following.term > before) == ("a", True)
    until(leader.certain, "the leader to have its lease again")
    assert lost.empty()
    assert leader.resign()
    assert late.follow(lost=following) == Leading(late.term, heir=True)
