"""Two flexods in turns, over real sockets and a real folder; only what they do when active is a stand-in."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import grpc.aio
import pytest
from service_doubles import PlainAuthenticator

from flexo.availability.leader_elector import LeaderElector
from flexo.availability.leadership_guard import LeadershipGuard
from flexo.config import Settings
from flexo.control.views import Unheeded
from flexo.event_store.store import EventStore
from flexo.model.elastic import Cap
from flexo.model.queue import JobKey
from flexo.service import failover_loop
from flexo.service.failover_loop import FailoverLoop
from flexo.service.process import CannotServe, Process
from flexo.service.reloading import Configuration
from flexo.service.server import Services, listen
from flexo_protos import flexods
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.leader_leases.lease import OF_FLEXODS, LeaderLease
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

BOUND_S = 60.0


@dataclass
class Acting(admin_pb2_grpc.AdminServiceServicer):
    """What stands where `Active` stood."""

    event_store: EventStore
    leadership: LeadershipGuard
    about: Any
    falls_over: bool = False
    services: Services = field(default_factory=Services)
    open: bool = True
    told: list[tuple[str, str]] = field(default_factory=list)
    """Of the configuration: what is news, and what is not gone by."""

    def take(self, changed: Settings, news: str, unheeded: Unheeded) -> None:
        self.told.append((news, str(unheeded)))

    async def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: object
    ) -> admin_pb2.GetStatusReply:
        return admin_pb2.GetStatusReply(cluster="c", availability=self.about())

    async def ListJobs(self, request: admin_pb2.ListJobsRequest, context: object) -> admin_pb2.ListJobsReply:  # noqa: N802
        return admin_pb2.ListJobsReply()

    @asynccontextmanager
    async def acting(self, registry: object, over: asyncio.Event) -> AsyncIterator[Event]:
        failed = Event()
        if self.falls_over:
            failed.set()
            over.set()
        yield failed

    def close(self) -> None:
        self.open = False


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Acting]:
    """All that have been active, in their order."""
    all_of_them: list[Acting] = []

    def begin(
        settings: Settings,
        event_store: EventStore,
        leadership: LeadershipGuard,
        counters: object,
        about: object,
    ) -> Acting:
        acting = Acting(event_store, leadership, about, falls_over=settings.slurm.timeout_s == 13)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(acting, acting.services)  # type: ignore[arg-type]
        all_of_them.append(acting)
        return acting

    monkeypatch.setattr(failover_loop.Active, "begin", begin)
    return all_of_them


@dataclass
class One:
    """One of two flexods, and how it is asked."""

    address: str
    process: Process
    task: asyncio.Task[None]
    stub: admin_pb2_grpc.AdminServiceAsyncStub
    calls: int = 0

    def proof(self, method: str) -> tuple[tuple[str, str], ...]:
        self.calls += 1
        return ((METADATA_KEY, f"0 /flexo.v1.AdminService/{method}#{self.address}{self.calls}"),)

    async def about(self) -> admin_pb2.Availability:
        reply = await self.stub.GetStatus(admin_pb2.GetStatusRequest(), metadata=self.proof("GetStatus"))
        return reply.availability

    async def serves(self) -> bool:
        """Whether it lists jobs; if not, it says that it stands by."""
        call = self.stub.ListJobs(admin_pb2.ListJobsRequest(), metadata=self.proof("ListJobs"))
        code = await call.code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
        assert (code is grpc.StatusCode.OK) is (
            flexods.STANDS_BY_KEY not in {key for key, _ in await call.trailing_metadata()}
        )
        return code is grpc.StatusCode.OK


def free_addresses() -> tuple[str, str]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{probe.getsockname()[1]}" for probe in (one, other))  # type: ignore[return-value]


@asynccontextmanager
async def running(folder: Path, address: str, both: tuple[str, str], more: str = "") -> AsyncIterator[One]:
    text = (
        f'[high_availability]\nhosts = ["{both[0]}", "{both[1]}"]\nlease = "file://{folder}"\nlease_s = 2\n'
        f'[event_store]\npath = "{folder}/journal.sqlite"\n{more}'
    )
    file = folder / f"{address}.toml"
    file.write_text(text)
    configuration = Configuration(file, address=address)
    process = Process(configuration, configuration.read())
    mine = FailoverLoop(process)
    server = await listen(address, PlainAuthenticator(), mine.router)
    task = asyncio.create_task(mine.take())
    async with grpc.aio.insecure_channel(address) as channel:
        yield One(address, process, task, admin_pb2_grpc.AdminServiceStub(channel))
    process.ended.set()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop(None)


async def until(what: Any, sentence: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await what():
            await asyncio.sleep(0.02)
    assert sentence


def test_one_serves_the_other_names_it_and_follows_it_with_its_event_store(
    tmp_path: Path, begun: list[Acting]
) -> None:
    both = free_addresses()

    async def story() -> None:
        async with running(tmp_path, both[0], both) as a:
            assert not await a.serves(), "the folder was empty: it has to wait"
            await until(a.serves, "the first is active")
            begun[0].event_store.set_cap(JobKey(7), Cap(3))
            async with running(tmp_path, both[1], both) as b:
                await until(_knows(b, both[0]), "the second knows the first")
                assert not await b.serves()
                assert list((await b.about()).hosts) == list(both)
                a.process.ended.set()
                await a.task
                assert not begun[0].open
                await until(b.serves, "the second follows")
                assert (await b.about()).active
                assert begun[1].event_store.caps() == {JobKey(7): Cap(3)}
                assert begun[1].leadership.epoch > begun[0].leadership.epoch
                assert not await a.serves()
                kinds = [
                    event.text for event in begun[1].event_store.events(None, 10) if event.kind == "daemon"
                ]
                assert kinds[0].startswith(f"the flexod at {both[1]} becomes the active one (epoch ")

    asyncio.run(story())
    assert len(begun) == 2


def release(folder: Path) -> None:
    """Nobody has to wait there."""
    (folder / "active.1").write_text(OF_FLEXODS.as_text(LeaderLease("t", "before:1", 1, released=True)))


def _closed(acting: Acting) -> Any:
    async def asked() -> bool:
        return not acting.open

    return asked


def _was_told(acting: Acting) -> Any:
    async def asked() -> bool:
        return bool(acting.told)

    return asked


def _knows(one: One, holder: str) -> Any:
    async def asked() -> bool:
        about = await one.about()
        return (about.holder, about.active) == (holder, False)

    return asked


def test_one_that_loses_its_lease_stands_by_again_in_the_same_process_and_forgets_nothing(
    tmp_path: Path, begun: list[Acting]
) -> None:
    both = free_addresses()
    release(tmp_path)

    async def story() -> None:
        async with running(tmp_path, both[0], both) as a:
            await until(a.serves, "it is active")
            file = tmp_path / f"{both[0]}.toml"
            file.write_text(f"{file.read_text()}keep_days = 3\n")
            os.kill(os.getpid(), signal.SIGHUP)
            await until(_was_told(begun[0]), "the file is read again")
            record = LeaderLease("t", "other:1", 4_000_000_000)
            (tmp_path / "active.1000000").write_text(OF_FLEXODS.as_text(record))
            await until(_knows(a, "other:1"), "it stands by")
            await until(_closed(begun[0]), "its streams end")
            await until(a.serves, "and is active again, when the other says no more")
            assert begun[1].leadership.epoch == 4000000001

    asyncio.run(story())
    waits = "needs a restart of flexod: [event_store] keep_days"
    news = f"configuration read again: {waits}"
    assert [acting.told for acting in begun] == [[(news, waits)], [(f"as before: {waits}", waits)]]


def test_a_controller_that_falls_over_ends_the_process_and_lets_the_other_in(
    tmp_path: Path, begun: list[Acting]
) -> None:
    both = free_addresses()
    release(tmp_path)

    async def story() -> None:
        async with running(tmp_path, both[0], both, "[slurm]\ntimeout_s = 13\n") as a:
            with pytest.raises(CannotServe):
                await a.task
            async with running(tmp_path, both[1], both) as b:
                await until(b.serves, "the other is active")

    asyncio.run(story())


@pytest.mark.parametrize("acts", [False, True])
def test_a_dead_thread_of_the_lease_ends_the_process_so_that_it_is_started_again(
    tmp_path: Path, begun: list[Acting], monkeypatch: pytest.MonkeyPatch, acts: bool
) -> None:
    both = free_addresses()
    release(tmp_path)

    def die(elector: LeaderElector) -> None:
        if not acts or elector.holds():
            raise SystemExit("as the test says")
        step(elector)

    step = LeaderElector.step
    monkeypatch.setattr(LeaderElector, "step", die)

    async def story() -> None:
        async with running(tmp_path, both[0], both) as a:
            with pytest.raises(CannotServe, match="as the test says"):
                await asyncio.wait_for(a.task, BOUND_S)

    asyncio.run(story())
    assert len(begun) == acts
    assert not any(acting.open for acting in begun)
