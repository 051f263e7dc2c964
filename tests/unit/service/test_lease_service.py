"""flexod's leases: each user's apart, asked by anybody who proves who it is, and kept safe after a start."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine

import grpc
import grpc.aio
import pytest
from service_doubles import PlainAuthenticator

from flexo.service.authentication import Authentication
from flexo.service.lease_service import LeaseService
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import leases_pb2 as pb
from flexo_protos.v1 import leases_pb2_grpc as rpc

JOB = pb.JobKey(job_id=7, run="r")
_calls = itertools.count()


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


@contextlib.asynccontextmanager
async def served(grace_s: float = 0.0) -> AsyncIterator[rpc.LeaseServiceAsyncStub]:
    server = grpc.aio.server(interceptors=[Authentication(PlainAuthenticator())])
    rpc.add_LeaseServiceServicer_to_server(LeaseService(grace_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rpc.LeaseServiceStub(channel)
    finally:
        await server.stop(None)


def by(uid: int, method: str) -> dict[str, object]:
    credential = f"{uid} /flexo.v1.LeaseService/{method}#{next(_calls)}"
    return {"metadata": ((METADATA_KEY, credential),), "timeout": 10}


def ask(holder: str, **more: object) -> pb.AcquireRequest:
    said: dict[str, object] = {"job": JOB, "holder": holder, "address": f"{holder}:1", "ttl_s": 5.0}
    return pb.AcquireRequest(**{**said, **more})


def test_a_lease_is_taken_looked_up_and_given_up() -> None:
    async def story() -> None:
        async with served() as stub:
            taken = await stub.Acquire(ask("a"), **by(1000, "Acquire"))
            assert (taken.holder, taken.address) == ("a", "a:1")
            assert (await stub.Acquire(ask("b"), **by(1000, "Acquire"))).holder == "a"
            looked = await stub.Look(pb.LookRequest(job=JOB), **by(1000, "Look"))
            assert (looked.holder, looked.term) == ("a", taken.term)
            given = pb.ReleaseRequest(job=JOB, holder="a", successor="b")
            left = await stub.Release(given, **by(1000, "Release"))
            assert (left.holder, left.previous) == ("b", taken.term)

    run(story)


def test_nobody_reaches_another_users_lease_of_the_same_job_not_even_root() -> None:
    async def story() -> None:
        async with served() as stub:
            await stub.Acquire(ask("a"), **by(1000, "Acquire"))
            for stranger in (1001, 0):
                looked = await stub.Look(pb.LookRequest(job=JOB), **by(stranger, "Look"))
                assert looked.holder == ""
                await stub.Acquire(ask("mine"), **by(stranger, "Acquire"))
                release = pb.ReleaseRequest(job=JOB, holder="a")
                await stub.Release(release, **by(stranger, "Release"))
            assert (await stub.Look(pb.LookRequest(job=JOB), **by(1000, "Look"))).holder == "a"

    run(story)


@pytest.mark.parametrize(
    "credential", ["", "1000 /flexo.v1.LeaseService/Look", "1000 /flexo.v1.JobService/Attach"]
)
def test_a_credential_for_something_else_takes_no_lease(credential: str) -> None:
    async def story() -> None:
        async with served() as stub:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.Acquire(ask("a"), metadata=((METADATA_KEY, credential),), timeout=10)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(story)


def test_a_request_that_makes_no_sense_is_refused_and_explained() -> None:
    async def story() -> None:
        async with served() as stub:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.Acquire(ask("a", ttl_s=3600.0), **by(1000, "Acquire"))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "0.1 to 60 seconds" in str(refusal.value.details())

    run(story)


def test_after_a_start_a_leader_takes_its_lease_again_with_a_higher_term_and_others_wait() -> None:
    async def story() -> None:
        async with served() as stub:
            before = await stub.Acquire(ask("a"), **by(1000, "Acquire"))
        await asyncio.sleep(0.002)
        async with served(grace_s=10.0) as stub:
            other = await stub.Acquire(ask("b"), **by(1000, "Acquire"))
            assert other.holder == ""
            assert 9.0 < other.expires_in_s <= 10.0
            refresh = ask("a", claim=pb.CLAIM_HOLDER, seen=before.term)
            again = await stub.Acquire(refresh, **by(1000, "Acquire"))
            assert again.holder == "a"
            assert again.term > before.term

    run(story)


def test_two_hundred_who_ask_at_once_agree_on_one_holder() -> None:
    async def story() -> None:
        async with served() as stub:
            answers = await asyncio.gather(
                *(stub.Acquire(ask(f"n{number}"), **by(1000, "Acquire")) for number in range(200))
            )
            assert len({(answer.holder, answer.address, answer.term) for answer in answers}) == 1

    run(story)
