"""Aggregators in a job's own satellites: who is assigned, when, and when one that has to go may go."""

from __future__ import annotations

from flexo_protos.resources import Resources
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.core import choice
from horovod_elastic.job_plan import BaseJob, BaseNode
from horovod_elastic.leader.satellite_sums import LEAVES_WITHIN_S, SETTLE_S, SatelliteSums

BASE = BaseJob("17", 0, (BaseNode("n1", 1), BaseNode("n2", 1)), Resources(1, 1), 2, 8, "")
ASKED = {choice.VARIABLE: choice.SERVICE, choice.AGGREGATORS_VARIABLE: choice.SATELLITES}
OF_SATELLITE = workers_pb2.AgentHello(slots=0)


def place(host: str, starts_again: int = 0) -> workers_pb2.AggregatorPlace:
    return workers_pb2.AggregatorPlace(host=host, port=7000, token=f"of-{host}", starts_again=starts_again)


AUTO = {**ASKED, choice.AGGREGATORS_VARIABLE: choice.AUTO}


class Job:
    """A job that follows what is decided."""

    def __init__(self, cores: str = "") -> None:
        self.sums = SatelliteSums(BASE, {**ASKED, choice.CORES_VARIABLE: cores})
        self.present = jobs_pb2.Aggregators()
        self.now = 100.0

    def serve(self, *hosts: str) -> None:
        for host in hosts:
            self.sums.joined(host, OF_SATELLITE, self.now)
            self.sums.serves(host, place(host), self.now)

    def decide(self, after_s: float = 0.0) -> list[str] | None:
        """The hosts of a new assignment; None: the present one stands."""
        self.now += after_s
        told = self.sums.next_assignment(self.present, self.now)
        if told is None:
            return None
        assert told.version == self.present.version + 1
        assert all((each.share, each.token) == (1, f"of-{each.host}") for each in told.aggregators)
        self.present = told
        return [each.host for each in told.aggregators]


def test_a_job_asks_for_one_for_each_node_or_what_its_user_says_within_its_size() -> None:
    assert Job().sums.wanted == 2
    assert Job("1").sums.wanted == 1
    assert Job("100").sums.wanted == 8
    assert SatelliteSums(BASE, {choice.VARIABLE: choice.SERVICE}).wanted == 0


def test_one_generation_begins_for_all_that_are_wanted() -> None:
    job = Job()
    job.serve("c2")
    assert job.decide() is None
    job.serve("c1")
    assert job.decide() == ["c1", "c2"]
    assert job.decide(60) is None


def test_the_others_are_not_waited_for_long() -> None:
    job = Job()
    job.serve("c2")
    assert job.decide(SETTLE_S - 1) is None
    assert job.decide(2) == ["c2"]
    job.serve("c1")
    assert job.decide() == ["c1", "c2"]


def test_one_that_is_gone_is_replaced_at_once_and_without_any_the_nodes_sum() -> None:
    job = Job()
    job.serve("c1", "c2")
    job.decide()
    job.sums.gone("c1")
    assert job.decide() == ["c2"]
    job.sums.gone("c2")
    assert job.decide() == []


def test_one_that_has_to_go_waits_until_its_sums_are_made_elsewhere() -> None:
    job = Job()
    job.serve("c1", "c2")
    job.decide()
    assert job.sums.leaves("c1", "SIGTERM", job.now)
    assert job.decide() == ["c2"]
    assert not job.sums.is_assigned("c1", job.present)
    assert job.sums.is_assigned("c2", job.present)
    assert job.sums.to_release(migrated=False, now=job.now) == []
    assert job.sums.to_release(migrated=True, now=job.now) == [("c1", "SIGTERM")]
    assert job.sums.to_release(migrated=False, now=job.now + LEAVES_WITHIN_S + 1) == [("c1", "SIGTERM")]
    job.sums.gone("c1")
    assert job.sums.to_release(migrated=True, now=job.now) == []


def test_agents_with_workers_are_none_of_these() -> None:
    job = Job()
    job.sums.joined("n3", workers_pb2.AgentHello(slots=1), job.now)
    job.sums.joined("n1", workers_pb2.AgentHello(slots=0, base=True), job.now)
    for agent in ("n3", "n1"):
        job.sums.serves(agent, place(agent), job.now)
        assert not job.sums.leaves(agent, "SIGTERM", job.now)
    assert job.decide(60) is None


def test_one_whose_process_was_started_again_is_assigned_again() -> None:
    """Nodes have left it out of their present generation."""
    job = Job("1")
    job.serve("c1")
    assert job.decide() == ["c1"]
    job.sums.serves("c1", place("c1"), job.now)
    assert job.decide(60) is None
    job.sums.serves("c1", place("c1", starts_again=1), job.now)
    assert job.decide() == ["c1"]


def test_a_new_leader_keeps_the_assignment_of_the_one_before() -> None:
    job = Job()
    job.serve("c1", "c2")
    job.decide()
    heir = Job()
    heir.present = job.present
    for host in ("c1", "c2"):
        hello = workers_pb2.AgentHello(slots=0, aggregator_place=place(host))
        heir.sums.joined(host, hello, heir.now)
    assert heir.decide(60) is None


def test_a_job_that_asks_for_none_assigns_nothing() -> None:
    job = Job()
    job.sums = SatelliteSums(BASE, {choice.VARIABLE: choice.SERVICE})
    job.serve("c1")
    assert job.decide(60) is None


def test_a_job_that_leaves_the_choice_to_flexod_may_have_as_many_if_its_cluster_has_such_satellites() -> None:
    assert SatelliteSums(BASE, AUTO).wanted == 2
    assert SatelliteSums(BASE, AUTO, possible=False).wanted == 0


def test_such_a_job_keeps_the_assignment_of_a_pool_until_a_satellite_serves() -> None:
    job = Job()
    job.sums = SatelliteSums(BASE, AUTO)
    pooled = [jobs_pb2.AssignedAggregator(host="p1", port=7000, token="t", share=1)]
    job.present = jobs_pb2.Aggregators(version=4, aggregators=pooled)
    assert job.decide(60) is None
    assert not job.sums.serves_any
    job.serve("c1")
    assert job.sums.serves_any
    assert job.decide(60) == ["c1"]
    assert job.present.in_satellites
    job.sums.gone("c1")
    assert job.decide() == [], "those were its own"
    job.present = jobs_pb2.Aggregators(version=9, aggregators=pooled)
    assert job.decide(60) is None


def test_the_next_leader_of_such_a_job_knows_whose_aggregators_are_assigned() -> None:
    job = Job()
    job.sums = SatelliteSums(BASE, AUTO)
    job.serve("c1")
    job.decide(60)
    heir = Job()
    heir.sums, heir.present = SatelliteSums(BASE, AUTO), job.present
    assert heir.decide(60) == [], "the satellite is gone"
