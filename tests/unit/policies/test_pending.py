"""Pending ordinary jobs come first: what is set aside for them, and which satellites go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flat_records import change_job
from says import says
from small_clusters import (
    NOW,
    elastic,
    granted,
    grown,
    node,
    pending,
    satellites_of,
    sentence,
    shrunk,
    snapshot,
)

from flexo.model.nodes import Partition
from flexo.model.plans import Shrink
from flexo.model.queue import JobState, QueuedJob, Request, SatelliteTag
from flexo.policies import satellites
from flexo.policies.greedy import Greedy
from flexo.policies.pending import waits_for_resources
from flexo_protos.resources import Devices, Resources


def decide(*args, **changes):
    return satellites.plan(Greedy(), snapshot(*args, **changes), 60.0)


def test_idle_gpus_that_a_pending_job_could_start_on_are_not_granted():
    decided = decide([node("t1", used=4), node("t2")], [elastic(1)], [pending(7, 3)])
    assert grown(decided) == [(1, "t2", 1)]
    assert decided.set_aside == (7,)


def test_a_job_that_slurm_has_not_looked_at_yet_counts_too():
    fresh = pending(7, 4, reason="None")
    assert grown(decide([node("t1", used=4), node("t2")], [elastic(1)], [fresh])) == []


@pytest.mark.parametrize(
    "reason",
    [
        "Resources",
        "Priority",
        "(ReqNodeNotAvail, UnavailableNodes:t7)",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ],
)
def test_a_job_that_waits_for_nodes_or_for_others_waits_for_resources(reason):
    assert waits_for_resources(pending(7, 4, reason=reason))


@pytest.mark.parametrize(
    "reason", ["Dependency", "BeginTime", "JobHeldUser", "AssocGrpGRES", "QOSMaxJobsPerUserLimit", "Licenses"]
)
def test_a_job_that_waits_for_something_else_claims_nothing(reason):
    decided = decide([node("t1", used=4), node("t2")], [elastic(1)], [pending(7, 4, reason=reason)])
    assert grown(decided) == [(1, "t2", 4)]
    assert decided.set_aside == ()


def test_a_job_that_is_blocked_for_good_does_not_keep_idle_gpus_elsewhere():
    nodes = [node("t1", used=4), node("t2", used=4), node("t3")]
    decided = decide(nodes, [elastic(1)], [pending(7, 4, nodes=3, reason="Resources")])
    assert grown(decided) == [(1, "t3", 4)]


def test_a_satellite_is_taken_back_when_a_pending_job_could_then_start():
    job = granted(elastic(1, "1-16"), "t2", 4)
    decided = decide([node("t1", used=4), node("t2", used=4)], [job], [pending(7, 2)])
    assert shrunk(decided) == ["g1-1"]
    (action,) = decided.actions
    assert isinstance(action, Shrink)
    assert says(action.why, "job 7", "bob", "t2", "4 workers")
    assert says(sentence(decided, 1), "1 of 16 workers", "back")


def test_giving_back_never_waits_for_the_rest_between_resizes():
    job = granted(elastic(1, last_resize_at=NOW - 1), "t2", 4)
    assert shrunk(decide([node("t1", used=4), node("t2", used=4)], [job], [pending(7, 4)])) == ["g1-1"]


def test_as_few_workers_as_possible_are_lost():
    job = granted(granted(elastic(1, "1-16"), "t2", 4), "t3", 2)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert shrunk(decide(nodes, [job], [pending(7, 2)])) == ["g1-2"]
    assert shrunk(decide(nodes, [job], [pending(7, 3)])) == ["g1-1"]


def test_among_equals_the_oldest_goes_as_slurm_would_choose():
    job = granted(granted(elastic(1, "1-16"), "t2", 4, since=200.0), "t3", 4, since=100.0)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert shrunk(decide(nodes, [job], [pending(7, 4)])) == ["g1-2"]


def test_idle_gpus_are_used_before_satellites_are_taken():
    job = granted(elastic(1), "t2", 2)
    nodes = [node("t1", used=4), node("t2", used=2)]
    assert shrunk(decide(nodes, [job], [pending(7, 2)])) == []
    assert shrunk(decide(nodes, [job], [pending(7, 3)])) == ["g1-1"]


def test_a_satellite_that_is_leaving_already_counts_as_room():
    job = granted(granted(elastic(1, "1-16"), "t2", 4, "leaving"), "t3", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    decided = decide(nodes, [job], [pending(7, 4)])
    assert shrunk(decided) == []
    assert decided.set_aside == (7,)
    assert shrunk(decide(nodes, [job], [pending(7, 4), pending(8, 4)])) == ["g1-2"]


def test_an_epilog_that_still_runs_is_waited_for():
    """Its GPUs count as free, but Slurm starts nothing on the node for a moment."""
    job = granted(elastic(1), "t3", 4)
    nodes = [node("t1", used=4), node("t2", unusable="IDLE+COMPLETING"), node("t3", used=4)]
    assert shrunk(decide(nodes, [job], [pending(7, 4)])) == []


def test_satellites_without_a_base_count_as_leaving():
    gone = granted(elastic(9), "t2", 4)
    job = granted(elastic(1), "t3", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert shrunk(decide(nodes, [job], [pending(7, 4), *satellites_of(gone)])) == []


def test_a_grant_that_has_not_started_goes_first_and_costs_nothing():
    job = granted(granted(elastic(1), "t2", 1), "t3", 4, "pending")
    nodes = [node("t1", used=4), node("t2", 4, used=4), node("t3", 4)]
    assert shrunk(decide(nodes, [job], [pending(7, 1)])) == ["g1-2"]


def test_several_pending_jobs_are_served_in_slurms_order():
    job = granted(elastic(1, "1-16"), "t2", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("i1", partitions=frozenset({"infer"}))]
    low, high = pending(7, 4, priority=10), pending(8, 4, priority=20)
    assert decide(nodes[:2], [job], [low, high]).set_aside == (8,)
    tiers = (
        Partition("infer", 20, frozenset({"t2"})),
        Partition("train", 10, frozenset({"t1", "t2"})),
        Partition("flex", 1, frozenset({"t1", "t2"})),
    )
    lower_tier = decide(nodes[:2], [job], [replace(low, partitions=("infer",)), high], partitions=tiers)
    assert lower_tier.set_aside == (7,)
    early, late = pending(9, 4, submitted_at=1.0), pending(6, 4, submitted_at=2.0)
    assert decide(nodes[:2], [job], [late, early]).set_aside == (9,)


def test_only_nodes_of_the_job_s_partitions_help_it():
    job = granted(granted(elastic(1, "1-16"), "t2", 4), "i1", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("i1", used=4)]
    parts = (
        Partition("train", 10, frozenset({"t1", "t2"})),
        Partition("infer", 20, frozenset({"i1"})),
        Partition("flex", 1, frozenset({"t1", "t2", "i1"})),
    )
    assert shrunk(decide(nodes, [job], [pending(7, 4)], partitions=parts)) == ["g1-1"]
    assert shrunk(decide(nodes, [job], [pending(7, 4, partitions=("infer",))], partitions=parts)) == ["g1-2"]
    either = pending(7, 4, partitions=("infer", "train"))
    assert len(shrunk(decide(nodes, [job], [either], partitions=parts))) == 1
    # two nodes, but not one of each partition: Slurm never spans partitions
    spanning = pending(7, 4, nodes=2, partitions=("infer", "train"))
    assert shrunk(decide(nodes, [job], [spanning], partitions=parts)) == []


def test_required_and_excluded_nodes_and_plain_features_are_heeded():
    job = granted(granted(elastic(1, "1-16"), "t2", 4), "t3", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4, features=frozenset({"ib", "big"}))]
    assert shrunk(decide(nodes, [job], [pending(7, 2, required_nodes=frozenset({"t3"}))])) == ["g1-2"]
    assert shrunk(decide(nodes, [job], [pending(7, 2, excluded_nodes=frozenset({"t2"}))])) == ["g1-2"]
    assert shrunk(decide(nodes, [job], [pending(7, 2, features="ib&big")])) == ["g1-2"]
    assert shrunk(decide(nodes, [job], [pending(7, 2, features="nvme")])) == []
    assert shrunk(decide(nodes, [job], [pending(7, 2, required_nodes=frozenset({"t1"}))])) == []


def test_a_job_for_another_gpu_type_takes_nothing():
    job = granted(elastic(1, "1-16"), "t2", 4)
    nodes = [node("t1", used=4), node("t2", used=4, gpu_type="v100")]
    assert shrunk(decide(nodes, [job], [pending(7, 2, gpu_type="a100")])) == []
    assert shrunk(decide(nodes, [job], [pending(7, 2, gpu_type="v100")])) == ["g1-1"]


def test_a_job_over_several_nodes_needs_room_on_each():
    job = granted(granted(elastic(1, "1-16"), "t2", 4), "t3", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4), node("t4")]
    assert shrunk(decide(nodes, [job], [pending(7, 4, nodes=2)])) == ["g1-1"]
    assert shrunk(decide(nodes, [job], [pending(7, 4, nodes=3)])) == ["g1-1", "g1-2"]
    assert shrunk(decide(nodes, [job], [pending(7, 4, nodes=4)])) == []


def test_gpus_without_a_count_per_node_may_lie_anywhere():
    spread = pending(7, gpus_per_node=0, gpus=6, cpus=6)
    job = granted(elastic(1), "t2", 2)
    nodes = [node("t1", used=4), node("t2", used=2), node("t3")]
    assert shrunk(decide(nodes, [job], [spread])) == []
    assert grown(decide(nodes, [job], [spread])) == []
    assert shrunk(decide(nodes, [job], [change_job(spread, gpus=8, cpus=8)])) == ["g1-1"]


def test_an_exclusive_job_needs_whole_nodes():
    job = granted(elastic(1), "t2", 1)
    nodes = [node("t1", used=4), node("t2", used=1)]
    assert shrunk(decide(nodes, [job], [pending(7, 1, exclusive=True)])) == ["g1-1"]
    assert (
        shrunk(decide([node("t1", used=4), node("t2", used=2)], [job], [pending(7, 1, exclusive=True)])) == []
    )


def test_cpus_and_memory_block_a_job_as_gpus_do():
    job = granted(elastic(1), "t2", 2)
    nodes = [node("t1", used=4), node("t2", used=2)]
    assert shrunk(decide(nodes, [job], [pending(7, 1, cpus=7)])) == ["g1-1"]
    assert shrunk(decide(nodes, [job], [pending(7, 1, cpus=9)])) == []
    assert shrunk(decide(nodes, [job], [pending(7, 1, memory_mib=17_000)])) == []
    cpu_job = pending(7, gpus_per_node=0, gpus=0, cpus=11)
    assert shrunk(decide(nodes, [job], [cpu_job])) == ["g1-1"]


def test_a_job_that_was_given_its_chance_is_passed_over():
    job = granted(elastic(1, "1-16"), "t2", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3")]
    assert grown(decide(nodes, [job], [pending(7, 4)], passed_over=frozenset({7}))) == [(1, "t3", 4)]


def test_somebody_else_s_job_with_a_satellite_s_tag_is_no_pending_job():
    tag = SatelliteTag(elastic(1).key, "g1", 1)
    decided = decide([node("t1", used=4), node("t2")], [elastic(1)], [pending(7, 4, satellite=tag)])
    assert decided.set_aside == ()


def test_a_running_job_claims_nothing():
    running = pending(7, 4, state=JobState.RUNNING, nodes=1)
    assert decide([node("t1", used=4), node("t2", used=4)], [elastic(1)], [running]).set_aside == ()


@pytest.mark.thorough
def test_thousands_of_like_pending_jobs_are_planned_for_in_a_moment():
    nodes = [node(f"n{number:04}", 8, used=8) for number in range(500)]
    job = elastic(1, "1-4000", base="n0000")
    for number in range(1, 400):
        job = granted(job, f"n{number:04}", 8)
    queue = [pending(10_000 + number, 1 + number % 8, nodes=1 + number % 3) for number in range(5000)]
    decided = decide(nodes, [job], queue)
    assert len(shrunk(decided)) == 399


def asks(*requests: Request) -> QueuedJob:
    """A pending job with these requests."""
    return replace(pending(7), requests=requests)


def test_a_job_with_several_requests_needs_room_for_all_of_them():
    leader = Request.on_each_node(1, Resources(0, 6))
    workers = Request.in_all(Resources(4, 4))
    job = granted(elastic(1), "t2", 4)
    nodes = [node("t1", used=4), node("t2", used=4)]
    assert shrunk(decide(nodes, [job], [asks(workers)])) == ["g1-1"]
    assert shrunk(decide(nodes, [job], [asks(leader, workers)])) == []
    assert shrunk(decide([*nodes, node("t3", 0, cpus=6)], [job], [asks(leader, workers)])) == ["g1-1"]


def test_what_one_request_takes_is_not_there_for_the_next():
    twice = asks(Request.in_all(Resources(3, 3)), Request.in_all(Resources(3, 3)))
    job = elastic(1, "1-16", base="t1")
    nodes = [node("t1", used=4), node("t2"), node("t3", used=2)]
    assert decide(nodes, [job], [twice]).set_aside == (7,)
    assert grown(decide(nodes, [job], [twice])) == []
    assert decide(nodes[:2], [job], [twice]).set_aside == ()


def test_of_a_divisible_request_what_fits_is_kept_and_the_rest_goes_to_others():
    some = replace(Request.in_all(Resources(8, 8)), divisible=True)
    job = elastic(1, "1-16", base="t1")
    nodes = [node("t1", used=4), node("t2", used=1)]
    assert decide(nodes, [job], [asks(some)]).set_aside == (7,)
    assert decide(nodes, [job], [asks(replace(some, divisible=False))]).set_aside == ()
    assert decide(nodes[:1], [job], [asks(some)]).set_aside == ()


def test_for_a_divisible_request_as_many_satellites_go_as_it_can_use():
    some = replace(Request.in_all(Resources(5, 5)), divisible=True)
    job = granted(granted(granted(elastic(1, "1-16"), "t2", 4), "t3", 2), "t3", 2)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert len(shrunk(decide(nodes, [job], [asks(some)]))) == 2
    assert len(shrunk(decide(nodes, [job], [asks(replace(some, units=9))]))) == 3


def test_a_second_resource_on_a_gpu_that_is_taken_keeps_a_job_waiting():
    spare = Devices("spare", "s0")
    asked = asks(Request.on_each_node(1, Resources(0, 1, devices=(spare,))))
    has = Resources(4, 8, 16_000, devices=(spare,))
    job = elastic(1, "1-16", base="t1")
    free = replace(node("t2"), capacity=has)
    taken = replace(free, allocated=Resources(0, 1, devices=(spare,)))
    assert decide([node("t1", used=4), free], [job], [asked]).set_aside == (7,)
    assert decide([node("t1", used=4), taken], [job], [asked]).set_aside == ()
