"""Inference servers of a cluster in virtual time: used by their own cluster or by training, never by both."""

from __future__ import annotations

import pytest
from test_simulated_cluster import PlainTrainer

from flexo.clusters.base import ActionRefused, ImpossiblePlan
from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.clusters.simulated.nodes import BORROWED, INFERENCE, NodeGroup, make_nodes
from flexo.model.nodes import Node
from flexo.model.plans import Allocate
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo_protos.resources import Resources


class Fixture:
    """Two training nodes n1, n2 and three inference servers i1 to i3, of 4 GPUs each; one job."""

    def __init__(self) -> None:
        servers = make_nodes((NodeGroup(3, 4, "t4", "i"),), INFERENCE)
        self.cluster = SimulatedCluster(
            make_nodes((NodeGroup(2, 4, "v100", "n"),)), PlainTrainer(), lambda: 5.0, inference=servers
        )
        assert self.cluster.inference is not None
        self.servers = self.cluster.inference
        job = TrainingJob(JobKey(1), "ada", Range(1, 8), Resources(1, 1), 0.0, heterogeneous=True)
        self.cluster.submit(job)

    def place(self, *shares: tuple[str, int]) -> None:
        wanted = tuple(NodeShare(node, workers) for node, workers in shares)
        self.cluster.allocate([Allocate(JobKey(1), wanted, "the test says so")], [])

    def node(self, name: str) -> Node:
        return next(node for node in self.cluster.observe().nodes if node.name == name)

    def partition(self, name: str) -> frozenset[str]:
        return next(each.nodes for each in self.cluster.observe().partitions if each.name == name)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_a_server_that_is_lent_is_in_both_partitions_and_one_that_is_not_in_its_own(fixture: Fixture):
    fixture.cluster.lend(frozenset({"i2"}))
    assert fixture.partition(BORROWED) == {"i2"}
    assert fixture.partition(INFERENCE) == {"i1", "i2", "i3"}
    assert fixture.node("i2").partitions == {BORROWED, INFERENCE}
    assert fixture.node("i1").partitions == {INFERENCE}


def test_partitions_are_the_same_object_until_something_is_lent(fixture: Fixture):
    before = fixture.cluster.observe().partitions
    assert fixture.cluster.observe().partitions is before
    fixture.cluster.lend(frozenset({"i1"}))
    assert fixture.cluster.observe().partitions != before


def test_no_job_is_placed_on_a_server_that_is_not_lent(fixture: Fixture):
    with pytest.raises(ImpossiblePlan, match=r"job 1 .*2 workers on i1\b.*not lent"):
        fixture.place(("i1", 2))
    fixture.cluster.lend(frozenset({"i1"}))
    fixture.place(("i1", 2))
    assert fixture.cluster.gpus_held_on_loan == 2


def test_a_job_stays_on_a_server_that_is_not_lent_any_more_and_does_not_grow_there(fixture: Fixture):
    fixture.cluster.lend(frozenset({"i1"}))
    fixture.place(("i1", 2))
    fixture.cluster.lend(frozenset())
    fixture.place(("i1", 2), ("n1", 1))
    with pytest.raises(ImpossiblePlan, match="not lent"):
        fixture.place(("i1", 3))
    assert fixture.servers.away == 1
    fixture.place(("n1", 1))
    assert fixture.servers.away == 0


def test_inference_uses_what_is_not_lent_and_left_and_no_more(fixture: Fixture):
    fixture.cluster.lend(frozenset({"i1", "i2"}))
    fixture.place(("i1", 2))
    fixture.cluster.lend(frozenset({"i2"}))
    assert fixture.servers.use(3) == 1
    assert fixture.servers.busy == {"i3"}
    fixture.place(("n1", 1))
    assert fixture.servers.use(3) == 2
    assert fixture.servers.busy == {"i1", "i3"}


def test_inference_gives_up_what_it_took_last(fixture: Fixture):
    assert fixture.servers.use(3) == 3
    assert fixture.servers.use(1) == 1
    assert fixture.servers.busy == {"i1"}
    assert fixture.node("i1").gpus_idle == 0
    assert fixture.node("i3").gpus_idle == 4


def test_a_server_in_use_or_unknown_is_not_lent(fixture: Fixture):
    fixture.servers.use(1)
    with pytest.raises(ActionRefused, match=r"in use\b.*: i1$"):
        fixture.cluster.lend(frozenset({"i1"}))
    with pytest.raises(ActionRefused, match=r"no servers\b.*: n1, x$"):
        fixture.cluster.lend(frozenset({"x", "n1"}))
    assert fixture.servers.lent == frozenset()


def test_what_inference_takes_back_is_empty_and_its_jobs_wait(fixture: Fixture):
    fixture.cluster.lend(frozenset({"i1", "i2"}))
    fixture.place(("i1", 2), ("n1", 1))
    assert fixture.cluster.take_back("i1") == (JobKey(1),)
    assert fixture.servers.lent == {"i2"}
    assert fixture.cluster.gpus_held_on_loan == 0
    assert fixture.node("n1").gpus_idle == 4
    assert fixture.cluster.observe().training[0].shares == ()


def test_without_an_inference_cluster_nothing_can_be_lent():
    cluster = SimulatedCluster(make_nodes((NodeGroup(1, 4),)), PlainTrainer(), lambda: 0.0)
    with pytest.raises(ActionRefused, match="no inference cluster"):
        cluster.lend(frozenset({"n1"}))


def test_a_server_with_a_job_in_second_seats_is_not_yet_the_inference_clusters_again(fixture: Fixture):
    fixture.cluster.lend(frozenset({"i1"}))
    seats = Allocate(JobKey(1), (NodeShare("i1", 2),), "the test says so", shared=True)
    fixture.cluster.allocate([seats], [])
    fixture.cluster.lend(frozenset())
    assert fixture.servers.away == 1
    assert fixture.cluster.gpus_held_on_loan == 2
    assert fixture.servers.use(3) == 2
    fixture.cluster.end(JobKey(1))
    assert fixture.servers.use(3) == 3
