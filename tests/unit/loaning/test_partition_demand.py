"""What the inference partition's queue says of demand, in whole servers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference_world import NOW, SERVERS, job, server

from flexo.loaning.demand import DemandMissing
from flexo.loaning.partition import PartitionDemand
from flexo.model.queue import JobKey, JobState, QueuedJob, Request, SatelliteTag
from flexo_protos.resources import Resources


def needed(*jobs: QueuedJob, servers=SERVERS) -> float:
    return PartitionDemand("infer").read(NOW, servers, jobs).servers


def test_an_idle_partition_needs_nothing_and_says_who_says_so():
    demand = PartitionDemand("infer").read(NOW, SERVERS, ())
    assert (demand.at, demand.servers, demand.source) == (NOW, 0.0, "partition infer")


def test_jobs_that_share_a_server_count_as_one():
    assert needed(job(1, "i1", gpus=1), job(2, "i1", gpus=1), job(3, "i2", "i3")) == 3


def test_a_job_that_ends_or_is_suspended_still_has_its_server():
    assert needed(job(1, "i1", state=JobState.COMPLETING), job(2, "i2", state=JobState.SUSPENDED)) == 2


def test_waiting_jobs_count_in_whole_servers_that_they_share():
    assert needed(job(1, gpus=1), job(2, gpus=1), job(3, gpus=2)) == 1
    assert needed(job(1, gpus=3), job(2, gpus=3)) == 2
    assert needed(job(1, gpus=3), job(2, gpus=3), job(3, gpus=1), job(4, gpus=1)) == 2


def test_gpus_per_node_and_the_number_of_nodes_are_respected():
    assert needed(job(1, gpus=8, gpus_per_node=4, num_nodes=2)) == 2
    assert needed(job(1, gpus=2, gpus_per_node=1, num_nodes=2)) == 2
    assert needed(job(1, gpus=2, gpus_per_node=1, num_nodes=2), job(2, gpus=6, num_nodes=2)) == 2


def test_cpus_memory_and_exclusive_use_fill_servers_too():
    assert needed(job(1, gpus=1, cpus=16), job(2, gpus=1, cpus=1)) == 2
    assert needed(job(1, gpus=0, memory_mib=40_000), job(2, gpus=0, memory_mib=40_000)) == 2
    assert needed(job(1, gpus=1, exclusive=True), job(2, gpus=1)) == 2


def separate(number: int, units: int, gpus: int) -> QueuedJob:
    """A job that asks for so many containers, each wherever there is room."""
    unit = Resources(gpus, 1, 64)
    request = Request(unit, units, per_node=units, divisible=True)
    return replace(job(number), num_nodes=1, resources=unit * units, requests=(request,))


def test_containers_that_may_be_on_any_server_are_counted_by_the_servers_that_they_fill():
    assert needed(separate(1, units=2, gpus=4)) == 2
    assert needed(separate(1, units=5, gpus=1)) == 2
    assert needed(separate(1, units=5, gpus=1), separate(2, units=1, gpus=3)) == 2
    assert needed(separate(1, units=3, gpus=3)) == 3
    assert needed(separate(1, units=1, gpus=9)) == 0


def test_a_request_for_very_many_containers_is_counted_at_once():
    assert needed(separate(1, units=10**9, gpus=1)) == 250_000_000


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "(BeginTime)"),
        *("QOSMaxGRESPerUser", "AssocGrpGRES", "JobArrayTaskLimit", "PartitionTimeLimit", "Licenses"),
    ],
)
def test_jobs_that_no_server_would_start_are_not_demand(reason):
    assert needed(job(1, reason=reason)) == 0


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", "", "Nodes_required_for_job_are_DOWN"])
def test_jobs_that_wait_for_servers_are_demand(reason):
    assert needed(job(1, reason=reason)) == 1


def test_jobs_of_other_partitions_and_satellites_are_not_demand():
    tag = SatelliteTag(JobKey(1), "g", 1)
    others = [
        job(1, "i1", partitions=("borrowed",)),
        job(2, partitions=("train",)),
        job(3, "i2", satellite=tag),
    ]
    assert needed(*others) == 0
    assert needed(job(4, partitions=("train", "infer"))) == 1


def test_a_job_that_no_server_can_hold_is_not_demand():
    assert needed(job(1, gpus=8, gpus_per_node=8)) == 0
    assert needed(job(1, gpus=1, gpu_type="h100")) == 0


def test_a_job_goes_by_the_smallest_server_that_can_hold_it():
    servers = (server("small", gpus=2), server("large", gpus=8))
    assert needed(job(1, gpus=2), job(2, gpus=2), servers=servers) == 2
    assert needed(job(1, gpus=6, gpus_per_node=6), job(2, gpus=2), servers=servers) == 2


def test_demand_may_be_above_the_clusters_size():
    assert needed(*(job(number) for number in range(10))) == 10


def test_a_partition_without_servers_is_missing_demand():
    with pytest.raises(DemandMissing, match="partition infer"):
        PartitionDemand("infer").read(NOW, [server("t1", partitions=frozenset({"train"}))], ())


@given(st.lists(st.integers(1, 4), max_size=20))
def test_waiting_jobs_take_no_less_than_their_gpus_and_no_more_than_a_server_each(gpus):
    found = needed(*(job(number, gpus=each) for number, each in enumerate(gpus)))
    assert -(-sum(gpus) // 4) <= found <= len(gpus)
