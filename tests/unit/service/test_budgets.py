"""Limits of callers: what each counts, and that those who stay within them are served."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine

import pytest

from flexo.service.budgets import (
    STANDARD,
    Buckets,
    Budgets,
    Exhausted,
    Kind,
    TokenBucket,
    UsersCalls,
    kind_of,
)
from flexo.service.fair_queue import Evicted, FairQueue
from flexo_protos.connections import ConnectionGuard, end_of, hang_up_on
from flexo_protos.v1 import admin_pb2, inference_pb2, jobs_pb2, leases_pb2

FILES = (admin_pb2.DESCRIPTOR, inference_pb2.DESCRIPTOR, jobs_pb2.DESCRIPTOR, leases_pb2.DESCRIPTOR)


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


def test_every_method_has_a_budget() -> None:
    kinds = {
        f"{service.name}/{method.name}": kind_of(f"/{service.full_name}/{method.name}")
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert {name for name, kind in kinds.items() if kind is Kind.STEER} == {
        f"AdminService/{name}"
        for name in ("ScaleJob", "ScaleOut", "ScaleIn", "ScaleViewersJob", "ProfileJob", "CheckpointJob")
    }
    assert kinds["AdminService/ExplainJob"] is Kind.READ
    assert kinds["LeaseService/Acquire"] is Kind.LEASE
    assert kinds["InferenceService/Watch"] is Kind.PUSH
    assert kinds["JobService/Attach"] is Kind.LEAD


def test_who_has_too_many_open_calls_is_told_who_how_many_and_what_to_do() -> None:
    open_calls = UsersCalls(Budgets(reads=1))
    leave = open_calls.enter(1000, Kind.READ)
    with pytest.raises(Exhausted, match=r"uid 1000 .*\b1\b.*read.*wait"):
        open_calls.enter(1000, Kind.READ)
    open_calls.enter(1000, Kind.STEER)
    open_calls.enter(1001, Kind.READ)
    leave(None)
    open_calls.enter(1000, Kind.READ)


def test_calls_beyond_a_users_rate_are_answered_later_and_only_theirs() -> None:
    calls = UsersCalls(Budgets(calls_burst=5, calls_per_s=10.0))
    waits = [calls.wait_s(1000, Kind.READ) for _ in range(15)]
    assert waits[:5] == [0.0] * 5
    assert waits[-1] == pytest.approx(1.0, abs=0.2)
    assert calls.wait_s(1001, Kind.READ) == calls.wait_s(1000, Kind.STEER) == 0.0
    assert [calls.wait_s(1000, Kind.LEASE) for _ in range(STANDARD.leases_burst // 4)][-1] == 0.0


def test_who_waits_with_many_delays_nobody_who_waits_with_one() -> None:
    async def story() -> None:
        queue, order = FairQueue(1), []

        async def wait(caller: str) -> None:
            async with queue.turn(caller):
                order.append(caller)
                await asyncio.sleep(0)

        await asyncio.gather(*(wait("many") for _ in range(50)), wait("one"), wait("other"))
        assert {"one", "other"} <= set(order[:4])
        assert len(order) == 52

    run(story)


def test_one_caller_proceeds_as_often_at_a_time_as_allowed() -> None:
    async def story() -> None:
        queue, most, now = FairQueue(10, of_one=2), 0, 0

        async def proceed() -> None:
            nonlocal most, now
            async with queue.turn("ada"):
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.001)
                now -= 1

        await asyncio.gather(*(proceed() for _ in range(20)))
        assert most == 2

    run(story)


def test_one_more_evicts_the_oldest_of_the_caller_that_has_most() -> None:
    async def story() -> None:
        queue = FairQueue(1, waiting=3)
        await queue.enter("first")
        crowd = [asyncio.ensure_future(queue.enter("crowd")) for _ in range(3)]
        await asyncio.sleep(0)
        one = asyncio.ensure_future(queue.enter("one"))
        await asyncio.sleep(0)
        with pytest.raises(Evicted):
            await crowd[0]
        queue.leave("first")
        await crowd[1]
        queue.leave("crowd")
        await one
        assert not crowd[2].done()
        crowd[2].cancel()

    run(story)


def test_one_caller_evicts_only_its_own() -> None:
    async def story() -> None:
        queue = FairQueue(1, waiting_of_one=2)
        await queue.enter("first")
        waiting = [asyncio.ensure_future(queue.enter(name)) for name in ("ada", "bob", "ada", "ada")]
        await asyncio.sleep(0)
        with pytest.raises(Evicted):
            await waiting[0]
        for name in ("first", "bob", "ada"):
            queue.leave(name)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting[1:])

    run(story)


def test_who_gives_up_waiting_leaves_no_turn_taken() -> None:
    async def story() -> None:
        queue = FairQueue(1)
        await queue.enter("ada")
        waiting = [asyncio.ensure_future(queue.enter("bob")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        queue.leave("ada")  # bob's second has its turn now, and does not know yet
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[2].exception() is None

    run(story)


def test_a_bucket_forgives_with_time_and_says_how_much() -> None:
    bucket = TokenBucket(10.0, 2.0)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    assert bucket.owe(10.0) == pytest.approx(1.0, abs=0.1)


def test_buckets_are_of_one_name_each_and_forget_the_least_recent() -> None:
    buckets = Buckets(0.001, 1, most=2)
    assert [buckets.take(name) for name in ("a", "a", "b")] == [True, False, True]
    assert [buckets.take(name) for name in ("c", "a")] == [True, True]


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ("ipv4:10.0.0.7:40000", ("10.0.0.7", 40000)),
        ("ipv6:%5Bfe80::1%5D:40000", ("fe80::1", 40000)),
        ("unix:", None),
        ("unix:/tmp/socket", None),
    ],
)
def test_the_other_end_is_read_as_grpc_writes_it(peer: str, end: tuple[str, int] | None) -> None:
    assert end_of(peer) == end


def _accepted(count: int, source: str = "127.0.0.1") -> tuple[list[socket.socket], list[socket.socket]]:
    """Connections as both ends have them."""
    with socket.create_server(("127.0.0.1", 0), backlog=count) as server:
        at = server.getsockname()
        dialled = [socket.create_connection(at, source_address=(source, 0)) for _ in range(count)]
        return dialled, [server.accept()[0] for _ in range(count)]


def _peer(dialled: socket.socket) -> str:
    host, port = dialled.getsockname()
    return f"ipv4:{host}:{port}"


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_one_connection_is_hung_up_on_and_no_other() -> None:
    dialled, accepted = _accepted(3)
    assert hang_up_on({_peer(dialled[1])}) == 1
    assert [_is_open(each) for each in dialled] == [True, False, True]
    for each in dialled + accepted:
        each.close()


def test_of_silent_connections_the_oldest_are_closed_and_proven_ones_stay() -> None:
    guard = ConnectionGuard(silent_of_a_host=4)
    old, old_accepted = _accepted(3)
    young, young_accepted = _accepted(3)
    for each in old_accepted + young_accepted:
        guard.has_proven(_peer(each))  # this process has both ends: here only one of them is silent
    guard.has_proven(_peer(old[0]))
    assert guard.look() == 1
    assert [_is_open(each) for each in old + young] == [True, False, True, True, True, True]
    for each in old + young + old_accepted + young_accepted:
        each.close()


def test_of_hosts_each_has_silent_connections_of_its_own() -> None:
    guard = ConnectionGuard(silent_of_a_host=2)
    crowd, crowd_accepted = _accepted(5)
    one, one_accepted = _accepted(1, source="127.0.0.2")
    for each in crowd_accepted + one_accepted:
        guard.has_proven(_peer(each))
    assert guard.look() == 3
    assert _is_open(one[0])
    for each in crowd + one + crowd_accepted + one_accepted:
        each.close()


def test_of_a_user_with_too_many_proven_connections_those_that_were_not_used_for_longest_are_closed() -> None:
    guard = ConnectionGuard(100, of_a_user=3, more_of={1000: 1}.__getitem__)
    mine, mine_accepted = _accepted(6)
    other, other_accepted = _accepted(3)
    busy = [guard.has_proven(_peer(each), 1000) for each in mine]
    for each in other:
        guard.has_proven(_peer(each), 2000)
    for has_ended in busy[2:]:
        has_ended(None)
    guard.has_proven(_peer(mine[2]), 1000)(None)
    assert guard.look() == 2
    assert [_is_open(each) for each in mine] == [True, True, True, False, False, True]
    assert all(map(_is_open, other))
    for each in mine + other + mine_accepted + other_accepted:
        each.close()


def test_of_connections_that_are_all_in_use_the_oldest_stay() -> None:
    guard = ConnectionGuard(100, of_a_user=2)
    mine, accepted = _accepted(4)
    for each in mine:
        guard.has_proven(_peer(each), 1000)
    assert guard.look() == 2
    assert [_is_open(each) for each in mine] == [True, True, False, False]
    for each in mine + accepted:
        each.close()


def test_limits_before_authentication_leave_files_for_those_who_prove_themselves() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert STANDARD.silent_connections_of_a_host * 4 <= hard
