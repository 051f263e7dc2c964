"""A pool's Aggregators sum for jobs that flexod has sent, and nodes do without those that are gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pool_processes import pool, wait_for
from summing_world import BOUND_S, SEVERAL, AggregatorProcess, Ranks, aggregators, plan_of, sums
from thorough import rare

from flexo_protos.aggregation_token import KEY_BYTES, AggregationToken, sign
from horovod_elastic.aggregation import client, heartbeat
from horovod_elastic.aggregation.doors import Guest, PoolDoor
from horovod_elastic.aggregation.frames import BadFrame
from horovod_elastic.aggregation.plan import Plan, PlannedNode
from horovod_elastic.aggregation.server import Server

pytestmark = pytest.mark.processes
FEW = sums(("float32", 30_001), ("float64", 1), ("int64", 2000))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to start an Aggregator. That alone ends no sums here."""
    monkeypatch.setattr(client, "AWAY_S", 20.0)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AggregatorProcess]]:
    with aggregators(tmp_path_factory.mktemp("nodes"), 3, hasty=True) as started:
        yield started


def with_pool(plan: Plan, *planned: PlannedNode) -> Plan:
    return replace(plan, nodes=(*plan.nodes, *planned), version=1)


def summed(nodes: Sequence[AggregatorProcess], workers: int, *planned: PlannedNode, rounds: int = 5) -> Ranks:
    """Ranks whose parts those Aggregators sum."""
    plan = with_pool(plan_of(nodes, workers), *planned)
    return Ranks(nodes, workers, FEW, rounds, 0.1 if rounds > 5 else 0.0, plan=plan)


@pytest.mark.parametrize(("count", "workers"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_a_pool_gives_the_same_sums_as_the_nodes_themselves(
    tmp_path: Path, nodes: list[AggregatorProcess], count: int, workers: int
) -> None:
    with pool(tmp_path, 2) as (one, other):
        plan = with_pool(plan_of(nodes[:count], workers), one.planned(), other.planned(share=3))
        ranks = Ranks(nodes[:count], workers, SEVERAL, 5, plan=plan)
        ranks.end()
        ranks.check_undisturbed()


@pytest.mark.parametrize("how", [signal.SIGKILL, rare(signal.SIGSTOP)])
def test_a_pool_that_dies_or_stops_costs_no_sum(
    tmp_path: Path, nodes: list[AggregatorProcess], how: signal.Signals
) -> None:
    """One after the other is gone; then the nodes sum for themselves."""
    with pool(tmp_path, 2) as (one, other):
        ranks = summed(nodes[:3], 1, one.planned(), other.planned(), rounds=40)
        for each in (one, other):
            time.sleep(0.5)
            os.kill(each.process.pid, how)
        ranks.end()
        ranks.check_undisturbed()


def test_others_of_the_pool_take_the_place_of_one_that_dies_and_none_of_them_breaks(
    tmp_path: Path, nodes: list[AggregatorProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    """The parts of the dead one go to several others, each of which hears of all."""
    with pool(tmp_path, 4) as several:
        ranks = summed(nodes[:2], 1, *(each.planned() for each in several), rounds=40)
        for each in several[1:3]:
            time.sleep(0.5)
            each.process.kill()
        ranks.end()
        ranks.check_undisturbed()
        assert "Traceback" not in capfd.readouterr().err


def test_one_that_makes_all_wait_round_after_round_is_left_out(
    tmp_path: Path, nodes: list[AggregatorProcess]
) -> None:
    with pool(tmp_path, 3) as (one, slow, other):
        planned = slow.planned()
        ranks = summed(nodes[:2], 1, one.planned(), planned, other.planned(), rounds=60)

        def told() -> list[str]:
            lines = "".join(node.log() for node in nodes[:2]).splitlines()
            return [line for line in lines if planned.name in line]

        def stop_a_while() -> bool:
            for number, seconds in ((signal.SIGSTOP, 1.5), (signal.SIGCONT, 0.05)):
                os.kill(slow.process.pid, number)
                time.sleep(seconds)
            return bool(told())

        wait_for(stop_a_while)
        ranks.end()
        ranks.check_undisturbed()
        assert "not used any more: its sums take" in told()[0]


@pytest.mark.parametrize(
    "token",
    [{"quota": 1000}, {"lasts_s": -5.0}],
    ids=["that allows less than the job has", "that has expired"],
)
def test_a_job_that_a_pool_refuses_does_without_it(
    tmp_path: Path, nodes: list[AggregatorProcess], token: dict[str, float]
) -> None:
    with pool(tmp_path, 2) as (one, other):
        ranks = summed(nodes[:2], 1, one.planned(**token), other.planned())
        ranks.end()
        ranks.check_undisturbed()


def test_a_pool_that_is_not_there_is_done_without(tmp_path: Path, nodes: list[AggregatorProcess]) -> None:
    with pool(tmp_path, 1) as (one,):
        planned = one.planned()
    ranks = summed(nodes[:2], 1, planned)
    ranks.end()
    ranks.check_undisturbed()


def test_two_jobs_with_the_same_generation_do_not_mix(tmp_path: Path, nodes: list[AggregatorProcess]) -> None:
    with pool(tmp_path, 1) as (one,):
        both = []
        for job, own in (("17", nodes[:2]), ("18", nodes[2:])):
            plan = replace(plan_of(own, 2, generation=1_000_007), job=job)
            both.append(Ranks(own, 2, FEW, 10, plan=with_pool(plan, one.planned(job=job))))  # type: ignore[arg-type]
        for ranks in both:
            ranks.end()
            ranks.check_undisturbed()


@pytest.fixture
def door() -> PoolDoor:
    return PoolDoor(b"k" * KEY_BYTES)


def token_for(job: str, key: bytes = b"k" * KEY_BYTES) -> str:
    return sign(AggregationToken(job, "somebody", 100, int(time.time()) + 60), key)


def test_a_door_lets_in_whom_flexod_has_signed_for(door: PoolDoor) -> None:
    assert door.admit(token_for("5")) == Guest("5", 100)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x" * 1000,
        "1:\ud800:x",
        "x\ud800",
        token_for("5", b"o" * KEY_BYTES),
        token_for("5").replace(":5:", ":6:"),
    ],
    ids=["none", "long", "no text", "no signature", "of another Aggregator", "of another job"],
)
def test_a_door_lets_nobody_else_in(door: PoolDoor, token: str) -> None:
    with pytest.raises(BadFrame, match="token"):
        door.admit(token)


def test_a_door_refuses_jobs_that_flexod_has_sent_away(door: PoolDoor) -> None:
    door.refused = frozenset({"5"})
    with pytest.raises(BadFrame, match="assigned it elsewhere"):
        door.admit(token_for("5"))
    assert door.admit(token_for("6")).job == "6"
    door.is_draining = True
    with pytest.raises(BadFrame, match="assigned it elsewhere"):
        door.admit(token_for("6"))


def test_a_job_that_is_evicted_goes_on_without_the_pool(nodes: list[AggregatorProcess]) -> None:
    door = PoolDoor(b"k" * KEY_BYTES)
    server = Server("", "127.0.0.1", 0, door)
    threading.Thread(target=server.serve, daemon=True).start()
    planned = PlannedNode("pool", (), "127.0.0.1", server.port, token_for_much("17"))
    ranks = summed(nodes[:2], 1, planned, rounds=30)
    wait_for(lambda: server.used().get("17"))
    time.sleep(0.5)
    assert server.used()["17"].sums > 0
    assert server.moved > 0
    door.refused = frozenset({"17"})
    server.evict("17")
    wait_for(lambda: not server.used())
    ranks.end()
    ranks.check_undisturbed()


def token_for_much(job: str) -> str:
    return sign(AggregationToken(job, "somebody", 1 << 30, int(time.time()) + 600), b"k" * KEY_BYTES)


def test_a_stopped_aggregator_of_the_node_fails_its_workers_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the job falls back to its all-reduce."""
    monkeypatch.setattr(heartbeat, "ANSWERS_WITHIN_S", 0.5)
    monkeypatch.setattr(client, "AWAY_S", 1.0)
    with aggregators(tmp_path, 1, hasty=True) as (own,):
        ranks = Ranks([own], 2, FEW, 40, 0.1)
        time.sleep(0.5)
        os.kill(own.pid, signal.SIGSTOP)
        for rank in ranks.all:
            rank.through.wait(BOUND_S)
            assert "has not answered" in rank.error
            rank.leave.set()
