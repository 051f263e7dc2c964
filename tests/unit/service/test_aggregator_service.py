"""A pool Aggregator's stream with flexod: who may attach, what is believed, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from threading import Event

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from protobuf_strategies import messages
from service_doubles import PlainAuthenticator, end_of
from thorough import examples

from flexo.model.aggregation import Eviction, JobSums
from flexo.model.queue import Principal
from flexo.service.aggregator_registry import AggregatorRegistry
from flexo.service.aggregator_service import AggregatorService, PoolTimeouts
from flexo.service.authentication import Authentication
from flexo.service.pool_wire import MOST_MEMORY, introduced, with_status
from flexo.service.wire import Malformed
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import aggregators_pb2 as pb
from flexo_protos.v1 import aggregators_pb2_grpc

ATTACH = "/flexo.v1.AggregatorService/Attach"
OWN, STRANGER = os.getuid(), 61_001
OWNER = Principal(str(OWN))
QUICK = PoolTimeouts(hello_within_s=2, quiet_s=6)


def hello(**changes: object) -> pb.FromAggregator:
    said: dict[str, object] = {
        "host": "c1", "port": 7000, "memory_bytes": 1 << 34, "network_bytes_per_s": 1 << 30, "cores": 1,
        "token_key": b"k" * 32, "slurm_job_id": 5, "flexo_version": "1.2",
    }  # fmt: skip
    return pb.FromAggregator(hello=pb.AggregatorHello(**{**said, **changes}))


@dataclass
class House:
    """A running AggregatorService with what stands around it."""

    registry: AggregatorRegistry
    service: AggregatorService
    stub: aggregators_pb2_grpc.AggregatorServiceAsyncStub
    woken: Event
    _calls: int = field(default=0)

    def dial(self, uid: int = OWN) -> grpc.aio.StreamStreamCall:
        self._calls += 1
        return self.stub.Attach(metadata=((METADATA_KEY, f"{uid} {ATTACH}#{self._calls}"),))

    async def attached(self, **changes: object) -> grpc.aio.StreamStreamCall:
        call = self.dial()
        await call.write(hello(**changes))
        assert (await call.read()).WhichOneof("body") == "welcome"
        return call


@contextlib.asynccontextmanager
async def house(*users: str, enabled: bool = True, timeouts: PoolTimeouts = QUICK) -> AsyncIterator[House]:
    woken = Event()
    registry = AggregatorRegistry(woken.set)
    service = AggregatorService(registry if enabled else None, frozenset(users), timeouts)
    server = grpc.aio.server(interceptors=[Authentication(PlainAuthenticator())])
    aggregators_pb2_grpc.add_AggregatorServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = aggregators_pb2_grpc.AggregatorServiceStub(channel)
            yield House(registry, service, stub, woken)
    finally:
        await server.stop(None)


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


async def refusal(h: House, first: pb.FromAggregator, uid: int = OWN) -> tuple[grpc.StatusCode, str]:
    call = h.dial(uid)
    with contextlib.suppress(asyncio.InvalidStateError):  # it may have been refused before
        await call.write(first)
    return await end_of(call)


def test_an_aggregator_of_flexods_own_account_is_welcomed_and_known() -> None:
    async def story() -> None:
        async with house() as h:
            await h.attached()
            (known,) = h.registry.attached()
            assert (known.name, known.memory, known.slurm_job_id) == ("c1:7000", 1 << 34, 5)
            assert h.woken.is_set()
            assert known.key == b"k" * 32
            assert known.owner == OWNER
            assert "kkkk" not in repr(known)

    run(story)


def test_another_user_may_run_one_only_if_the_configuration_names_the_user() -> None:
    async def story() -> None:
        async with house() as h:
            code, text = await refusal(h, hello(), STRANGER)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "pool_users" in text
        async with house(str(STRANGER)) as h:
            call = h.dial(STRANGER)
            await call.write(hello())
            assert (await call.read()).WhichOneof("body") == "welcome"

    run(story)


def test_a_flexod_without_a_pool_says_which_setting_it_takes() -> None:
    async def story() -> None:
        async with house(enabled=False) as h:
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "enabled = true" in text

    run(story)


def test_a_status_is_what_counts_and_wakes_only_if_the_aggregator_leaves() -> None:
    async def story() -> None:
        async with house() as h:
            call = await h.attached()
            h.woken.clear()
            job = pb.JobSums(job="7", bytes=10, sums=3, cpu_s=0.5, longest_wait_s=0.1)
            link = {"interface_received": 9, "interface_sent": 8, "moved": 7}
            status = pb.AggregatorStatus(jobs=[job], cpu_s=2.0, **link)
            await call.write(pb.FromAggregator(status=status))
            await until(lambda: bool(h.registry.attached()[0].jobs))
            (known,) = h.registry.attached()
            assert known.jobs == (JobSums("7", 10, 3, 0.5, 0.1),)
            assert known.cpu_s == 2.0
            assert (known.interface_received, known.interface_sent, known.moved) == (9, 8, 7)
            assert not h.woken.is_set()
            await call.write(pb.FromAggregator(status=pb.AggregatorStatus(leaving=True)))
            await until(h.woken.is_set)

    run(story)


def test_an_eviction_and_a_drain_reach_the_aggregator() -> None:
    async def story() -> None:
        async with house() as h:
            call = await h.attached()
            h.registry.evict(Eviction("c1:7000", "7"))
            h.registry.evict(Eviction("c9:7000", "8"))
            assert (await call.read()).evict.job == "7"
            h.registry.drain("c1:7000")
            assert (await call.read()).WhichOneof("body") == "drain"

    run(story)


def test_the_newest_stream_of_an_aggregator_counts() -> None:
    async def story() -> None:
        async with house() as h:
            first = await h.attached()
            await h.attached(memory_bytes=5)
            code, text = await end_of(first)
            assert code is grpc.StatusCode.ABORTED
            assert "c1:7000" in text
            (known,) = h.registry.attached()
            assert known.memory == 5

    run(story)


def test_an_aggregator_that_hangs_up_is_gone_at_once() -> None:
    async def story() -> None:
        async with house() as h:
            call = await h.attached()
            h.woken.clear()
            call.cancel()
            await until(lambda: not h.registry.attached())
            assert h.woken.is_set()

    run(story)


def test_a_silent_aggregator_is_given_up() -> None:
    async def story() -> None:
        async with house(timeouts=PoolTimeouts(hello_within_s=1, quiet_s=0.6)) as h:
            code, text = await end_of(await h.attached())
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "no status" in text

    run(story)


def test_flexod_stops_and_says_that_assignments_stand() -> None:
    async def story() -> None:
        async with house() as h:
            call = await h.attached()
            h.service.close()
            code, text = await end_of(call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "assignments stand" in text

    run(story)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": MOST_MEMORY + 1}, "memory_bytes"),
        ({"network_bytes_per_s": 0}, "network_bytes_per_s"),
        ({"token_key": b"short"}, "token_key"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_by_the_name_of_its_field(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(Malformed, match=named):
        introduced(hello(**changes).hello, OWNER)


@pytest.mark.parametrize(
    ("jobs", "named"),
    [
        ([pb.JobSums(job="a b")], "jobs.job"),
        ([pb.JobSums(job="1"), pb.JobSums(job="1")], "twice"),
        ([pb.JobSums(job="1", cpu_s=float("nan"))], "cpu_s"),
        ([pb.JobSums(job="1", longest_wait_s=-1)], "longest_wait_s"),
        ([pb.JobSums(job="1", sums=(1 << 64) - 1)], "sums"),
    ],
)
def test_a_status_that_cannot_be_is_refused_by_the_name_of_its_field(
    jobs: list[pb.JobSums], named: str
) -> None:
    with pytest.raises(Malformed, match=named):
        with_status(introduced(hello().hello, OWNER), pb.AggregatorStatus(jobs=jobs))


def test_counts_of_a_link_that_cannot_be_are_refused() -> None:
    for named in ("interface_received", "interface_sent", "moved"):
        with pytest.raises(Malformed, match=named):
            with_status(introduced(hello().hello, OWNER), pb.AggregatorStatus(**{named: (1 << 64) - 1}))


@settings(max_examples=examples(200), deadline=None)
@given(messages(pb.FromAggregator.DESCRIPTOR))
def test_whatever_an_aggregator_says_is_taken_or_malformed(said: pb.FromAggregator) -> None:
    with contextlib.suppress(Malformed):
        known = introduced(said.hello, OWNER)
        with_status(known, said.status)
    with contextlib.suppress(Malformed):
        with_status(introduced(hello().hello, OWNER), said.status)
