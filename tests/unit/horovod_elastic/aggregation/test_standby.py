"""A node's second Aggregator waits for the first one's death, and is there at once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from summing_world import AggregatorProcess, Ranks, aggregators, plan_of

from horovod_elastic.agent import aggregator
from horovod_elastic.agent.aggregator import PROCESS_IDS, LocalAggregator
from horovod_elastic.aggregation import place
from horovod_elastic.aggregation.memory import KeyShape
from horovod_elastic.aggregation.plan import PlannedNode

pytestmark = pytest.mark.processes


def test_a_nodes_second_aggregator_takes_the_place_of_one_that_dies(tmp_path: Path) -> None:
    with aggregators(tmp_path, 2, hasty=True) as nodes:
        first = nodes[0]
        first.wait()
        before = first.place()
        second = AggregatorProcess(first.folder, hasty=True)
        try:
            ranks = Ranks(nodes, 2, [KeyShape("gradients", "float32", 1 << 18)], 100, 0.01)
            time.sleep(1)
            assert place.holder(first.folder) == first.pid
            first.kill()
            ranks.end()
            ranks.check_undisturbed()
            assert place.holder(first.folder) == second.pid
            assert first.place() == before, "the other nodes find it where the first one was"
        finally:
            second.kill()


class FakeSupervisor:
    """What the supervisor is told."""

    def __init__(self, folder: Path, kept: frozenset[str] = frozenset()) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.keeps = kept.__contains__

    def start(self, order: Any, command: list[str], *_: Any, deaf: bool) -> None:
        self.told.append(f"start {order.worker_id}")
        self.command = command

    def forget(self, worker_id: str) -> None:
        self.told.append(f"forget {worker_id}")


def local(supervisor: FakeSupervisor) -> LocalAggregator:
    return LocalAggregator(cast(Any, supervisor), "n1")


def test_an_agent_starts_both_and_each_again_that_ends(tmp_path: Path) -> None:
    supervisor = FakeSupervisor(tmp_path)
    node = local(supervisor)
    node.start()
    node.ended(PROCESS_IDS[1], -9)
    one, other = PROCESS_IDS
    assert supervisor.told == [f"start {one}", f"start {other}", f"forget {other}", f"start {other}"]


def test_an_agent_that_comes_later_starts_only_what_is_missing(tmp_path: Path) -> None:
    """As after an upgrade from a release with one process."""
    supervisor = FakeSupervisor(tmp_path, frozenset(PROCESS_IDS[:1]))
    local(supervisor).start()
    assert supervisor.told == [f"start {PROCESS_IDS[1]}"]


def test_an_agent_gives_up_on_aggregators_that_always_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aggregator, "STARTS_AGAIN", 2)
    supervisor = FakeSupervisor(tmp_path)
    node = local(supervisor)
    for _ in range(4):
        node.ended(PROCESS_IDS[0], 1)
    assert supervisor.told.count(f"start {PROCESS_IDS[0]}") == 2
    assert "not started again" in capsys.readouterr().err


def test_in_a_satellite_without_workers_the_leader_hears_where_it_serves(tmp_path: Path) -> None:
    supervisor = FakeSupervisor(tmp_path)
    node = LocalAggregator(cast(Any, supervisor), "n1", workers=False)
    node.start()
    assert "--no-workers" in supervisor.command
    assert node.place() is None
    place.write(tmp_path, place.AggregatorPlace("n1", 7000, "t"))
    told = node.place()
    assert told is not None
    assert (told.host, told.port, told.token, told.starts_again) == ("n1", 7000, "t", 0)
    node.ended(PROCESS_IDS[0], -9)
    again = node.place()
    assert again is not None
    assert again.starts_again == 1
    beside_workers = local(supervisor)
    beside_workers.start()
    assert "--no-workers" not in supervisor.command
    assert beside_workers.place() is None


def test_an_aggregator_without_workers_sums_for_the_other_nodes(tmp_path: Path) -> None:
    with aggregators(tmp_path, 2, hasty=True) as nodes:
        alone = AggregatorProcess(tmp_path / "alone", hasty=True, workers=False)
        try:
            at = alone.place()
            plan = plan_of(nodes, 2)
            assigned = PlannedNode("alone", (), at.host, at.port, at.token)
            plan = replace(plan, nodes=(*plan.nodes, assigned), version=1)
            ranks = Ranks(nodes, 2, [KeyShape("gradients", "float32", 1 << 16)], 5, plan=plan)
            ranks.end()
            ranks.check_undisturbed()
            assert not place.socket_path(alone.folder).exists()
            other = replace(assigned, token="another job's")
            plan = plan_of(nodes, 2)
            refused = replace(plan, nodes=(*plan.nodes, other), version=1)
            ranks = Ranks(nodes, 2, [KeyShape("gradients", "float32", 1 << 16)], 5, plan=refused)
            ranks.end()
            ranks.check_undisturbed()
            assert "not this Aggregator's" in alone.log()
        finally:
            alone.kill()
