"""Sharing idle GPUs: who gets how many workers, where, when, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from says import says
from small_clusters import NOW, elastic, granted, grown, node, pending, sentence, shrunk, snapshot

from flexo.model.measured import SlowGpu
from flexo.model.node_filter import NodeFilter
from flexo.model.plans import Batch, Grow, Shrink
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.policies import satellites
from flexo.policies.greedy import Greedy
from flexo.policies.resize_benefit import batch_of
from flexo_protos.resources import Resources


def planned(seen):
    return satellites.plan(Greedy(), seen, 60.0)


def decide(*args, **changes):
    return planned(snapshot(*args, **changes))


def test_idle_gpus_go_to_the_only_elastic_job_up_to_its_maximum():
    decided = decide([node("t1", used=1), node("t2"), node("t3")], [elastic(1, "1-4")])
    assert grown(decided) == [(1, "t2", 3)]


def test_idle_gpus_are_shared_evenly_from_the_poorest_up():
    rich = granted(elastic(1, "1-8"), "t2", 3)
    poor = elastic(2, "1-8", base="t3")
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4), node("t4")]
    # of 4 idle GPUs three bring the poor one level; the fourth goes to the older of equals
    assert grown(decide(nodes, [rich, poor])) == [(1, "t4", 1), (2, "t4", 3)]


def test_an_odd_gpu_goes_to_the_older_job():
    nodes = [node("t1", used=4), node("t2", 3)]
    assert grown(decide(nodes, [elastic(2), elastic(1)])) == [(1, "t2", 2), (2, "t2", 1)]


def test_workers_need_cpus_and_memory_beside_gpus():
    thick = elastic(1, shape=Resources(gpus=1, cpus=3, memory_mib=6000))
    nodes = [node("t1", used=4), node("t2", 4), node("t3", 4, memory_mib=5000)]
    # t2: 8 CPUs hold two workers of 3, 16000 MiB two of 6000; t3 has not the memory for one
    decided = decide(nodes, [thick])
    assert grown(decided) == [(1, "t2", 2)]
    assert "t3" not in str(grown(decided))


def test_a_worker_with_several_gpus_takes_them_from_one_node():
    pair = elastic(1, "1-4", shape=Resources(gpus=2, cpus=1))
    nodes = [node("t1", used=4), node("t2", 4, used=1), node("t3", 4, used=3)]
    assert grown(decide(nodes, [pair])) == [(1, "t2", 1)]


def test_another_gpu_type_is_no_room():
    typed = elastic(1, shape=Resources(gpus=1, cpus=1, gpu_type="a100"))
    nodes = [node("t1", used=4), node("t2", gpu_type="v100"), node("t3", gpu_type="a100")]
    assert grown(decide(nodes, [typed])) == [(1, "t3", 4)]


def test_a_job_grows_only_where_its_own_request_permits():
    nodes = [
        node("t1", used=4),
        node("t2", features={"a100"}),
        node("t3", features={"a100", "ib"}),
        node("t4"),
    ]
    for features, places in {"": 3, "a100": 2, "a100&ib": 1, "ib|h100": 1, "h100": 0}.items():
        job = elastic(1, "1-13", node_filter=NodeFilter(features))
        assert sum(workers for _, _, workers in grown(decide(nodes, [job]))) == 4 * places, features
    excluding = elastic(1, "1-13", node_filter=NodeFilter("a100", frozenset({"t3"})))
    assert grown(decide(nodes, [excluding])) == [(1, "t2", 4)]


def test_a_job_is_told_which_idle_gpus_its_own_request_refuses():
    nodes = [node("t1", used=4), node("t2"), node("t3", features={"a100"})]
    job = elastic(1, node_filter=NodeFilter("a100", frozenset({"t3"})))
    decided = decide(nodes, [job])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "t2 has idle GPUs", "requires other features: a100", "t3", "excludes")


def test_what_one_job_may_not_use_another_gets():
    nodes = [node("t1", used=4), node("t2", 4)]
    picky, any_node = elastic(1, node_filter=NodeFilter("a100")), elastic(2, base="t1")
    assert grown(decide(nodes, [picky, any_node])) == [(2, "t2", 4)]


def test_the_tightest_node_that_holds_all_is_taken():
    nodes = [node("t1", used=4), node("t2", 8), node("t3", 4, used=2), node("t4", 4)]
    assert grown(decide(nodes, [elastic(1, "1-3")])) == [(1, "t3", 2)]


def test_many_workers_take_few_nodes_the_largest_first():
    nodes = [node("t1", used=4), node("t2", 2), node("t3", 8), node("t4", 4)]
    assert grown(decide(nodes, [elastic(1, "1-13")])) == [(1, "t3", 8), (1, "t4", 4)]


def test_the_base_s_own_node_comes_last():
    nodes = [node("t1", 4, used=1), node("t2", 2)]
    assert grown(decide(nodes, [elastic(1, "1-3")])) == [(1, "t2", 2)]
    assert grown(decide(nodes, [elastic(1, "1-4")])) == [(1, "t1", 1), (1, "t2", 2)]


def test_workers_of_a_unit_come_together_on_one_node():
    pair = elastic(1, "2-7", unit=2)
    assert grown(decide([node("t1", used=4), node("t2", 3), node("t3", 1)], [pair])) == [(1, "t2", 2)]
    assert grown(decide([node("t1", used=4), node("t2", 4), node("t3", 4)], [pair])) == [(1, "t2", 4)]
    assert grown(decide([node("t1", used=4), node("t2", 1), node("t3", 1)], [pair])) == []


def test_the_gpu_that_is_no_whole_unit_goes_to_another_job():
    pair, single = elastic(1, "2-8", unit=2), elastic(2, "1-8", base="t3")
    nodes = [node("t1", used=4), node("t2", 3), node("t3", used=4)]
    assert grown(decide(nodes, [pair, single])) == [(1, "t2", 2), (2, "t2", 1)]


def test_an_owner_s_cap_is_rounded_to_whole_units():
    pair = elastic(1, "2-8", unit=2, wanted=5)
    assert grown(decide([node("t1", used=4), node("t2", 8)], [pair])) == [(1, "t2", 2)]


def test_a_node_holds_one_satellite_of_a_job():
    job = granted(elastic(1), "t2", 2)
    decided = decide([node("t1", used=4), node("t2", used=2)], [job])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "t2", "satellite")


def test_satellites_of_two_jobs_share_a_node():
    job = granted(elastic(1, "1-3"), "t2", 2)
    assert grown(decide([node("t1", used=4), node("t2", used=2)], [job, elastic(2)])) == [(2, "t2", 2)]


def test_a_grant_that_is_not_real_yet_is_not_granted_again():
    for state in ("granted", "pending"):
        job = granted(elastic(1, "1-5"), "t2", 3, state)
        other = elastic(2, "1-8")
        assert grown(decide([node("t1", used=4), node("t2")], [job, other])) == [(2, "t2", 1)]


def test_gpus_of_a_satellite_that_is_leaving_count_until_they_are_free():
    job = granted(elastic(1, "1-4"), "t2", 3, "leaving")
    decided = decide([node("t1", used=1), node("t2", used=3), node("t3")], [job])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "1 of 4 workers", "3 workers", "left")
    wide = granted(elastic(1, "1-7"), "t2", 3, "leaving")
    assert grown(decide([node("t1", used=1), node("t2", used=3), node("t3", 3)], [wide])) == [(1, "t3", 3)]


def test_only_nodes_of_the_satellite_partition_that_are_up_are_used():
    nodes = [node("t1", used=4), node("t2"), node("t3", unusable="IDLE+DRAIN: bad fan")]
    cluster = snapshot(nodes, [elastic(1)])
    train, flex = cluster.partitions
    outside = replace(cluster, partitions=(train, replace(flex, nodes=frozenset({"t1", "t3"}))))
    down = replace(cluster, partitions=(train, replace(flex, up=False)))
    assert grown(planned(cluster)) == [(1, "t2", 4)]
    assert planned(outside).actions == ()
    assert planned(down).actions == ()
    assert says(sentence(planned(down), 1), "partition flex", "no nodes", "up")


@pytest.mark.parametrize("unusable", ["IDLE+COMPLETING", "IDLE+PLANNED", "IDLE+POWERED_DOWN", "DOWN"])
def test_nothing_is_granted_on_a_node_that_cannot_be_used_now(unusable):
    assert decide([node("t1", used=4), node("t2", unusable=unusable)], [elastic(1)]).actions == ()


def test_a_job_that_has_not_entered_its_training_loop_gets_nothing():
    decided = decide([node("t1", used=1), node("t2")], [elastic(1, scalable=False, attached=True)])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "training loop")


def test_a_job_without_a_leader_gets_nothing_and_says_that_of_all_reasons_first():
    decided = decide([node("t1", used=1), node("t2")], [elastic(1, scalable=False)])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "no leader")


def test_a_job_rests_between_two_resizes():
    job = elastic(1, last_resize_at=NOW - 19)
    decided = decide([node("t1", used=1), node("t2")], [job])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "1 of 8 workers", "41 s", "resize", "7 workers")
    rested = replace(job, last_resize_at=NOW - 61)
    assert grown(decide([node("t1", used=1), node("t2")], [rested])) != []


def test_the_share_of_a_job_that_rests_is_not_given_to_others():
    resting = elastic(1, last_resize_at=NOW - 1)
    decided = decide([node("t1", used=4), node("t2")], [resting, elastic(2)])
    assert grown(decided) == [(2, "t2", 2)]


def test_a_node_that_failed_is_left_alone_for_a_while():
    job = elastic(1, retry_at={"t2": NOW + 50})
    decided = decide([node("t1", used=4), node("t2")], [job])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "t2", "failed", "50 s")
    assert grown(decide([node("t1", used=4), node("t2"), node("t3")], [job])) == [(1, "t3", 4)]


def test_a_job_that_was_refused_rests_and_nothing_is_kept_for_it():
    job = elastic(1, rest_until=NOW + 50)
    decided = decide([node("t1", used=4), node("t2")], [job, elastic(2)])
    assert grown(decided) == [(2, "t2", 4)]
    assert says(sentence(decided, 1), "50 s", "grant")


def test_the_owner_s_cap_takes_whole_satellites_back_as_few_workers_as_possible():
    job = granted(granted(granted(elastic(1, "1-8"), "t2", 1), "t3", 2), "t4", 4)
    nodes = [node("t1", used=4), node("t2", used=1), node("t3", used=2), node("t4", used=4)]
    assert shrunk(decide(nodes, [replace(job, wanted=7)])) == ["g1-1"]
    assert shrunk(decide(nodes, [replace(job, wanted=6)])) == ["g1-2"]
    assert shrunk(decide(nodes, [replace(job, wanted=5)])) == ["g1-1", "g1-2"]
    assert shrunk(decide(nodes, [replace(job, wanted=4)])) == ["g1-3"]
    assert shrunk(decide(nodes, [replace(job, wanted=1)])) == ["g1-1", "g1-2", "g1-3"]


def test_the_owner_s_cap_never_waits_and_is_never_outgrown():
    nodes = [node("t1", used=4), node("t2", used=3), node("t3")]
    capped = granted(elastic(1, "1-8", wanted=2, last_resize_at=NOW - 1), "t2", 3)
    assert shrunk(decide(nodes, [capped])) == ["g1-1"]
    assert grown(decide(nodes, [elastic(1, "1-8", wanted=2)])) == [(1, "t2", 1)]
    decided = decide(nodes, [granted(elastic(1, "1-8", wanted=2), "t2", 1)])
    assert says(sentence(decided, 1), "2 of 2 workers", "capped at 2", 8)


@pytest.mark.parametrize("unusable", ["MIXED+DRAIN: bad fan", "MIXED+RESERVED", "MIXED+MAINT"])
def test_satellites_leave_a_node_that_is_wanted_empty(unusable):
    job = granted(elastic(1), "t2", 3)
    assert shrunk(decide([node("t1", used=4), node("t2", used=3, unusable=unusable)], [job])) == ["g1-1"]


def test_a_poorer_job_gets_a_satellite_s_room_from_a_richer_one():
    rich = granted(elastic(1, "1-8"), "t2", 4)
    poor = elastic(2, "1-8", base="t1")
    decided = decide([node("t1", used=4), node("t2", used=4)], [rich, poor])
    assert shrunk(decided) == ["g1-1"]
    assert grown(decided) == []
    why = next(action.why for action in decided.actions if isinstance(action, Shrink))
    assert says(why, "job 2", "1 of 8 workers", "job 1", 5)


def test_after_it_has_left_the_room_is_shared_and_that_is_the_end_of_it():
    rich = elastic(1, "1-8", last_resize_at=NOW - 5)
    poor = elastic(2, "1-8")
    nodes = [node("t1", used=4), node("t2")]
    assert grown(decide(nodes, [rich, poor])) == [(2, "t2", 2)]
    even = [granted(rich, "t2", 2), granted(poor, "t2", 2)]
    assert decide([node("t1", used=4), node("t2", used=4)], even).actions == ()


def test_nothing_is_rebalanced_for_a_single_worker_s_difference_or_a_small_gain():
    three, two = granted(elastic(1), "t2", 2), granted(elastic(2), "t3", 1)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert decide(nodes, [three, two]).actions == ()
    nine, seven = granted(elastic(1, "1-16"), "t2", 8), granted(elastic(2, "1-16"), "t3", 6)
    nodes = [node("t1", used=4), node("t2", 8, used=8), node("t3", 8, used=8)]
    assert decide(nodes, [nine, seven]).actions == ()


def test_nothing_is_rebalanced_while_room_is_coming_anyway():
    rich = granted(elastic(1, "1-8"), "t2", 4)
    poor = granted(elastic(2, "1-8", last_resize_at=NOW - 1), "t3", 2, "leaving")
    other = elastic(3, "1-8")
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert shrunk(decide(nodes, [rich, poor, other])) == []


def test_nothing_is_taken_from_a_job_that_has_just_been_resized_or_cannot_be():
    poor = elastic(2, "1-8")
    nodes = [node("t1", used=4), node("t2", used=4)]
    for rich in (elastic(1, "1-8", last_resize_at=NOW - 5), elastic(1, "1-8", scalable=False)):
        assert decide(nodes, [granted(rich, "t2", 4), poor]).actions == ()


def test_every_elastic_job_is_told_why_it_has_no_more():
    full = granted(elastic(1, "1-3"), "t2", 2)
    stuck = elastic(2, "1-3")
    decided = decide([node("t1", used=4), node("t2", used=4)], [full, stuck])
    assert sentence(decided, 1) == "3 of 3 workers: all that it can use"
    assert says(sentence(decided, 2), "1 of 3 workers", "no idle GPU", "partition flex")
    assert [note.brief for note in decided.notes if note.job.job_id == 2] == ["no idle GPU"]
    waits = decide([node("t1", used=4), node("t2")], [stuck], [pending(77, 4)])
    assert says(sentence(waits, 2), "1 of 3 workers", "job 77", "bob", "t2")
    thick = elastic(2, shape=Resources(gpus=1, cpus=9))
    lacks = decide([node("t1", used=4), node("t2")], [thick])
    assert says(sentence(lacks, 2), "t2", "CPUs")


def test_every_action_says_why():
    decided = decide([node("t1", used=1), node("t2")], [elastic(1, "1-3")])
    (action,) = decided.actions
    assert isinstance(action, Grow)
    assert action.job == JobKey(1)
    assert action.partition == "flex"
    assert says(action.why, "t2", "2 workers", "job 1", "1 of 3")


def test_without_elastic_jobs_there_is_nothing_to_do():
    assert decide([node("t1")], []).actions == ()


# Slow GPUs, errands, batches.


def slow(node: str, seconds: float = 100.0) -> SlowGpu:
    return SlowGpu(node, (1,), 1.7, JobKey(9), NOW - 5, NOW + seconds)


def test_a_node_with_a_slow_gpu_is_not_idle_for_satellites_and_the_job_is_told_why():
    nodes = [node("t1", used=4), node("t2"), node("t3", used=2)]
    decided = decide(nodes, [elastic(1)], slow_gpus=(slow("t2"),))
    assert grown(decided) == [(1, "t3", 2)]
    decided = decide([node("t1", used=4), node("t2")], [elastic(1)], slow_gpus=(slow("t2"),))
    assert grown(decided) == []
    assert says(sentence(decided, 1), "t2", "100 s", "GPU 1", "1.7 times")


def test_a_satellite_that_lies_on_such_a_node_already_stays():
    job = granted(elastic(1), "t2", 2)
    decided = decide([node("t1", used=4), node("t2", used=2)], [job], slow_gpus=(slow("t2"),))
    assert decided.actions == ()


def test_a_slow_gpu_keeps_no_ordinary_job_waiting():
    job = granted(elastic(1), "t2", 3)
    nodes = [node("t1", used=4), node("t2", used=3)]
    assert shrunk(decide(nodes, [job], [pending(50, 4)], slow_gpus=(slow("t2"),))) == ["g1-1"]


def test_a_job_with_an_errand_is_neither_grown_nor_robbed_but_gives_way_to_pending_jobs():
    rich = granted(elastic(1, pending_command="profile of 1-5 workers"), "t2", 4)
    nodes = [node("t1", used=4), node("t2", used=4), node("t3", used=4)]
    assert decide([*nodes, node("t4")], [rich]).actions == ()
    decided = decide(nodes, [rich, elastic(2, base="t3")])
    assert decided.actions == ()
    assert says(sentence(decided, 1), "not resized", "profile of 1-5 workers")
    assert shrunk(decide(nodes, [rich], [pending(50, 4)])) == ["g1-1"]


def test_a_job_that_may_not_be_resized_says_so_in_its_own_words():
    off = "profiling is off"
    decided = decide([node("t2")], [elastic(1, scalable=False, attached=True, unscalable_why=off)])
    assert decided.actions == ()
    assert off in sentence(decided, 1)


def test_the_batch_is_in_proportion_to_what_the_job_is_granted():
    ranged = elastic(1, "2-8", batch=Range(64, 200))
    full, empty = node("t1", used=4), node("t2", 3)
    assert decide([full], [ranged]).batches == (Batch(JobKey(1), 64),)
    assert decide([full, empty], [ranged]).batches == (Batch(JobKey(1), 160),)
    held = granted(ranged, "t2", 3)
    assert decide([full, node("t2", 3, used=3)], [held]).batches == (Batch(JobKey(1), 160),)
    taken_back = decide([full, node("t2", 3, used=3)], [held], [pending(50, 3)])
    assert shrunk(taken_back) == ["g1-1"]
    assert taken_back.batches == (Batch(JobKey(1), 64),)
    assert decide([full], [elastic(1)]).batches == ()


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 5000), st.integers(0, 5000), st.data())
def test_the_batch_stays_in_its_range_and_grows_with_the_workers(low, more, least, span, data):
    job = elastic(1, f"{low}-{low + more}", batch=Range(least, least + span))
    sizes = sorted(data.draw(st.lists(st.integers(low, low + more), min_size=2, max_size=2)))
    batches = [batch_of(job, size) for size in sizes]
    assert least <= batches[0] <= batches[1] <= least + span
    assert batch_of(job, low) == least
