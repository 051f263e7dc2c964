"""The leader's desk: what it hands out, to whom, and what it waits for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.v1 import shards_pb2 as pb
from horovod_elastic.ranges import Range, RangeSet
from horovod_elastic.shards import Progress, ShardServer, default_partitions, handing_order

SAMPLES, PARTITIONS = 100, 10


def ledger(generation=1, opening=1, epoch=0, consumed=(), held=()):
    return pb.ShardLedger(
        dataset="data",
        generation=generation,
        opening=opening,
        samples=SAMPLES,
        partitions=PARTITIONS,
        seed=5,
        epoch=epoch,
        consumed=[pb.Range(start=start, length=length) for start, length in consumed],
        held=[pb.Range(start=start, length=length) for start, length in held],
    )


def want(request=1, generation=1, opening=1, at_least=1):
    return pb.ShardsWanted(
        dataset="data", generation=generation, opening=opening, request=request, at_least=at_least
    )


def held(*ranges, generation=1, opening=1):
    pieces = [pb.Range(start=start, length=length) for start, length in ranges]
    return [pb.HeldShards(dataset="data", generation=generation, opening=opening, ranges=pieces)]


def given_to(answers, worker_id="a"):
    """The ranges of the one answer, which goes to this worker."""
    ((receiver, shards),) = answers
    assert receiver == worker_id
    return [Range(each.start, each.length) for each in shards.ranges]


def test_partitions_are_handed_out_in_the_order_of_seed_and_epoch():
    for epoch in (0, 1):
        server = ShardServer()
        server.ledger(ledger(epoch=epoch))
        handed = [given_to(server.wanted("a", want(number))) for number in range(PARTITIONS)]
        assert [piece for each in handed for piece in each] == handing_order(SAMPLES, PARTITIONS, 5, epoch)
    assert handing_order(SAMPLES, PARTITIONS, 5, 0) != handing_order(SAMPLES, PARTITIONS, 5, 1)


def test_a_request_before_the_ledger_waits_for_it():
    server = ShardServer()
    assert server.wanted("a", want()) == []
    assert given_to(server.ledger(ledger())) == handing_order(SAMPLES, PARTITIONS, 5, 0)[:1]


def test_a_request_for_the_next_opening_waits_and_one_for_the_last_is_forgotten():
    server = ShardServer()
    server.ledger(ledger(generation=2, opening=4))
    assert server.wanted("a", want(generation=2, opening=5)) == []
    assert server.wanted("b", want(generation=1, opening=9)) == []
    assert given_to(server.ledger(ledger(generation=2, opening=5, epoch=1)))


def test_whole_partitions_are_handed_out_until_there_are_enough_samples():
    server = ShardServer()
    server.ledger(ledger())
    assert given_to(server.wanted("a", want(at_least=25))) == handing_order(SAMPLES, PARTITIONS, 5, 0)[:3]


def test_what_is_consumed_or_held_is_not_handed_out():
    server = ShardServer()
    server.ledger(ledger(consumed=[(0, 35)], held=[(50, 45)]))
    answers = server.wanted("a", want(at_least=1000))
    assert RangeSet(given_to(answers)) == RangeSet([Range(35, 15), Range(95, 5)])
    assert answers[0][1].dry


def test_the_last_partition_is_said_to_be_the_last():
    server = ShardServer()
    server.ledger(ledger())
    said = [server.wanted("a", want(number))[0][1] for number in range(PARTITIONS + 1)]
    assert [shards.dry for shards in said] == [False] * (PARTITIONS - 1) + [True] * 2
    assert list(said[-1].ranges) == []


def test_a_request_that_is_repeated_gets_the_same_answer():
    server = ShardServer()
    server.ledger(ledger())
    first = server.wanted("a", want(7))
    assert server.wanted("a", want(7)) == first
    assert given_to(server.wanted("a", want(8))) != given_to(first)


def test_a_ledger_that_is_repeated_changes_nothing():
    server = ShardServer()
    server.ledger(ledger())
    first = given_to(server.wanted("a", want(1)))
    server.ledger(ledger())
    assert given_to(server.wanted("b", want(1)), "b") != first


def test_an_older_ledger_changes_nothing():
    server = ShardServer()
    server.ledger(ledger(generation=3))
    server.ledger(ledger(generation=2, consumed=[(0, 100)]))
    assert given_to(server.wanted("a", want(generation=3)))


def test_a_new_leader_hands_out_nothing_before_all_workers_were_heard():
    server = ShardServer()
    server.take_over(["a", "b"])
    assert server.ledger(ledger()) == []
    assert server.wanted("a", want(3)) == []
    assert server.stands("a", held((0, 10))) == []
    assert given_to(server.stands("b", []))


def test_a_new_leader_does_not_wait_for_the_dead():
    server = ShardServer()
    server.take_over(["a", "b"])
    server.ledger(ledger())
    server.wanted("a", want())
    server.stands("a", [])
    assert given_to(server.worker_gone("b"))


@given(st.permutations(range(4)), st.integers(0, PARTITIONS))
def test_a_new_leader_hands_nothing_out_that_the_old_one_has(order, handed):
    old, new = ShardServer(), ShardServer()
    old.ledger(ledger(consumed=[(0, 5)]))
    given = {"a": [], "b": []}
    for number in range(handed):
        worker = "ab"[number % 2]
        given[worker] += given_to(old.wanted(worker, want(number)), worker)
    new.take_over(["a", "b"])
    tell = [
        lambda: new.stands("a", held(*given["a"])),
        lambda: new.stands("b", held(*given["b"])),
        lambda: new.ledger(ledger(consumed=[(0, 5)])),
        lambda: new.wanted("a", want(100, at_least=1000)),
    ]
    answers = [answer for number in order for answer in tell[number]()]
    taken = RangeSet([Range(0, 5), *given["a"], *given["b"]])
    assert RangeSet(given_to(answers)) == taken.complement(SAMPLES)


def test_what_a_worker_held_at_another_time_is_handed_out():
    server = ShardServer()
    server.ledger(ledger(opening=3))
    server.stands("a", held((0, 100), opening=2))
    assert RangeSet(given_to(server.wanted("a", want(opening=3, at_least=1000)))).total == SAMPLES


def test_progress_is_what_has_left_the_desk():
    server = ShardServer()
    server.ledger(ledger(epoch=2, consumed=[(0, 20)], held=[(20, 10)]))
    server.wanted("a", want(at_least=40))
    (progress,) = server.progress()
    assert progress == Progress("data", 2, SAMPLES, progress.handed_out)
    assert 70 <= progress.handed_out < 90


def test_the_request_of_a_worker_that_is_gone_is_not_answered():
    server = ShardServer()
    server.wanted("a", want())
    server.worker_gone("a")
    assert server.ledger(ledger()) == []


@pytest.mark.parametrize(
    ("samples", "partitions"), [(1, 1), (10, 10), (1437, 64), (60_000, 234), (1_281_167, 4096), (10**9, 4096)]
)
def test_there_are_many_partitions_and_none_is_empty(samples, partitions):
    assert default_partitions(samples) == partitions
    order = handing_order(samples, partitions, 0, 0)
    assert sum(each.length for each in order) == samples
    assert min(each.length for each in order) >= 1
