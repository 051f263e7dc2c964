"""The loop with servers on loan: lending, policy, book and event store are the real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import ADA, World
from lending_world import INFERENCE, LendingCluster, LendingWorld
from says import says

from flexo.clusters.base import ClusterState, ClusterUnreachable
from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo.config import Settings
from flexo.control.leaders import Saved
from flexo.controller import Controller
from flexo.loaning.demand import DemandSource
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingSettings
from flexo.loaning.orchestrator import Rules
from flexo.model.loans import Demand, LoanState
from flexo.model.nodes import Partition
from flexo.model.plans import Allocate
from flexo.model.queue import ElasticRequest, JobKey
from flexo.model.ranges import Range
from flexo.model.training import TrainingJob
from flexo.policies import registry
from flexo.policies.lyra import Lyra
from flexo_protos.resources import Resources
from flexo_simulation.silence import NoEventStore, NoLeaders

KEY = JobKey(1)


@pytest.fixture
def world(tmp_path) -> LendingWorld:
    return LendingWorld(tmp_path)


def test_satellites_go_to_servers_on_loan_in_the_borrowed_partition(world: LendingWorld):
    leader = world.elastic()
    world.cluster.inference(90, "i3")
    world.go(30)
    assert world.cluster.borrowed == {"i1", "i2"}
    assert world.cluster.satellites() == [("i1", 4), ("i2", 4)]
    assert {offer.partition for offer in leader.told[-1]} == {"borrowed"}


def test_the_policy_knows_servers_on_loan_by_the_partition_that_is_configured(tmp_path, monkeypatch):
    made, make = [], registry.make
    monkeypatch.setattr(registry, "make", lambda *name, **told: made.append(make(*name, **told)) or made[-1])
    LendingWorld(tmp_path, {"partition": "lent"})
    assert [policy.inference for policy in made if isinstance(policy, Lyra)] == ["lent"]


def test_satellites_on_loan_may_have_a_partition_of_their_own(tmp_path):
    world = LendingWorld(tmp_path, {"satellite_partition": "borrowed-flex"})
    world.cluster.satellites_in = "borrowed-flex"
    observe = world.cluster.observe

    def with_satellites() -> ClusterState:
        state = observe()
        both = (*state.partitions, Partition("borrowed-flex", 1, world.cluster.borrowed))
        return replace(state, partitions=both)

    world.cluster.observe = with_satellites  # type: ignore[method-assign]
    leader = world.elastic()
    world.go(30)
    assert {offer.partition for offer in leader.told[-1]} == {"borrowed-flex"}


def test_a_job_gets_no_satellite_on_a_server_of_another_gpu_type(world: LendingWorld):
    world.cluster.types = {"i1": "T4", "i2": "T4", "i3": "V100", "t1": "V100"}
    world.elastic()
    world.go(60)
    assert world.cluster.borrowed == {"i1", "i2", "i3"}
    assert world.cluster.satellites() == [("i3", 4)]
    sentences = "; ".join(world.controller.explain(1))
    assert says(sentences, "i1", "on loan", "T4")


@pytest.mark.parametrize("named", ["", "V100"])
def test_a_heterogeneous_job_gets_servers_of_any_type_and_its_leader_hears_how_fast_all_its_nodes_are(
    world: LendingWorld, named: str
):
    """Also if its base has asked for a type."""
    world.cluster.types = {"i1": "T4", "i2": "T4", "i3": "V100", "t1": "V100"}
    leader = world.job(1, "4-16", "t1", elastic=ElasticRequest(Range(4, 16), heterogeneous=True))
    leader.shape = replace(leader.shape, gpu_type=named)
    world.go(90)
    assert world.cluster.satellites() == [("i1", 4), ("i2", 4), ("i3", 4)]
    told = {each.node: each.speed for each in leader.speeds}
    assert told == {"i1": 1 / 3, "i2": 1 / 3, "i3": 1.0, "t1": 1.0}
    assert says("; ".join(world.controller.explain(1)), "several GPU types")


def test_leaders_of_all_other_jobs_hear_nothing_of_speeds(world: LendingWorld):
    world.cluster.types = {"i1": "T4", "i2": "T4", "i3": "T4", "t1": "V100"}
    leader = world.job(1, "4-12", "t1", elastic=ElasticRequest(Range(4, 12), fungible=True))
    world.go(60)
    assert (world.cluster.satellites(), leader.speeds) == ([], ())


def test_speeds_are_what_the_site_declares(tmp_path):
    world = LendingWorld(tmp_path, gpu_speeds={"t4": 0.25, "v100": 2.0})
    world.cluster.types = {"i1": "T4", "i2": "V100", "i3": "A100", "t1": "V100"}
    leader = world.job(1, "4-16", "t1", elastic=ElasticRequest(Range(4, 16), heterogeneous=True))
    world.go(90)
    assert {each.node: each.speed for each in leader.speeds} == {"i1": 0.25, "i2": 2.0, "i3": 1.0, "t1": 2.0}


def test_when_inference_needs_a_server_its_satellites_are_scaled_in_and_nothing_else(world: LendingWorld):
    world.elastic()
    world.fungible(60, "i1")
    world.cluster.borrowed = frozenset({"i1"})
    world.go(40)
    assert world.cluster.satellites() == [("i1", 2), ("i2", 4), ("i3", 2)] or len(world.cluster.satellites())
    world.cluster.inference(90)
    world.go(2)
    closed = [node for node, state in world.loans.items() if state is LoanState.RECLAIMING]
    assert len(closed) == 1
    assert closed != ["i1"]
    world.go(2)
    assert closed[0] not in {node for node, _ in world.cluster.satellites()}
    world.cluster.start_inference()
    world.go(30)
    assert closed[0] not in world.loans
    assert closed[0] not in world.cluster.borrowed
    assert world.cluster.requeued == []
    (past,) = world.event_store.past_loans(10)
    assert past.node == closed[0]
    assert past.workers_scaled_in > 0
    assert past.bases_preempted == 0
    assert past.reclaim_s is not None
    assert past.reclaim_s <= 4


def test_no_satellite_goes_to_a_server_that_is_called_back(world: LendingWorld):
    world.elastic("4-16")
    world.go(30)
    world.cluster.inference(90)
    for _ in range(20):
        world.go(2)
        closed = {node for node, state in world.loans.items() if state is not LoanState.LENT}
        assert not closed & {node for node, _ in world.cluster.satellites()}
        world.cluster.start_inference()


def test_a_base_is_requeued_when_there_is_no_other_way_and_only_then(world: LendingWorld):
    for index, node in enumerate(INFERENCE):
        world.fungible(60 + index, node)
    world.cluster.borrowed = frozenset(INFERENCE)
    world.go(20)
    world.cluster.inference(90)
    world.go(110)
    assert world.cluster.requeued == []
    world.go(20)
    assert len(world.cluster.requeued) == 1
    world.cluster.start_inference()
    world.go(60)
    assert len(world.cluster.requeued) == 1
    assert len(world.texts("preempt")) == 1


def test_a_base_with_a_leader_is_asked_for_a_checkpoint_before_it_is_requeued(tmp_path):
    world = LendingWorld(tmp_path, {"checkpoint": "/scratch/%u/flexo-%j.pt"})
    world.cluster.borrowed = frozenset(INFERENCE)
    for index, node in enumerate(INFERENCE):
        world.job(60 + index, "2-2", node, partitions=("borrowed",))
    world.go(10)
    world.cluster.inference(90)
    world.go(70)
    ((key, path),) = world.leaders.asked_to_save
    assert path == f"/scratch/ada/flexo-{key.job_id}.pt"
    assert world.cluster.requeued == []
    world.leaders.saved.append(Saved(key, "wrote it after 100 batches"))
    world.go(60)
    assert world.cluster.requeued == [key.job_id]
    assert world.texts("save")[-1] == "wrote it after 100 batches"


def test_a_satellite_whose_leader_is_gone_is_cancelled_before_the_deadline(world: LendingWorld):
    leader = world.elastic()
    world.go(30)
    leader.submits = False  # neither submits nor dismisses any more
    world.cluster.inference(90)
    world.cluster.inference(91)
    world.cluster.inference(92)
    world.go(150)
    assert world.cluster.cancelled == []
    world.go(30)
    assert world.cluster.cancelled
    assert world.cluster.satellites() == []


def test_an_edit_that_is_refused_is_trouble_and_takes_nothing_from_anybody(world: LendingWorld):
    world.cluster.refuses_edits = "scontrol: Access/permission denied"
    world.elastic()
    world.go(40)
    assert "Access/permission denied" in world.controller.status().trouble
    assert world.cluster.satellites() == []
    assert world.cluster.borrowed == frozenset()
    world.cluster.refuses_edits = ""
    world.go(40)
    assert world.cluster.borrowed == set(INFERENCE)
    assert world.cluster.satellites()


def test_after_a_restart_the_books_are_right_and_the_deadline_stands(world: LendingWorld):
    for index, node in enumerate(INFERENCE):
        world.fungible(60 + index, node)
    world.cluster.borrowed = frozenset(INFERENCE)
    world.go(20)
    world.cluster.inference(90)
    world.go(40)
    before = world.controller.loans().loans
    world.restart()
    assert world.controller.loans().loans == before
    world.go(4)
    assert world.controller.loans().loans == before
    world.go(90)
    assert len(world.cluster.requeued) == 1


def test_a_lost_event_store_loses_only_since_when_and_why(world: LendingWorld):
    world.elastic()
    world.go(30)
    satellites = world.cluster.satellites()
    world.event_store.close()
    for file in world.directory.glob("journal.sqlite*"):
        file.unlink()
    world.restart()
    world.go(10)
    assert set(world.loans) == set(INFERENCE)
    assert world.cluster.satellites() == satellites
    assert says(world.controller.loans().loans[0].why, "memory", "gone")


def test_a_dry_run_lends_nothing_and_says_what_it_would(tmp_path):
    world = LendingWorld(tmp_path, dry_run=True)
    world.elastic()
    world.go(60)
    assert world.cluster.edits == []
    assert world.loans == {}
    [text] = world.texts("demand")
    assert says(text, "would lend 3 servers", "0.0 of its 3 servers", "no forecast", "0.0 with headroom")


def test_a_mistake_of_lendings_is_trouble_and_leases_are_extended_still(world: LendingWorld, monkeypatch):
    world.elastic()
    world.go(30)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("so many servers")

    monkeypatch.setattr("flexo.loaning.lending.decide", fail)
    world.go(200)
    assert world.cluster.extended
    assert "lending made a mistake: ZeroDivisionError" in world.controller.loans().reading.trouble
    assert world.texts("trouble") == ["lending made a mistake: ZeroDivisionError: so many servers"]


@pytest.mark.parametrize("error", [ZeroDivisionError("so it is"), ClusterUnreachable("sudo: no such file")])
def test_an_edit_that_fails_in_any_other_way_ends_no_lease_and_lends_nothing(
    world: LendingWorld, monkeypatch, error: Exception
):
    world.elastic()
    world.cluster.inference(90, "i3")
    world.go(30)
    before = world.cluster.borrowed
    assert before == {"i1", "i2"}

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(world.cluster, "lend", fail)
    world.cluster.queue.pop(90)
    world.go(200)
    assert world.cluster.extended
    assert world.cluster.borrowed == before
    assert any(str(error) in text for text in world.texts("trouble"))
    world.cluster.lend = LendingCluster.lend.__get__(world.cluster)
    world.go(20)
    assert world.cluster.borrowed == set(INFERENCE)


def test_jobs_on_loan_are_told_so(world: LendingWorld):
    leader = world.elastic()
    world.go(30)
    assert says(" ".join(world.controller.explain(1)), "on loan", "i1, i2")
    leader.submits = False
    world.cluster.inference(90)
    world.cluster.inference(91)
    world.cluster.inference(92)
    world.controller.cycle()
    world.controller.cycle()
    assert any("is called back" in sentence for sentence in world.controller.explain(1))


def test_demand_is_remembered_for_the_forecast(world: LendingWorld):
    world.cluster.inference(90, "i3")
    world.go(60)
    assert {demand.servers for demand in world.event_store.demand(0.0, 1.0)} == {1.0}


def test_without_loaning_there_is_nothing_of_it(tmp_path):
    world = World(tmp_path)
    world.job()
    world.go(10)
    assert world.controller.loans() is None
    assert world.controller.status().loans is None


def test_a_satellite_of_the_flexod_before_on_a_server_on_loan_is_in_its_partition(world: LendingWorld):
    leader = world.elastic()
    world.cluster.starts = False
    world.go(14)
    assert {offer.partition for offer in leader.told[-1]} == {"borrowed"}
    world.restart()
    world.go(2)
    assert {offer.partition for offer in leader.told[-1]} <= {"borrowed", "flex"}
    assert leader.owner == ADA


# On a cluster that allocates.


class PlainTrainer:
    def reshare(self, job: TrainingJob, allocation: Allocate) -> TrainingJob:
        return replace(job, shares=allocation.shares, base=())

    def drop(self, job: TrainingJob) -> None:
        raise AssertionError


class Needs(DemandSource):
    """What a test says is needed."""

    def __init__(self) -> None:
        self.servers = 0.0

    def read(self, now, nodes, jobs) -> Demand:
        return Demand(now, self.servers, "the test")


class AllocatingWorld:
    """One training node and two inference servers of 4 GPUs, in virtual time, under a real policy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.demand = Needs()
        self.cluster = SimulatedCluster(
            make_nodes((NodeGroup(1, 4, name="t"),)),
            PlainTrainer(),
            lambda: self.now,
            inference=make_nodes((NodeGroup(2, 4, name="i"),), "infer"),
        )
        rules = Rules(headroom_servers=0.0, hysteresis_servers=0.0, interval_s=10.0, rest_s=0.0)
        self.controller = Controller(
            Settings(),
            self.cluster,
            NoLeaders(),
            NoEventStore(),
            policy=registry.make("lyra"),
            clock=lambda: self.now,
            lending=Lending(LendingSettings(rules=rules, edit_interval_s=0.0), self.demand),
        )

    def submit(self, job_id: int, workers: str) -> None:
        self.cluster.submit(
            TrainingJob(JobKey(job_id), "ada", Range.parse(workers), Resources(1, 1), self.now)
        )

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 5.0
            self.controller.turn()

    def on(self, node: str) -> int:
        jobs = self.cluster.observe().training
        return sum(share.workers for job in jobs for share in job.shares if share.node == node)


def test_jobs_in_virtual_time_use_servers_on_loan_and_leave_them_when_called_back():
    world = AllocatingWorld()
    world.submit(1, "4-12")
    world.go(30)
    assert world.on("i1") + world.on("i2") == 8
    world.demand.servers = 1.0
    world.go(15)
    assert sorted((world.on("i1"), world.on("i2"))) == [0, 4]
    assert world.on("t1") == 4
    world.demand.servers = 2.0
    world.go(15)
    assert world.on("i1") + world.on("i2") == 0


def test_no_job_in_virtual_time_starts_on_a_server_that_is_not_lent():
    world = AllocatingWorld()
    world.demand.servers = 2.0
    world.submit(1, "4-12")
    world.submit(2, "4-4")
    world.go(60)
    assert world.on("i1") + world.on("i2") == 0


def test_a_base_in_virtual_time_is_preempted_shortly_before_the_deadline_and_waits_again():
    world = AllocatingWorld()
    for job_id in (1, 2, 3):
        world.submit(job_id, "4-4")
    world.go(30)
    assert world.on("i1") == world.on("i2") == 4
    world.demand.servers = 1.0
    world.go(115)
    assert world.on("i1") + world.on("i2") == 8
    world.go(20)
    assert world.on("i1") + world.on("i2") == 4
    waiting = [job for job in world.cluster.observe().training if not job.shares]
    assert len(waiting) == 1
