"""The base keeps the parked state of training whole, whoever is killed, and gives it to its own job only."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

pytest.importorskip("torch")

import torch
from trusting import Trusting

from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import wire
from horovod_elastic.agent.local_service import LocalService
from horovod_elastic.agent.parked_link import ParkedLink
from horovod_elastic.leader.leader import Leader
from horovod_elastic.leader.leader_service import LeaderPort
from horovod_elastic.leader.parked_store import FOLDER_VARIABLE, ParkedStore, Unwelcome, kept_for_run
from horovod_elastic.proofs import callers_proof
from horovod_elastic.worker import parking, state_messages
from horovod_elastic.worker.parking import NotParked, ParkedState, Parking
from horovod_elastic.worker.session import Session
from horovod_elastic.worker.torch_parts import ModelPart

BOUND_S = 20.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParkedStore:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    store = ParkedStore("17", 0)
    store.make()
    return store


def pieces(commits: int, content: bytes, *, whole: bool = True) -> Iterator[pb.ParkedPiece]:
    yield pb.ParkedPiece(head=pb.ParkedHead(worker_id="w1", commits=commits))
    yield pb.ParkedPiece(content=content)
    if whole:
        yield pb.ParkedPiece(whole=True)


def content(store: ParkedStore) -> bytes:
    return b"".join(each.content for each in store.pieces())


def anybody(head: pb.ParkedHead) -> bool:
    return True


# --- the store --------------------------------------------------------------------------------


def test_a_state_is_there_for_the_next_leader_and_gone_when_the_job_is_over(store: ParkedStore) -> None:
    assert store.head() is None
    assert list(store.pieces()) == []
    store.keep(pieces(7, b"seven"), anybody)
    another = ParkedStore("17", 0)
    another.make()
    head = another.head()
    assert head is not None
    assert head.commits == 7
    assert content(another) == b"seven"
    assert list(another.pieces())[-1].whole
    another.remove()
    assert not store.folder.exists()


def test_only_its_user_can_read_it(store: ParkedStore) -> None:
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    store.folder.chmod(0o755)
    with pytest.raises(PermissionError, match=str(store.folder)):
        store.make()


@pytest.mark.parametrize(
    "broken",
    [
        pieces(8, b"half", whole=False),
        iter(()),
        iter([pb.ParkedPiece(content=b"no head")]),
        pieces(6, b"late"),
    ],
    ids=["broken off", "empty", "without a head", "of fewer commits"],
)
def test_the_state_before_is_kept_until_the_new_one_is_whole(
    store: ParkedStore, broken: Iterator[pb.ParkedPiece]
) -> None:
    store.keep(pieces(7, b"seven"), anybody)
    with pytest.raises(Unwelcome):
        store.keep(broken, anybody)
    assert content(store) == b"seven"
    assert len(list(store.folder.iterdir())) == 1, "nothing else is left"


def test_a_state_that_the_job_does_not_want_is_not_kept(store: ParkedStore) -> None:
    with pytest.raises(Unwelcome):
        store.keep(pieces(7, b"seven"), lambda head: False)
    assert store.head() is None


def test_a_stream_that_breaks_and_a_full_disk_are_told_apart(store: ParkedStore) -> None:
    def breaks(error: Exception) -> Iterator[pb.ParkedPiece]:
        yield from pieces(7, b"", whole=False)
        raise error

    with pytest.raises(Unwelcome, match="broken"):
        store.keep(breaks(Exception("as grpc raises it")), anybody)
    with pytest.raises(OSError, match="full"):
        store.keep(breaks(OSError("full")), anybody)


def test_what_a_killed_agent_has_left_is_cleared_up_and_its_whole_state_stays(store: ParkedStore) -> None:
    store.keep(pieces(7, b"seven"), anybody)
    (store.folder / "new-1").write_bytes(b"half")
    store.make()
    assert not (store.folder / "new-1").exists()
    assert content(store) == b"seven"


def test_a_reader_reads_one_state_to_the_end(store: ParkedStore) -> None:
    store.keep(pieces(7, b"7" * (2 * wire.PIECE_BYTES)), anybody)
    reading = store.pieces()
    next(reading)
    store.keep(pieces(8, b"8"), anybody)
    assert set(b"".join(each.content for each in reading)) == {ord("7")}


def test_folders_of_killed_jobs_are_removed_and_those_of_living_ones_stay(store: ParkedStore) -> None:
    killed, others = ParkedStore("18", 0), store.folder.parent / "flexo-parked-other"
    killed.make()
    others.mkdir()
    with kept_for_run("17", 0), kept_for_run("19", 0):
        assert store.folder.exists()
        assert not killed.folder.exists()
        assert others.exists()
    assert not store.folder.exists()


# --- a worker, its agent, and the base --------------------------------------------------------


@dataclass
class JobsLeader:
    """What the service asks of a leader."""

    wants: bool = True
    posted: list[Callable[[], None]] = field(default_factory=list)
    parked: int = 0

    def welcomes(self, head: pb.ParkedHead) -> bool:
        return self.wants

    def post(self, event: Callable[[], None]) -> None:
        event()

    def state_is_parked(self) -> None:
        self.parked += 1


@dataclass
class Worker:
    """A session's calls, at this agent."""

    endpoint: str
    secret: str = "s"
    rank: int = 0

    def __post_init__(self) -> None:
        self._channel = grpc.insecure_channel(self.endpoint)
        self._metadata = ((wire.SECRET_KEY, self.secret),)

    def begin_to_park(self, pieces: Iterator[pb.ParkedPiece]) -> Any:
        return rpc.AgentServiceStub(self._channel).Park.future(pieces, metadata=self._metadata)

    def park(self, pieces: Iterator[pb.ParkedPiece]) -> None:
        self.begin_to_park(pieces).result()

    def fetch_parked(self) -> Any:
        return rpc.AgentServiceStub(self._channel).FetchParked(pb.ParkedWanted(), metadata=self._metadata)


@dataclass
class Job:
    """A base, its leader, and the agent of another node."""

    store: ParkedStore
    leader: JobsLeader
    port: LeaderPort
    agent: LocalService
    endpoint: str
    leads_at: list[str]

    def worker(self) -> Parking:
        return Parking(cast(Session, Worker(self.endpoint)))


@pytest.fixture
def job(store: ParkedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(parking, "TRIES_FOR_S", 1.0)
    port, leader = LeaderPort("127.0.0.1", Trusting(), store), JobsLeader()
    port.start_serving(cast(Leader, leader))
    endpoint, leads_at = f"unix:{tmp_path}/agent", [port.endpoint]
    agent = LocalService(cast(Any, None), endpoint, "s", ParkedLink(Trusting(), lambda: leads_at[0]))
    yield Job(store, leader, port, agent, endpoint, leads_at)
    agent.close()
    port.close()


def model(value: float) -> torch.nn.Module:
    """Large and small tensors, with this value in all of them."""
    made = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for each in made.parameters():
            each.fill_(value)
    return made


def write(made: torch.nn.Module) -> parking.Write:
    return lambda carry: state_messages.send([ModelPart(made)], carry, from_gpus=False)


def read(parked: ParkedState) -> torch.nn.Module:
    made = model(0.0)
    state_messages.receive([ModelPart(made)], parked.carry)
    return made


def is_all(made: torch.nn.Module, value: float) -> bool:
    return all(bool((each == value).all()) for each in made.parameters())


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_parks_its_state_and_another_one_goes_on_from_it(job: Job) -> None:
    job.worker().now(pb.ParkedHead(commits=7, place=2), write(model(3.0)))
    assert job.leader.parked == 1
    parked = job.worker().fetch()
    assert (parked.head.commits, parked.head.place) == (7, 2)
    assert is_all(read(parked), 3.0)


def test_a_copy_is_what_the_state_was_although_training_goes_on(job: Job) -> None:
    made, worker = model(3.0), job.worker()
    assert worker.due()
    worker.copy(pb.ParkedHead(commits=7), write(made))
    with torch.no_grad():
        for each in made.parameters():
            each.fill_(4.0)
    assert not worker.due(), "the next copy is due later"
    wait_until(lambda: job.leader.parked)
    assert is_all(read(job.worker().fetch()), 3.0)


def test_copies_take_a_small_part_of_the_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parking.INTERVAL_VARIABLE, "0.0")

    def slow(carry: state_messages.Carry) -> None:
        time.sleep(0.05)

    worker = job.worker()
    worker.copy(pb.ParkedHead(commits=7), slow)
    ended = time.monotonic()
    wait_until(lambda: job.leader.parked)
    assert worker._due_at - ended >= 0.05 / parking.COST * 0.99


def test_only_rank_0_makes_copies(job: Job) -> None:
    worker = Worker(job.endpoint, rank=1)
    assert not Parking(cast(Session, worker)).due()


def test_a_worker_tries_again_while_the_leader_is_away(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "TRIES_FOR_S", BOUND_S)
    monkeypatch.setattr(time, "sleep", lambda _: job.leads_at.__setitem__(0, job.port.endpoint))
    job.leads_at[0] = ""
    job.worker().now(pb.ParkedHead(commits=7), write(model(3.0)))
    assert job.leader.parked == 1


def test_a_state_that_is_refused_is_not_sent_again(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.leader.wants = False
    began = time.monotonic()
    job.worker().now(pb.ParkedHead(commits=7), write(model(3.0)))
    assert time.monotonic() - began < BOUND_S / 2
    assert "was not parked" in capsys.readouterr().err
    assert job.store.head() is None


def test_a_worker_that_fails_amid_its_state_parks_nothing(job: Job) -> None:
    def fail(carry: state_messages.Carry) -> None:
        carry(torch.zeros(10, dtype=torch.uint8), "first")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.worker().now(pb.ParkedHead(commits=7), fail)
    assert job.store.head() is None


def test_without_a_state_there_is_nothing_to_go_on_from(job: Job) -> None:
    with pytest.raises(NotParked, match="no state"):
        job.worker().fetch()


def test_a_state_of_another_script_is_refused(job: Job) -> None:
    """Its messages have other sizes, or it has fewer."""
    job.worker().now(pb.ParkedHead(commits=7), write(model(3.0)))
    parked = job.worker().fetch()
    with pytest.raises(NotParked, match="bytes"):
        parked.carry(torch.zeros(3, dtype=torch.uint8), "flexo.state.first")
    short = ParkedState(iter([pb.ParkedPiece(head=pb.ParkedHead())]))
    with pytest.raises(NotParked, match="shorter"):
        short.carry(torch.zeros(3, dtype=torch.uint8), "flexo.state.first")


def test_a_job_that_is_not_opportunistic_keeps_nothing() -> None:
    port = LeaderPort("127.0.0.1", Trusting())
    port.start_serving(cast(Leader, JobsLeader()))
    link = ParkedLink(Trusting(), lambda: port.endpoint)
    with contextlib.closing(port), pytest.raises(grpc.RpcError) as refused:
        link.park(pieces(7, b"seven"))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


# --- strangers --------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [None, os.getuid() + 1])
def test_no_other_user_parks_or_fetches_a_state(job: Job, uid: int | None) -> None:
    job.store.keep(pieces(7, b"seven"), anybody)
    with grpc.insecure_channel(job.port.endpoint) as channel:
        stub = rpc.LeaderServiceStub(channel)
        proofs = [
            [] if uid is None else [(METADATA_KEY, f"{uid} {callers_proof(method, job.port.endpoint)}")]
            for method in (wire.PARK, wire.FETCH_PARKED)
        ]
        with pytest.raises(grpc.RpcError):
            stub.Park(pieces(8, b"eight"), metadata=proofs[0], timeout=BOUND_S)
        with pytest.raises(grpc.RpcError):
            list(stub.FetchParked(pb.ParkedWanted(), metadata=proofs[1], timeout=BOUND_S))
    assert content(job.store) == b"seven"


def test_only_who_knows_the_nodes_secret_parks_through_its_agent(job: Job) -> None:
    job.store.keep(pieces(7, b"seven"), anybody)
    stranger = Worker(job.endpoint, secret="guessed")
    with pytest.raises(grpc.RpcError):
        stranger.park(pieces(8, b"eight"))
    with pytest.raises(grpc.RpcError):
        list(stranger.fetch_parked())
    assert content(job.store) == b"seven"


def test_an_agent_sends_no_state_to_a_server_that_is_not_its_users(job: Job) -> None:
    """The server proves who it is before the first piece goes out."""
    sent: list[bool] = []

    def noted() -> Iterator[pb.ParkedPiece]:
        sent.append(True)
        yield from pieces(7, b"seven")

    class Impostor(Trusting):
        def credential(self, purpose: str) -> str:
            return f"{os.getuid() + 1} {purpose}"

    port = LeaderPort("127.0.0.1", Impostor(), job.store)
    port.start_serving(cast(Leader, JobsLeader()))
    with contextlib.closing(port), pytest.raises(Exception, match="user"):
        ParkedLink(Trusting(), lambda: port.endpoint).park(noted())
    assert job.store.head() is None
    assert sent == []
