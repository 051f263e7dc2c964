"""Lyra's two phases, on the tables of its slides and on small clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_clusters import NOW
from training_jobs import after, check_plan, job, node, pending_order, planned, snapshot, workers

from flexo.model.measured import Source
from flexo.model.plans import Plan, Snapshot
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.lyra import Lyra
from flexo_protos.resources import Resources

V100 = Resources(1, 1, gpu_type="V100")


def table_job(job_id: int, size: str, least_s: float, **changes):
    """A job of the slides' tables: its range, and its running time with the most workers."""
    most = int(size.partition("-")[2])
    return job(job_id, size, remaining_work=least_s * most, **changes)


def test_phase_two_gives_table_1s_long_job_five_and_the_short_one_three():
    before = snapshot([node("n", 8)], [table_job(1, "2-6", 50.0), table_job(2, "2-6", 20.0)])
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 5, 2: 3}


def test_phase_two_gives_table_2s_long_job_its_three_and_the_short_one_five():
    before = snapshot([node("n", 8)], [table_job(1, "2-3", 100.0), table_job(2, "2-6", 20.0)])
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 3, 2: 5}


def test_where_parts_of_a_job_s_own_time_count_a_long_job_has_no_more_than_a_short_one():
    jobs = [
        job(1, "1-8", {"n1": 1}, remaining_work=600.0),
        job(2, "1-8", {"n2": 1}, remaining_work=600_000.0),
        job(3, "1-8", {"n3": 1}),
    ]
    seen = snapshot([node(name, 4) for name in ("n1", "n2", "n3")], jobs)
    by_seconds = workers(planned(Lyra(), seen), seen)
    assert by_seconds[2] > 2 * by_seconds[1]
    assert workers(planned(Lyra(saved="parts"), seen), seen) == {1: 4, 2: 4, 3: 4}


def test_what_is_left_is_shared_out_again_when_a_job_ends():
    before = snapshot([node("n", 8)], [table_job(1, "2-6", 50.0), table_job(2, "2-6", 20.0)])
    later = after(before, planned(Lyra(), before), 40.0)
    assert later.training[1].remaining_work == pytest.approx(0.0)
    alone = replace(snapshot([node("n", 8)], [later.training[0]]), at=later.at)
    assert workers(planned(Lyra(), alone), alone) == {1: 6}
    # 300 worker seconds: 40 s on five, the rest on six
    assert 40.0 + (later.training[0].remaining_work or 0.0) / 6 == pytest.approx(56.67, abs=0.01)


def test_the_shortest_base_starts_first():
    jobs = [
        job(1, 4, remaining_work=4000.0),
        job(2, 3, remaining_work=30.0),
        job(3, 2, remaining_work=2000.0),
    ]
    before = snapshot([node("n", 5)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 0, 2: 3, 3: 2}


def test_a_base_that_does_not_fit_is_passed_over():
    jobs = [job(1, 8, remaining_work=8.0), job(2, 2, remaining_work=2000.0)]
    before = snapshot([node("n", 4)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 0, 2: 2}


def overdue(job_id: int, size: int, **changes):
    return job(job_id, size, **{"waiting_since": NOW - 2 * 86_400.0, "remaining_work": 1e4, **changes})


def test_a_base_that_has_waited_for_days_and_ten_times_its_length_goes_first():
    jobs = [job(1, 2, remaining_work=10.0), overdue(2, 4)]
    before = snapshot([node("n", 4)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 0, 2: 4}
    for longer in (overdue(2, 4, remaining_work=1e5), overdue(2, 4, waiting_since=NOW - 80_000.0)):
        before = snapshot([node("n", 4)], [jobs[0], longer])
        assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0}


def test_where_many_have_waited_for_long_only_a_share_of_the_gpus_is_theirs_first():
    """Of eight GPUs two are for those who had waited: with jobs 3 and 4 it would be three."""
    jobs = [
        job(1, 4, {"n": 4}),
        job(2, 1, {"m": 1}, started_at=NOW, waiting_since=NOW - 2 * 86_400.0),
        overdue(3, 1, waiting_since=NOW - 3 * 86_400.0),
        overdue(4, 1),
        job(5, 2, remaining_work=10.0),
    ]
    before = snapshot([node("n", 4), node("m", 4)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 4, 2: 1, 3: 1, 4: 0, 5: 2}
    assert workers(planned(Lyra(patience_share=1.0), before), before) == {1: 4, 2: 1, 3: 1, 4: 1, 5: 0}
    assert pending_order(Lyra(), before) == [3, 5, 4]
    assert pending_order(Lyra(patience_share=0.0), before) == [5, 3, 4]


def test_who_had_waited_for_long_counts_however_long_it_then_runs():
    ran_s = 20 * 86_400.0
    runs = job(1, 2, {"n": 2}, started_at=NOW - ran_s, waiting_since=NOW - ran_s - 2 * 86_400.0)
    before = snapshot([node("n", 4)], [runs, overdue(2, 2), job(3, 2, remaining_work=10.0)])
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 2}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(share: float):
    with pytest.raises(ValueError, match="patience_share is from 0 to 1"):
        Lyra(patience_share=share)


def test_room_is_kept_for_a_base_that_has_waited_for_long_and_does_not_fit():
    """It fits when job 1 ends, 500 s from now: job 3 ends before that, job 4 does not, nor does job 5."""
    jobs = [
        job(1, 2, {"n": 2}, remaining_work=1000.0),
        overdue(2, 4),
        job(3, 1, remaining_work=499.0),
        job(4, 1, remaining_work=600.0),
        job(5, 1),
    ]
    before = snapshot([node("n", 5)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 1, 4: 1, 5: 0}
    before = snapshot([node("n", 4)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 1, 4: 0, 5: 0}


def test_flexible_workers_use_the_room_that_is_kept():
    jobs = [
        job(1, 2, {"n": 2}, remaining_work=1000.0),
        overdue(2, 4),
        job(3, "1-4", {"m": 1}, remaining_work=1e6),
        job(4, 1, remaining_work=600.0),
    ]
    before = snapshot([node("n", 4), node("m", 1)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 3, 4: 0}


def test_no_room_is_kept_for_a_base_that_will_never_fit():
    jobs = [
        job(1, 2, {"n": 2}, remaining_work=1000.0),
        overdue(2, 5),
        overdue(3, 1, shape=Resources(8, 1)),
        job(4, 1, remaining_work=1e9),
    ]
    before = snapshot([node("n", 4)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 0, 4: 1}


def test_room_that_is_kept_on_one_gpu_type_holds_nobody_up_on_another():
    """If the idle T4 were counted in, one GPU would be left beside job 2 once job 1 has ended."""
    jobs = [
        job(1, 2, {"v": 2}, shape=V100, remaining_work=1000.0),
        overdue(2, 3, shape=V100),
        job(3, 1, shape=Resources(1, 1, gpu_type="T4"), remaining_work=1e9),
        job(4, 1, shape=V100, remaining_work=1e9),
    ]
    before = snapshot([node("v", 3, gpu_type="V100"), node("t", 1, gpu_type="T4")], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 0, 3: 1, 4: 0}


def test_a_job_of_unknown_length_starts_last_but_grows_all_the_same():
    before = snapshot([node("n", 4)], [job(1, "1-4"), job(2, 2, remaining_work=1e9)])
    assert workers(planned(Lyra(), before), before) == {1: 2, 2: 2}


def test_flexible_workers_are_taken_back_for_a_base_and_no_more_than_it_needs():
    long = job(1, "2-6", {"n": 6}, remaining_work=60_000.0)
    before = snapshot([node("n", 6)], [long, job(2, 3, remaining_work=300.0)])
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 3, 2: 3}
    assert "job 2" in next(each.why for each in plan.allocations if each.job == JobKey(1))


def by_history(job_id: int, size: int, **changes) -> TrainingJob:
    """A job that waits, and whose running time is the median of like jobs."""
    return job(job_id, size, **{"remaining_work": 300.0 * size, "source": Source.HISTORY, **changes})


def beside_four_flexible(*waiting: TrainingJob) -> Snapshot:
    """A job with four flexible workers on eight GPUs, of which a quarter is for small bases. A base of eight
    waits, too: not all find room."""
    grown = job(90, "2-6", {"n": 6}, remaining_work=60_000.0)
    rigid, waits = job(91, 2, {"n": 2}, remaining_work=60_000.0), by_history(92, 8, remaining_work=9e9)
    return snapshot([node("n", 8)], [grown, rigid, waits, *waiting])


def starts(policy: Lyra, before: Snapshot) -> list[int]:
    """The numbers of the jobs that start."""
    plan = planned(policy, before)
    check_plan(before, plan)
    return [number for number, size in workers(plan, before).items() if size and number < 90]


def test_of_uncertain_bases_only_the_smallest_take_the_last_flexible_workers():
    """Three would leave one of the two that are kept; two leave two."""
    assert starts(Lyra(), beside_four_flexible(by_history(1, 3), by_history(2, 1, remaining_work=9e9))) == [2]
    assert starts(Lyra(small_share=0.0), beside_four_flexible(by_history(1, 3), by_history(2, 1))) == [1, 2]
    assert starts(Lyra(), beside_four_flexible(by_history(1, 2), by_history(2, 1), by_history(3, 1))) == [
        1,
        2,
        3,
    ]
    assert starts(Lyra(), beside_four_flexible(job(1, 3), by_history(2, 1))) == [2]


@pytest.mark.parametrize("source", [Source.ORACLE, Source.PROGRESS, Source.TIME_LIMIT])
def test_a_base_whose_running_time_is_bounded_takes_any_flexible_worker(source: Source):
    assert starts(Lyra(), beside_four_flexible(by_history(1, 3, source=source), by_history(2, 1))) == [1, 2]


def test_a_base_that_has_waited_for_too_long_takes_any_flexible_worker():
    late = by_history(1, 3, waiting_since=NOW - 2 * 86_400.0)
    assert starts(Lyra(), beside_four_flexible(late, by_history(2, 1))) == [1, 2]


def test_nothing_is_kept_for_small_bases_where_there_are_none():
    """The smallest that waits or runs has two GPUs, and both that wait have three."""
    assert starts(Lyra(), beside_four_flexible(by_history(1, 3))) == []
    running = job(90, "3-7", {"n": 7}, remaining_work=60_000.0)
    waits = by_history(92, 8, remaining_work=9e9)
    only_large = snapshot([node("n", 8)], [running, waits, by_history(1, 3)])
    assert starts(Lyra(), only_large) == [1]


def test_where_all_bases_that_wait_find_room_none_waits_for_the_sake_of_smaller_ones():
    crowded = beside_four_flexible(by_history(1, 3), by_history(2, 1))
    calm = replace(crowded, training=tuple(each for each in crowded.training if each.key.job_id != 92))
    assert starts(Lyra(), crowded) == [2]
    assert starts(Lyra(), calm) == [1, 2]


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_for_small_bases_that_is_none_is_refused(share: float):
    with pytest.raises(ValueError, match="small_share is from 0 to 1"):
        Lyra(small_share=share)


def test_flexible_workers_are_taken_where_they_save_least():
    jobs = [
        job(1, "1-4", {"a": 4}, remaining_work=40_000.0),
        job(2, "1-4", {"b": 4}, remaining_work=400.0),
        job(3, 2, remaining_work=300.0),
    ]
    before = snapshot([node("a"), node("b")], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 4, 2: 2, 3: 2}


def test_a_running_base_is_never_taken():
    jobs = [job(1, 4, {"n": 4}, remaining_work=1e9), job(2, 1, remaining_work=1.0)]
    before = snapshot([node("n")], jobs)
    assert planned(Lyra(), before).allocations == ()


def test_a_base_that_needs_a_whole_node_gets_one_vacated():
    wide = Resources(4, 1)
    jobs = [
        job(1, "1-3", {"c": 1, "a": 2}, remaining_work=1e6),
        job(2, "1-5", {"c": 1, "b": 4}, remaining_work=1e3),
        job(3, 1, shape=wide, remaining_work=100.0),
    ]
    before = snapshot([node("a", gpus_allocated=2), node("b"), node("c", 2)], jobs)
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 3, 2: 1, 3: 1}


def test_a_job_whose_node_is_vacated_may_move_its_workers():
    jobs = [
        job(1, "1-3", {"c": 1, "a": 2}, remaining_work=1e6),
        job(2, "1-3", {"c": 1, "b": 2}, remaining_work=1e6),
        job(3, 1, shape=Resources(4, 1), remaining_work=100.0),
    ]
    before = snapshot([node("a"), node("b"), node("c", 2)], jobs)
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 3, 2: 3, 3: 1}
    assert any("moves" in each.why for each in plan.allocations)


def test_nothing_is_taken_for_a_base_that_does_not_fit_even_then():
    jobs = [
        job(1, "1-4", {"a": 4}, remaining_work=1e6),
        job(2, "1-4", {"b": 4}, remaining_work=1e6),
        job(3, 1, shape=Resources(4, 1), remaining_work=100.0),
    ]
    before = snapshot([node("a"), node("b")], jobs)
    assert planned(Lyra(), before).allocations == ()


def test_it_grows_only_if_that_pays_while_the_gpus_stay():
    """Amoeba, section 3.2: 30 s each way for two more GPUs for 120 s do not pay; 1.07 s do."""
    slow = job(1, "4-6", {"n": 4}, remaining_work=1e6, change_cost_s=30.0)
    before = snapshot([node("n", 6)], [slow])
    assert planned(Lyra(stay_s=120.0), before).allocations == ()
    assert planned(Lyra(stay_s=179.0), before).allocations == ()
    assert workers(planned(Lyra(stay_s=181.0), before), before) == {1: 6}
    swift = replace(before, training=(replace(slow, change_cost_s=1.07),))
    assert workers(planned(Lyra(stay_s=120.0), swift), swift) == {1: 6}


def test_it_does_not_grow_for_less_than_a_change_costs():
    before = snapshot([node("n", 6)], [job(1, "4-6", {"n": 4}, remaining_work=400.0, change_cost_s=40.0)])
    assert planned(Lyra(), before).allocations == ()


def test_nobody_gives_up_workers_for_less_than_both_changes_cost():
    jobs = [
        job(1, "1-7", {"n": 4}, remaining_work=4000.0, change_cost_s=30.0),
        job(2, "1-7", {"n": 4}, remaining_work=5000.0, change_cost_s=30.0),
    ]
    before = snapshot([node("n", 8)], jobs)
    assert planned(Lyra(), before).allocations == ()
    cheap = replace(before, training=tuple(replace(each, change_cost_s=0.0) for each in before.training))
    assert workers(planned(Lyra(), cheap), cheap) == {1: 4, 2: 4}


def test_a_users_weight_counts_for_flexible_demand_only():
    jobs = [job(1, "1-4", remaining_work=4000.0), job(2, "1-4", remaining_work=4000.0, weight=10.0)]
    before = snapshot([node("n", 5)], jobs)
    assert workers(planned(Lyra(), before), before) == {1: 1, 2: 4}


def test_its_reason_says_what_a_smaller_job_is_due_and_not_what_leaves_which_is_whole_satellites():
    for given, words in ((1, "its due is 3 "), (2, "its due is 2 ")):
        jobs = [job(1, "1-9", {"n": 4}, remaining_work=10.0), job(2, given, remaining_work=9.0)]
        plan = planned(Lyra(), snapshot([node("n", 4)], jobs))
        assert words in next(each.why for each in plan.allocations if each.job == JobKey(1))


def test_it_says_in_which_order_pending_jobs_are_to_start():
    jobs = [job(1, 1, remaining_work=9.0), job(2, 1), job(3, 4, remaining_work=8.0), overdue(4, 1)]
    before = snapshot([node("n", 1)], jobs)
    assert pending_order(Lyra(), before) == [4, 3, 1, 2]
    assert pending_order(Lyra(order="cluster"), before) == []


def test_an_order_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"'policy' or 'cluster'.*'fifo'"):
        Lyra(order="fifo")


def test_where_the_cluster_starts_jobs_only_flexible_demand_is_planned():
    jobs = [job(1, 2, remaining_work=10.0), job(2, "1-4", {"n": 1}, remaining_work=4000.0)]
    before = snapshot([node("n")], jobs)
    assert workers(planned(Lyra(order="cluster"), before), before) == {1: 0, 2: 4}


def test_flexible_demand_goes_to_inference_servers_first_and_bases_to_training_servers():
    nodes = [node("lent", partitions=frozenset({"train", "borrowed"})), node("own")]
    before = snapshot(nodes, [job(1, "2-4", remaining_work=4000.0)])
    (start,) = planned(Lyra(), before).allocations
    assert start.shares == (NodeShare("own", 2), NodeShare("lent", 2))


def test_what_is_taken_back_leaves_training_servers_first():
    nodes = [node("lent", 2, features=frozenset({"borrowed"})), node("own", 4)]
    running = job(1, "2-6", {"own": 4, "lent": 2}, remaining_work=4e6)
    before = snapshot(nodes, [running, job(2, 2, remaining_work=10.0)])
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    shares = {each.job.job_id: each.shares for each in plan.allocations}
    assert shares == {
        1: (NodeShare("own", 2), NodeShare("lent", 2)),
        2: (NodeShare("own", 2),),
    }


def test_flexible_demand_lies_on_servers_without_base_demand_where_that_takes_no_more_nodes():
    jobs = [job(1, 2, {"a": 2}, remaining_work=1e6), job(2, "2-4", {"b": 2}, remaining_work=1e6)]
    before = snapshot([node("a"), node("b"), node("c")], jobs)
    (grown,) = planned(Lyra(), before).allocations
    assert grown.shares == (NodeShare("b", 2), NodeShare("c", 2))


def test_a_job_stays_on_its_gpu_type_unless_it_says_otherwise():
    nodes = [node("v", 2, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    plain = job(1, 4, shape=V100, remaining_work=4000.0)
    before = snapshot(nodes, [plain])
    assert workers(planned(Lyra(), before), before) == {1: 0}
    fungible = replace(before, training=(replace(plain, fungible=True),))
    (start,) = planned(Lyra(), fungible).allocations
    assert start.shares == (NodeShare("t", 4),)


def beside_v100s(waits: TrainingJob, *others: TrainingJob) -> Snapshot:
    """Two V100s for training, and four inference servers' T4s that are idle."""
    nodes = [node("v", 2, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    return snapshot(nodes, [waits, *others])


def v100(number: int, seconds: float, **changes) -> TrainingJob:
    """A job that takes so long on both V100s."""
    return job(number, 2, shape=V100, remaining_work=2 * seconds, **changes)


def place_of(number: int, plan: Plan) -> str:
    """Its one node; "": it waits."""
    found = [each.shares for each in plan.allocations if each.job.job_id == number]
    return found[0][0].node if found else ""


def test_a_fungible_job_goes_to_inference_servers_first_unless_they_are_slower():
    before = beside_v100s(v100(1, 1000.0, fungible=True))
    assert place_of(1, planned(Lyra(), before)) == "v"
    assert place_of(1, planned(Lyra(gpu_speeds={}), before)) == "t"
    assert place_of(1, planned(Lyra(gpu_speeds={"T4": 1.5}), before)) == "t"


@pytest.mark.parametrize(("others_s", "place"), [(1900.0, ""), (2100.0, "t")])
def test_it_has_slower_gpus_where_the_wait_for_faster_ones_is_longer_than_what_it_loses(
    others_s: float, place: str
):
    """On T4s it takes 3000 s instead of 1000 s."""
    before = beside_v100s(v100(1, 1000.0, fungible=True), v100(2, others_s, on={"v": 2}))
    assert place_of(1, planned(Lyra(), before)) == place


def test_shorter_jobs_that_wait_for_the_faster_gpus_are_part_of_that_wait():
    running, plain = v100(2, 1500.0, on={"v": 2}), v100(3, 600.0)
    long = v100(1, 1000.0, fungible=True)
    assert place_of(1, planned(Lyra(), beside_v100s(long, running))) == ""
    assert place_of(1, planned(Lyra(), beside_v100s(long, running, plain))) == "t"
    longer = replace(plain, remaining_work=2 * 1200.0)
    assert place_of(1, planned(Lyra(), beside_v100s(long, running, longer))) == ""


def test_who_has_waited_for_too_long_takes_any_gpus():
    late = v100(1, 1000.0, fungible=True, waiting_since=NOW - 90_000.0)
    assert place_of(1, planned(Lyra(), beside_v100s(late, v100(2, 1900.0, on={"v": 2})))) == "t"


def test_a_heterogeneous_job_rather_has_some_fast_gpus_than_slow_ones_alone():
    nodes = [node("v", 2, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    mixed = job(1, 4, shape=V100, remaining_work=4000.0, heterogeneous=True)
    (start,) = planned(Lyra(), snapshot(nodes, [mixed])).allocations
    assert start.shares == (NodeShare("v", 2), NodeShare("t", 2))


def test_a_fungible_job_has_one_gpu_type_at_a_time_and_a_heterogeneous_one_may_have_several():
    nodes = [node("v", 2, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    fungible = job(1, "2-6", shape=V100, remaining_work=1e6, fungible=True)
    before = snapshot(nodes, [fungible])
    assert workers(planned(Lyra(), before), before) == {1: 2}
    mixed = replace(before, training=(replace(fungible, fungible=False, heterogeneous=True),))
    (start,) = planned(Lyra(), mixed).allocations
    assert start.shares == (NodeShare("v", 2), NodeShare("t", 4))


def test_a_slow_gpu_counts_for_less():
    """With 2 V100s and 2 of 2 T4s a job is as fast as with 2.67 V100s, with 1 of them as with 2.33."""
    nodes = [node("t", 2, gpu_type="T4"), node("v", 4, gpu_type="V100")]
    jobs = [
        job(1, "2-4", {"v": 2}, shape=V100, remaining_work=1000.0, heterogeneous=True),
        job(2, "2-4", {"v": 2}, shape=V100, remaining_work=980.0, heterogeneous=True),
    ]
    before = snapshot(nodes, jobs)
    assert workers(planned(Lyra(mixed_efficiency=1.0), before), before) == {1: 3, 2: 3}
    fast = Lyra(gpu_speeds={"t4": 4.0})
    assert sum(workers(planned(fast, before), before).values()) == 6


def test_a_job_has_its_fill_of_fast_gpus_before_slow_ones():
    nodes = [node("v", 3, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    mixed = job(1, "2-4", shape=V100, remaining_work=1e5, heterogeneous=True)
    (start,) = planned(Lyra(mixed_efficiency=1.0), snapshot(nodes, [mixed])).allocations
    assert start.shares == (NodeShare("v", 3), NodeShare("t", 1))


def test_idle_fast_gpus_replace_slow_ones_of_a_job_that_may_have_no_more_workers():
    nodes = [node("v", 3, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    full = job(1, "2-4", {"v": 2, "t": 2}, shape=V100, remaining_work=1e5, heterogeneous=True)
    before = snapshot(nodes, [full])
    plan = planned(Lyra(mixed_efficiency=1.0), before)
    check_plan(before, plan)
    (change,) = plan.allocations
    assert change.shares == (NodeShare("v", 3), NodeShare("t", 1))
    assert "faster" in change.why
    nearly_done = replace(before, training=(replace(full, remaining_work=1.0, change_cost_s=1.0),))
    assert planned(Lyra(mixed_efficiency=1.0), nearly_done).allocations == ()


def test_gpus_of_replaced_workers_are_shared_out_in_the_same_plan():
    nodes = [node("v", 4, gpu_type="V100"), node("t", 4, gpu_type="T4", features=frozenset({"borrowed"}))]
    full = job(1, "2-4", {"v": 2, "t": 2}, shape=V100, remaining_work=1e5, heterogeneous=True)
    slow = job(2, "2-4", {"t": 2}, remaining_work=1e3)
    before = snapshot(nodes, [full, slow])
    plan = planned(Lyra(mixed_efficiency=1.0), before)
    check_plan(before, plan)
    assert {each.job.job_id: each.shares for each in plan.allocations} == {
        1: (NodeShare("v", 4),),
        2: (NodeShare("t", 4),),
    }


def test_gpus_that_add_less_than_mixing_them_costs_are_left_alone():
    """2 V100s and a T4 do 0.8 times 2.33, which is less than 2; and 4 T4s with them are 2.67."""
    nodes = [node("t", 4, gpu_type="T4"), node("v", 2, gpu_type="V100")]
    one = job(1, "2-3", {"v": 2}, shape=V100, remaining_work=1e5, heterogeneous=True)
    before = snapshot(nodes, [one])
    assert workers(planned(Lyra(mixed_efficiency=0.8), before), before) == {1: 2}
    more = replace(before, training=(replace(one, workers=Range(2, 6)),))
    assert workers(planned(Lyra(mixed_efficiency=0.8), more), more) == {1: 6}


def test_an_impossible_speed_is_refused():
    with pytest.raises(ValueError, match=r"above 0\b.*\bT4\b.*\b0\b"):
        Lyra(gpu_speeds={"T4": 0})
    with pytest.raises(ValueError, match="at most 1"):
        Lyra(mixed_efficiency=1.1)


def test_nothing_is_placed_on_a_node_that_may_not_be_used():
    before = snapshot([node("n", unusable="DOWN")], [job(1, "1-4", remaining_work=10.0)])
    assert planned(Lyra(), before).allocations == ()
