"""Aggregators in processes of their own give all ranks the same sums, bit for bit, whoever dies."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from summing_world import (
    SEVERAL,
    AggregatorProcess,
    RankProcess,
    Ranks,
    aggregators,
    at_random_instants,
    plan_of,
    sums,
)
from thorough import rare

from horovod_elastic.aggregation import client
from horovod_elastic.aggregation.heartbeat import ANSWERS_WITHIN_S

AWAY_S = 20.0
pytestmark = pytest.mark.processes

WORLDS = [(1, 4), (2, 2), rare(1, 2), rare(2, 1), rare(3, 1)]
"""Nodes, and workers on each."""
worlds = pytest.mark.parametrize(("count", "workers"), WORLDS)
FEW = sums(("float32", 3001), ("float64", 1), ("int64", 2000))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to start an Aggregator. That alone ends no sums here."""
    monkeypatch.setattr(client, "AWAY_S", AWAY_S)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AggregatorProcess]]:
    with aggregators(tmp_path_factory.mktemp("nodes"), 3) as started:
        yield started


@worlds
def test_all_ranks_get_the_same_sums(nodes: list[AggregatorProcess], count: int, workers: int) -> None:
    ranks = Ranks(nodes[:count], workers, SEVERAL, 10)
    ranks.end()
    ranks.check_undisturbed()


@pytest.mark.parametrize("part_bytes", [4096, 5000, 1 << 20])
def test_keys_of_any_size_are_summed_in_parts_of_any_size(
    nodes: list[AggregatorProcess], part_bytes: int
) -> None:
    shapes = sums(("float64", 1), ("float64", 1024), ("float64", 1025), ("float32", 100_003), ("int32", 4097))
    ranks = Ranks(nodes[:2], 2, shapes, 3, plan=plan_of(nodes[:2], 2, part_bytes))
    ranks.end()
    ranks.check_undisturbed()


@pytest.mark.parametrize(("count", "workers"), [(2, 2), rare(3, 1)])
def test_half_precision_is_rounded_once_across_nodes_too(
    nodes: list[AggregatorProcess], count: int, workers: int
) -> None:
    pytest.importorskip("torch")
    ranks = Ranks(nodes[:count], workers, sums(("float16", 5001), ("bfloat16", 5001), ("float32", 10)), 3)
    ranks.end()
    ranks.check_undisturbed()


def test_an_old_generation_and_a_new_one_sum_side_by_side(nodes: list[AggregatorProcess]) -> None:
    old = Ranks(nodes[:2], 2, SEVERAL, 30, 0.01)
    new = Ranks(nodes[:2], 1, SEVERAL, 10)
    new.end()
    new.check_undisturbed()
    nodes[1].restart()
    old.end()
    old.check_undisturbed()


@pytest.mark.thorough
def test_a_key_of_200_megabytes_is_summed_while_aggregators_die(nodes: list[AggregatorProcess]) -> None:
    shapes = sums(("float32", 50_000_000), ("float32", 3001))
    ranks = Ranks(nodes[:2], 1, shapes, 2, plan=plan_of(nodes[:2], 1, 1 << 20))
    nodes[1].restart()
    ranks.end()
    ranks.check_undisturbed()


# --- deaths of Aggregators --------------------------------------------------------------------------------


def kill(nodes: Sequence[AggregatorProcess], drawn: random.Random) -> None:
    """Kill one Aggregator, or all at once. Who was killed a moment ago has come back before."""
    for each in nodes:
        each.wait()
    victims = nodes if drawn.random() < 0.4 else [drawn.choice(nodes)]
    for each in victims:
        each.kill()
    for each in victims:
        each.start()


@worlds
@pytest.mark.slow
def test_aggregators_deaths_change_no_bit(nodes: list[AggregatorProcess], count: int, workers: int) -> None:
    """Four deaths for each world: twenty in all, of one Aggregator or of all."""
    ranks = Ranks(nodes[:count], workers, SEVERAL, 120, 0.02)
    for drawn in at_random_instants(10 * count + workers, 4, 4.0):
        kill(nodes[:count], drawn)
        time.sleep(0.3)
    ranks.end()
    ranks.check_undisturbed()


@pytest.mark.parametrize(("count", "workers"), [(1, 4), (2, 2)])
def test_aggregators_may_die_while_keys_are_registered(
    nodes: list[AggregatorProcess], count: int, workers: int
) -> None:
    drawn = random.Random(count)
    for _ in range(4):
        ranks = Ranks(nodes[:count], workers, SEVERAL, 2)
        time.sleep(drawn.uniform(0, 0.02))
        kill(nodes[:count], drawn)
        ranks.end()
        ranks.check_undisturbed()


@worlds
@pytest.mark.thorough
def test_on_a_machine_where_threads_pause_anywhere_bits_are_the_same(
    tmp_path: Path, count: int, workers: int
) -> None:
    for seed in range(3):
        with aggregators(_folder(tmp_path, seed), count, jitter=seed) as jittery:
            ranks = Ranks(jittery, workers, SEVERAL, 20)
            for drawn in at_random_instants(seed, 3, 3.0):
                kill(jittery, drawn)
                time.sleep(0.3)
            ranks.end()
            ranks.check_undisturbed()


def test_without_an_aggregator_for_a_while_all_ranks_hear_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AWAY_S", 1.5)
    with aggregators(tmp_path, 2, hasty=True) as away:
        ranks = Ranks(away, 2, FEW, 10_000, 0.01)
        began = time.monotonic()
        away[1].kill()
        for each in ranks.all:
            assert each.through.wait(10)
        assert 1.4 < time.monotonic() - began < 4
        assert all("gone" in each.error and each.failures == [each.error] for each in ranks.all)


def test_an_aggregator_that_was_silent_for_longer_than_workers_wait_goes_on_with_all_of_them(
    nodes: list[AggregatorProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum of half precision imports PyTorch, which may come from a slow disk. Meanwhile it takes in
    no more than some of a worker's keys.
    """
    monkeypatch.setattr(client, "AWAY_S", 1.5)
    ranks = Ranks(nodes[:1], 2, sums(*(("float32", 3000 + number) for number in range(60))), 30, 0.01)
    os.kill(nodes[0].pid, signal.SIGSTOP)
    time.sleep(ANSWERS_WITHIN_S + 3)
    os.kill(nodes[0].pid, signal.SIGCONT)
    ranks.end()
    ranks.check_undisturbed()


def test_an_aggregator_that_is_started_beside_its_predecessors_socket_is_found(tmp_path: Path) -> None:
    with aggregators(tmp_path, 1) as only:
        before = only[0].place()
        socket_path = Path(only[0].socket())
        only[0].kill()
        assert socket_path.exists(), "nobody has removed it"
        only[0].start()
        only[0].wait()
        assert only[0].place() == before
        ranks = Ranks(only, 2, FEW, 2)
        ranks.end()
        ranks.check_undisturbed()


# --- deaths of workers ------------------------------------------------------------------------------------


@worlds
def test_the_sums_of_those_that_live_go_on_whoever_dies(
    nodes: list[AggregatorProcess], count: int, workers: int
) -> None:
    for seed in range(4):
        ranks = Ranks(nodes[:count], workers, SEVERAL, 40, 0.005)
        mortal = list(range(1, count * workers))
        for drawn in at_random_instants(seed, 2, 0.4):
            if mortal:
                ranks.dies(mortal.pop(drawn.randrange(len(mortal))))
        ranks.end()
        ranks.check()


@pytest.mark.parametrize(("count", "workers"), [(2, 1), rare(3, 2)])
def test_when_all_workers_of_a_node_are_gone_its_parts_have_another_root(
    nodes: list[AggregatorProcess], count: int, workers: int
) -> None:
    for seed in range(4):
        ranks = Ranks(nodes[:count], workers, SEVERAL, 40, 0.005)
        for drawn in at_random_instants(seed, 1, 0.3):
            node = drawn.randrange(1, count)
            for rank in ranks.plan.nodes[node].ranks:
                ranks.dies(rank)
        ranks.end()
        ranks.check()
        assert all(len(who) >= (count - 1) * workers for who in _last(ranks))


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "workers"), [(1, 4), (2, 2), (3, 1), (3, 2)])
def test_deaths_of_workers_and_aggregators_may_come_together(
    tmp_path: Path, count: int, workers: int
) -> None:
    for seed in range(5):
        with aggregators(_folder(tmp_path, seed), count, jitter=seed if seed % 2 else None) as mixed:
            ranks = Ranks(mixed, workers, SEVERAL, 40, 0.01)
            mortal = list(range(1, count * workers))
            for drawn in at_random_instants(seed, 2, 1.0):
                if drawn.random() < 0.7 and mortal:
                    ranks.dies(mortal.pop(drawn.randrange(len(mortal))))
                kill(mixed, drawn)
                time.sleep(0.3)
            ranks.end()
            ranks.check()


def test_a_killed_process_counts_with_all_of_a_part_or_with_nothing(nodes: list[AggregatorProcess]) -> None:
    """Rank 2 is a process, which dies by kill -9 in the middle of whatever it does."""
    for seed in range(3):
        plan = plan_of(nodes[:2], 2)
        with RankProcess(plan, 2, nodes[1].socket(), FEW) as process:
            ranks = Ranks(nodes[:2], 2, FEW, 60, 0.005, plan=plan, apart={2})
            for _ in at_random_instants(seed, 1, 0.4):
                process.kill()
            ranks.end()
        ranks.check()


def _folder(path: Path, seed: int) -> Path:
    (path / str(seed)).mkdir()
    return path / str(seed)


def _last(ranks: Ranks) -> tuple[frozenset[int], ...]:
    first = ranks.all[0]
    return first.results[0, first.rounds][1]
