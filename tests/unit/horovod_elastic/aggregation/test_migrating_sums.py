"""A generation's sums migrate to other Aggregators of a pool, whoever dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from pool_processes import PoolProcess, pool, wait_for
from raw_peers import Peer, PretendedNode, to_node
from summing_world import (
    BOUND_S,
    AggregatorProcess,
    Ranks,
    aggregators,
    at_random_instants,
    begin,
    plan_of,
    sums,
)
from thorough import rare

from flexo_protos.aggregation_token import KEY_BYTES, AggregationToken, sign
from horovod_elastic.aggregation import client, control
from horovod_elastic.aggregation.client import AggregationClient
from horovod_elastic.aggregation.control import AssignedAggregator, Assignment
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.migration import Meeting, Migration
from horovod_elastic.aggregation.plan import Plan
from horovod_elastic.aggregation.server import Server

pytestmark = pytest.mark.processes
KEYS = sums(("float32", 30_001), ("float64", 1), ("int64", 2000))
ROUNDS, PAUSE_S = 100, 0.05
"""Long enough for several assignments, each of which nodes notice within a second."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to start an Aggregator. That alone ends no sums here."""
    monkeypatch.setattr(client, "AWAY_S", 20.0)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[AggregatorProcess]]:
    with aggregators(tmp_path, 3, jitter=7) as started:
        yield started


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[PoolProcess]]:
    with pool(tmp_path, 3) as started:
        yield started


def of(each: PoolProcess) -> AssignedAggregator:
    return AssignedAggregator("127.0.0.1", each.port, each.token())


class Job:
    """Ranks on these nodes, whose sums may migrate."""

    def __init__(self, nodes: Sequence[AggregatorProcess], workers: int = 1, rounds: int = ROUNDS) -> None:
        self.nodes = nodes
        self.ranks = Ranks(nodes, workers, KEYS, rounds, PAUSE_S, plan=plan_of(nodes, workers))
        self.version = 0

    def assign(self, *assigned: AssignedAggregator) -> None:
        self.version += 1
        control.assign(self.nodes[0].folder, self.version, assigned)

    def versions(self) -> list[int]:
        used = [control.usage(node.folder) for node in self.nodes]
        return [0 if each is None else each.version for each in used]

    def migrate(self, *assigned: AssignedAggregator) -> None:
        """Assign these, and wait until all nodes use them."""
        self.assign(*assigned)
        wait_for(lambda: self.versions() == [self.version] * len(self.nodes))
        assert not any(rank.through.is_set() for rank in self.ranks.all), "the ranks ended before"


@pytest.mark.parametrize(("count", "workers"), [(3, 1), rare(1, 2)])
def test_sums_have_the_same_bits_while_they_migrate_to_a_pool_within_it_and_back_to_the_nodes(
    nodes: list[AggregatorProcess], three: list[PoolProcess], count: int, workers: int
) -> None:
    one, two, other = map(of, three)
    job = Job(nodes[:count], workers)
    for assigned in ([one], [two, other], []):
        job.migrate(*assigned)
    job.ranks.end()
    job.ranks.check_undisturbed()


def test_the_new_aggregator_sums_and_the_old_one_has_nothing_left_of_the_job(
    nodes: list[AggregatorProcess],
) -> None:
    key = secrets.token_bytes(KEY_BYTES)
    servers = [Server("", "127.0.0.1", 0, PoolDoor(key)) for _ in range(2)]
    token = sign(AggregationToken("17", "somebody", 1 << 30, int(time.time()) + 600), key)
    job = Job(nodes[:2])
    for server in servers:
        threading.Thread(target=server.serve, daemon=True).start()
        job.migrate(AssignedAggregator("127.0.0.1", server.port, token))
    wait_for(lambda: servers[1].used()["17"].sums)
    wait_for(lambda: not servers[0].used())
    job.ranks.end()
    job.ranks.check_undisturbed()


@pytest.mark.parametrize("how", [signal.SIGKILL, rare(signal.SIGSTOP)])
def test_an_aggregator_that_dies_as_it_is_assigned_costs_no_sum(
    nodes: list[AggregatorProcess], three: list[PoolProcess], how: signal.Signals
) -> None:
    one, two, other = map(of, three)
    job = Job(nodes)
    job.migrate(one)
    job.assign(two, other)
    for _ in at_random_instants(3, 1, 1.5):
        os.kill(three[1].process.pid, how)
    job.ranks.end()
    job.ranks.check_undisturbed()


def test_the_old_aggregators_may_die_as_others_are_assigned(
    nodes: list[AggregatorProcess], three: list[PoolProcess]
) -> None:
    one, two, other = map(of, three)
    job = Job(nodes)
    job.migrate(one, two)
    job.assign(other)
    for drawn in at_random_instants(4, 2, 1.5):
        os.kill(three[drawn.randrange(2)].process.pid, signal.SIGKILL)
    job.ranks.end()
    job.ranks.check_undisturbed()


@pytest.mark.parametrize("seed", [1, rare(2)])
def test_aggregators_of_the_nodes_may_die_at_any_instant_of_a_migration(
    nodes: list[AggregatorProcess], three: list[PoolProcess], seed: int
) -> None:
    one, two, other = map(of, three)
    job = Job(nodes, rounds=2 * ROUNDS)
    to = [[one], [two, other], [], [one, two], [other]]
    for drawn, assigned in zip(at_random_instants(seed, len(to), 10.0), to, strict=True):
        job.assign(*assigned)
        time.sleep(drawn.uniform(0, 1.2))
        nodes[drawn.randrange(len(nodes))].restart()
    job.ranks.end()
    job.ranks.check_undisturbed()


def test_workers_may_die_at_any_instant_of_a_migration(
    nodes: list[AggregatorProcess], three: list[PoolProcess]
) -> None:
    one, two, other = map(of, three)
    job = Job(nodes, workers=2)
    job.migrate(one)
    for rank, assigned in ((3, [two, other]), (5, []), (4, [one])):
        job.assign(*assigned)
        time.sleep(0.7)
        job.ranks.dies(rank)
    job.ranks.end()
    job.ranks.check()


def test_if_the_assigned_aggregators_are_not_there_the_nodes_sum(
    tmp_path: Path, nodes: list[AggregatorProcess]
) -> None:
    with pool(tmp_path, 1) as (gone,):
        assigned = of(gone)
    job = Job(nodes[:2])
    job.migrate(assigned)
    job.ranks.end()
    job.ranks.check_undisturbed()


def test_a_generation_does_not_migrate_to_an_aggregator_that_it_uses_already(
    nodes: list[AggregatorProcess], three: list[PoolProcess]
) -> None:
    one, two, _ = map(of, three)
    job = Job(nodes[:1], workers=2)
    job.migrate(one)
    job.assign(one, two)
    job.ranks.end()
    job.ranks.check_undisturbed()
    assert job.versions() == [1]


# --- frame by frame -----------------------------------------------------------------------------------------

KEY = sums(("float32", 1024))[0]
"""A key of one part, whose root is node 0."""
ONES = np.ones(1024, dtype=np.float32)


def told(*aggregators: PretendedNode) -> bytes:
    """The first assignment, of these."""
    places = [each.place() for each in aggregators]
    assigned = [AssignedAggregator(each.host, each.port, each.token) for each in places]
    return control.assignment_to_text(Assignment(1, tuple(assigned))).encode()


def test_sums_under_way_go_to_the_new_aggregators_once_all_have_met(nodes: list[AggregatorProcess]) -> None:
    """Node 0 is real, and has one worker. Node 1 and the new Aggregators are the test's."""
    node, other, new = nodes[0], PretendedNode(), [PretendedNode(), PretendedNode()]
    plan = plan_of([node, other], 1)  # type: ignore[list-item]
    worker = AggregationClient(node.socket(), plan, 0, lambda _: None)
    meeting = threading.Thread(target=worker.connect, args=(BOUND_S, lambda: False))
    meeting.start()
    with contextlib.ExitStack() as closed:
        for each in (other, *new):
            closed.callback(each.close)
        down = other.accept(plan)
        up = to_node(plan, 1, 0)
        meeting.join(BOUND_S)
        key = worker.key(KEY)
        key.input.numbers[:] = 1
        wait = begin(worker, key)
        up.send(Frame(Kind.MIGRATE), told(*new))
        roots = [each.accept(plan) for each in new]
        for root in roots:
            assert root.until(Kind.REGISTER)[0].key == 0
            root.until(Kind.MET)
        roots[1].send(Frame(Kind.MET))
        assert roots[0].silent(Kind.PUSH), "the other one has not met all nodes"
        roots[0].send(Frame(Kind.MET))
        assert roots[0].until(Kind.PUSH)[0][1:4] == (0, 0, 1)
        up.register(0, KEY)
        up.push(0, 0, 1, [1], 5 * ONES)  # node 1 does not know yet: it is not summed
        down.result(0, 0, 1, range(2), 6 * ONES)
        assert roots[0].silent(Kind.HAVE)
        roots[0].result(0, 0, 1, range(2), 2 * ONES)
        wait()
        assert key.result is not None
        assert key.result.numbers[0] == 2
        assert worker.plan.version == 1
        worker.close(in_order=True)


def test_a_pool_aggregator_migrates_for_nobody(
    nodes: list[AggregatorProcess], three: list[PoolProcess]
) -> None:
    """Else whoever has a token could have it connect anywhere."""
    plan = control.with_assignment(plan_of(nodes[:1], 1), Assignment(1, (of(three[0]),)))
    elsewhere = PretendedNode()
    peer: Peer = to_node(plan, 0, 1)
    peer.send(Frame(Kind.MIGRATE), told(elsewhere))
    assert peer.closed()
    elsewhere.close()


def test_a_migration_is_due_once_all_aggregators_that_live_have_met_all_nodes() -> None:
    migration = Migration(Plan("17", 1, ()), {3: 2, 4: 3})
    migration.all_met(4)
    assert not migration.is_due(lambda root: True)
    assert migration.is_due(lambda root: root != 3)
    migration.all_met(3)
    assert migration.is_due(lambda root: True)
    assert Migration(Plan("17", 1, ()), {}).is_due(lambda root: True)


def test_all_nodes_hear_once_that_they_have_met_and_one_that_comes_again_hears_it_again() -> None:
    meeting = Meeting()
    assert meeting.comes(0, [0, 1]) == []
    assert meeting.comes(1, [0, 1]) == [0, 1]
    assert meeting.comes(0, [0, 1]) == [0]
    assert meeting.look([0, 1]) == []


def test_a_node_that_is_gone_is_not_waited_for_in_a_meeting() -> None:
    meeting = Meeting()
    assert meeting.comes(0, [0, 1]) == []
    assert meeting.look([0]) == [0]
