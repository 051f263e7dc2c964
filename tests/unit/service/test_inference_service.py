"""The inference cluster's scheduler on the wire: who may push, what is refused how, and what it watches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
import pytest
import structlog
from flat_records import make_node
from says import says
from service_doubles import PlainAuthenticator

from flexo.loaning.demand import DemandMissing
from flexo.loaning.pushed import MAX_CALLED_SERVERS, MAX_RECLAIM_REQUESTS, Called, PushedDemand
from flexo.model.loans import Loan, LoanState
from flexo.service.authentication import Authentication
from flexo.service.inference_service import InferenceService
from flexo.words import MAX_TEXT
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import inference_pb2 as pb
from flexo_protos.v1 import inference_pb2_grpc

SCHEDULER, STRANGER = pwd.getpwnam("games").pw_uid, 61_001
NODES = tuple(make_node(name, 4, 0, 8, 0, 1000, 0, frozenset({"infer"})) for name in ("i1", "i2", "i3"))
WITHIN_S = 30.0


@dataclass
class Desk:
    """A running InferenceService and what it pushes into."""

    pushed: PushedDemand
    service: InferenceService
    stub: inference_pb2_grpc.InferenceServiceAsyncStub
    woken: list[int] = field(default_factory=list)
    _calls: int = 0

    def proof(self, method: str, uid: int = SCHEDULER) -> tuple[tuple[str, str], ...]:
        self._calls += 1
        return ((METADATA_KEY, f"{uid} /flexo.v1.InferenceService/{method}#{self._calls}"),)

    async def push(self, servers: float, at: float | None = None, uid: int = SCHEDULER) -> pb.PushDemandReply:
        request = pb.PushDemandRequest(servers=servers, at=time.time() if at is None else at)
        return await self.stub.PushDemand(request, metadata=self.proof("PushDemand", uid))

    async def call_back(self, *nodes: str, servers: int = 0, ahead_s: float = 300.0) -> pb.CallBackReply:
        now = time.time()
        request = pb.CallBackRequest(
            call_id="c1", asked_at=now, deadline_at=now + ahead_s, nodes=nodes, servers=servers
        )
        return await self.stub.CallBack(request, metadata=self.proof("CallBack"))

    def watch(self) -> grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchReply]:
        return self.stub.Watch(pb.WatchRequest(), metadata=self.proof("Watch"))

    def heed(self, *loans: Loan) -> None:
        self.pushed.heed(time.time(), loans)


@contextlib.asynccontextmanager
async def registry(*, seen: bool = True, push: bool = True) -> AsyncIterator[Desk]:
    """A service whose flexod has lent i1 and i2."""
    woken: list[int] = []
    pushed = PushedDemand("infer", stale_s=120.0)
    if seen:
        with contextlib.suppress(DemandMissing):
            pushed.read(time.time(), NODES, ())
        pushed.heed(time.time(), (lent("i1"), lent("i2")))
    service = InferenceService(pushed if push else None, frozenset({"games"}), lambda: woken.append(1))
    server = grpc.aio.server(interceptors=[Authentication(PlainAuthenticator())])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Desk(pushed, service, inference_pb2_grpc.InferenceServiceStub(channel), woken)
    finally:
        await server.stop(None)


def lent(node: str, **changes: object) -> Loan:
    return Loan(node, 1000.0, "idle", **changes)  # type: ignore[arg-type]


def run(test: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WITHIN_S):
            await test

    asyncio.run(bounded())


async def refusal(call: Coroutine[object, object, object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def test_a_push_becomes_the_demand_and_wakes_lending():
    async def test() -> None:
        async with registry() as here:
            now = time.time()
            reply = await here.push(2.5, now)
            assert reply.stale_at == pytest.approx(now + 120)
            demand = here.pushed.read(time.time(), NODES, ())
            assert (demand.servers, demand.source) == (2.5, "pushed by games")
            assert len(here.woken) == 1

    run(test())


@pytest.mark.parametrize("uid", [0, os.getuid()])
def test_root_and_flexods_own_account_may_push(uid):
    async def test() -> None:
        async with registry() as here:
            await here.push(1, uid=uid)

    run(test())


@pytest.mark.thorough
def test_who_may_not_push_and_tries_again_and_again_waits_and_the_log_names_some() -> None:
    async def test() -> None:
        async with registry() as here:
            began = time.monotonic()
            refused = await asyncio.gather(*(refusal(here.push(1, uid=STRANGER)) for _ in range(60)))
            assert {code for code, _ in refused} == {grpc.StatusCode.PERMISSION_DENIED}
            await here.push(1)
            assert time.monotonic() - began < 10
            await refusal(here.push(1, uid=STRANGER))
            assert time.monotonic() - began > 4

    with structlog.testing.capture_logs() as logged:
        run(test())
    assert 0 < len(logged) < 40


def test_others_may_neither_push_nor_watch():
    async def test() -> None:
        async with registry() as here:
            code, text = await refusal(here.push(1, uid=STRANGER))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "inference_users" in text
            call = here.stub.Watch(pb.WatchRequest(), metadata=here.proof("Watch", STRANGER))
            assert (await refusal(call.read()))[0] is grpc.StatusCode.PERMISSION_DENIED
            assert not here.woken
            with pytest.raises(DemandMissing):
                here.pushed.read(time.time(), NODES, ())

    run(test())


def test_a_call_without_proof_of_who_calls_is_refused():
    async def test() -> None:
        async with registry() as here:
            call = here.stub.PushDemand(pb.PushDemandRequest(servers=1, at=time.time()))

            async def made() -> None:
                await call

            assert (await refusal(made()))[0] is grpc.StatusCode.UNAUTHENTICATED

    run(test())


@pytest.mark.parametrize(
    ("servers", "skew_s", "words"),
    [(-1, 0, "from 0"), (float("nan"), 0, "from 0"), (1, 300, "clock"), (1, -300, "clock")],
)
def test_a_bad_push_is_refused_by_name_and_loses_nothing(servers, skew_s, words):
    async def test() -> None:
        async with registry() as here:
            await here.push(2)
            code, text = await refusal(here.push(servers, time.time() + skew_s))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert words in text
            assert here.pushed.read(time.time(), NODES, ()).servers == 2

    run(test())


def test_an_older_push_and_one_before_the_cluster_was_seen_have_codes_of_their_own():
    async def test() -> None:
        async with registry() as here:
            await here.push(2)
            code, _ = await refusal(here.push(1, time.time() - 20))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
        async with registry(seen=False) as here:
            assert (await refusal(here.push(1)))[0] is grpc.StatusCode.UNAVAILABLE
            assert (await refusal(here.watch().read()))[0] is grpc.StatusCode.UNAVAILABLE

    run(test())


def test_where_demand_comes_from_elsewhere_pushes_are_refused():
    async def test() -> None:
        async with registry(push=False) as here:
            code, text = await refusal(here.push(1))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert 'source = "push"' in text

    run(test())


def test_a_call_back_says_what_happens_and_is_watched_until_each_server_is_empty():
    async def test() -> None:
        async with registry() as here:
            watch = here.watch()
            first = await watch.read()
            assert [server.node for server in first.lent] == ["i1", "i2"]
            reply = await here.call_back("i1", "i3")
            assert says(reply.text, "1 lent server", "1 of those named")
            told = await watch.read()
            assert [each.node for each in told.call_backs[0].empty] == ["i3"]
            closed = lent("i1", state=LoanState.RECLAIMING, deadline_at=2000.0)
            here.heed(closed, lent("i2"))
            told = await watch.read()
            assert (told.lent[0].state, told.lent[0].deadline_at) == ("called back", 2000.0)
            assert not told.call_backs[0].done
            here.heed(lent("i2"))
            told = await watch.read()
            assert {each.node for each in told.call_backs[0].empty} == {"i1", "i3"}
            assert told.call_backs[0].done

    run(test())


def test_call_backs_by_number_say_when_fewer_are_lent():
    async def test() -> None:
        async with registry() as here:
            reply = await here.call_back(servers=3)
            assert says(reply.text, "2 lent servers", "no more")
            assert reply.call_back.servers == 2

    run(test())


@pytest.mark.parametrize(
    ("nodes", "servers", "ahead_s", "words"),
    [
        (["t9"], 0, 300, "no server t9"),
        (["\x1b[2J\n"], 0, 300, "no server"),
        ([], 4, 300, "1 to 3"),
        (["i1"], 0, -5, "-5.0 s"),
        ([], 0, 300, "one of"),
    ],
)
def test_a_bad_call_back_is_refused_by_name(nodes, servers, ahead_s, words):
    async def test() -> None:
        async with registry() as here:
            code, text = await refusal(here.call_back(*nodes, servers=servers, ahead_s=ahead_s))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert words in text
            assert text.isprintable()
            assert here.pushed.reclaim_requests(time.time()) == ()

    run(test())


def test_the_largest_state_that_can_be_fits_into_one_message_and_more_is_refused():
    names = [f"{number:064d}" for number in range(MAX_CALLED_SERVERS)]
    each = MAX_CALLED_SERVERS // MAX_RECLAIM_REQUESTS

    async def test() -> None:
        async with registry() as here:
            with contextlib.suppress(DemandMissing):
                here.pushed.read(time.time(), [replace(NODES[0], name=name) for name in names], ())
            here.heed()
            for number in range(MAX_RECLAIM_REQUESTS):
                nodes = tuple(names[number * each : (number + 1) * each])
                now = time.time()
                asked = Called(f"{number:064d}", now, now + 300, "w" * MAX_TEXT, nodes, 0)
                here.pushed.reclaim(asked, now)
            here.heed(*(lent(name, state=LoanState.RECLAIMING, deadline_at=2.0) for name in names))
            told = await here.watch().read()
            assert sum(len(call.empty) for call in told.call_backs) == len(told.lent) == MAX_CALLED_SERVERS
            assert 2**21 < told.ByteSize() < 4 * 2**20
            for number in range(MAX_RECLAIM_REQUESTS):
                now = time.time()
                here.pushed.reclaim(Called(f"n{number}", now, now + 300, "", (names[-1],), 0), now)
            code, text = await refusal(here.call_back(names[-1]))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert says(text, 100, "100 servers")

    run(test())


def test_a_call_back_is_withdrawn():
    async def test() -> None:
        async with registry() as here:
            await here.call_back("i1")
            request = pb.WithdrawCallBackRequest(call_id="c1")
            await here.stub.WithdrawCallBack(request, metadata=here.proof("WithdrawCallBack"))
            assert here.pushed.reclaim_requests(time.time()) == ()

    run(test())


def test_watchers_are_told_when_flexod_stops_and_forgotten_when_they_hang_up():
    async def test() -> None:
        async with registry() as here:
            gone, watch = here.watch(), here.watch()
            await gone.read()
            await watch.read()
            gone.cancel()
            here.service.close()
            code, text = await refusal(watch.read())
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "flexod stops" in text

    run(test())
