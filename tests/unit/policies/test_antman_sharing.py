"""AntMan's Algorithm 1 with shared GPUs: lines 9 and 10 look at second seats, and nothing is taken."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import NOW
from test_antman import carried_out, check_guarantees, cluster, guaranteed, of, shares_of, tenancies
from thorough import examples
from training_jobs import node, planned, workers

from flexo.model.plans import Plan, Snapshot
from flexo.model.training import NodeShare
from flexo.policies.antman import AntMan
from flexo_protos.resources import Resources

SHARING = AntMan(share_gpus=True)


def in_second_seats(plan: Plan) -> set[int]:
    return {each.job.job_id for each in plan.allocations if each.shared}


def test_an_opportunistic_job_starts_beside_a_guaranteed_one():
    jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True, utilization=0.5), of("b", 2, 4)]
    before = cluster([node("n", 4)], jobs, a=4)
    plan = planned(SHARING, before)
    assert workers(plan, before) == {1: 4, 2: 4}
    assert (in_second_seats(plan), guaranteed(plan)) == ({2}, set())
    assert planned(AntMan(), before).allocations == ()


def test_gpus_that_are_busy_for_m_of_the_time_take_no_second_job():
    def beside(utilization: float) -> set[int]:
        jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True, utilization=utilization), of("b", 2, 1)]
        return in_second_seats(planned(SHARING, cluster([node("n", 4)], jobs, a=4)))

    assert beside(0.79) == {2}
    assert beside(0.8) == set()
    assert beside(1.0) == set()


def test_the_least_busy_gpus_come_first():
    jobs = [
        of("a", 1, 2, {"n": 2}, guaranteed=True, utilization=0.3),
        of("a", 2, 2, {"m": 2}, guaranteed=True, utilization=0.1),
        of("b", 3, 2),
    ]
    before = cluster([node("n", 2), node("m", 2), node("o", 2)], jobs, a=4)
    (start,) = planned(SHARING, before).allocations
    assert start.shares == (NodeShare("o", 2),)  # nobody is there
    without = cluster([node("n", 2), node("m", 2)], jobs, a=4)
    (start,) = planned(SHARING, without).allocations
    assert start.shares == (NodeShare("m", 2),)


def test_a_gang_starts_at_once_or_not_at_all():
    jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True, utilization=0.5), of("b", 2, 5), of("b", 3, 2)]
    before = cluster([node("n", 4)], jobs, a=4)
    assert workers(planned(SHARING, before), before) == {1: 4, 2: 0, 3: 2}


def test_one_gpu_takes_one_second_job():
    jobs = [
        of("a", 1, 2, {"n": 2}, guaranteed=True, utilization=0.1),
        of("b", 2, 1, {"n": 1}, shared=True),
        of("b", 3, 1),
        of("b", 4, 1),
    ]
    before = cluster([node("n", 2)], jobs, a=2)
    plan = planned(SHARING, before)
    assert in_second_seats(plan) == {3}
    assert workers(plan, before) == {1: 2, 2: 1, 3: 1, 4: 0}


def test_a_guaranteed_job_starts_on_gpus_where_opportunistic_jobs_are_and_takes_none_of_them():
    jobs = [of("b", 1, 4, {"n": 4}, shared=True, utilization=0.9), of("a", 2, 4)]
    before = cluster([node("n", 4)], jobs, a=4)
    plan = planned(SHARING, before)
    assert workers(plan, before) == {1: 4, 2: 4}
    assert guaranteed(plan) == {2}


def test_a_second_job_counts_with_a_guaranteed_one_that_starts_in_the_same_plan():
    jobs = [of("a", 1, 4, utilization=0.9), of("b", 2, 1)]
    before = cluster([node("n", 4)], jobs, a=4)
    assert workers(planned(SHARING, before), before) == {1: 4, 2: 0}


def test_a_job_is_upgraded_where_it_sits_once_owners_seats_are_free_for_all_of_it():
    """Two of its GPUs have an owner: part of a job is not upgraded."""
    guest = of("a", 1, 4, {"n": 4}, shared=True, started_at=NOW - 50, most_workers=4)
    owner = of("a", 2, 1, {"n": 1}, guaranteed=True, utilization=0.2)
    before = cluster([node("n", 4)], [guest, owner], a=8)
    assert planned(SHARING, before).allocations == ()
    alone = cluster([node("n", 4)], [guest], a=8)
    (upgrade,) = planned(SHARING, alone).allocations
    assert (upgrade.shares, upgrade.guaranteed, upgrade.shared) == (guest.shares, True, False)


def test_an_upgrade_needs_the_quota_for_all_of_the_job_and_comes_before_new_jobs():
    guest = of("a", 1, 2, {"n": 2}, shared=True, most_workers=2)
    assert planned(SHARING, cluster([node("n", 4)], [guest], a=1)).allocations == ()
    before = cluster([node("n", 2)], [guest, of("a", 2, 2)], a=2)
    plan = planned(SHARING, before)
    assert guaranteed(plan) == {1}
    assert workers(plan, before) == {1: 2, 2: 0}


def test_two_jobs_in_second_seats_are_not_upgraded_into_the_same_owners_seats():
    guests = [of("a", number, 2, {"n": 2}, shared=True, most_workers=2) for number in (1, 2)]
    before = cluster([node("n", 4, gpus_allocated=2)], guests, a=8)
    assert guaranteed(planned(SHARING, before)) == {1}


def test_a_job_that_was_declared_opportunistic_stays_in_its_second_seat():
    guest = of("a", 1, 2, {"n": 2}, shared=True, opportunistic=True)
    assert planned(SHARING, cluster([node("n", 4)], [guest], a=4)).allocations == ()


def test_a_job_that_waits_within_its_quota_is_asked_about_again_when_its_patience_is_over():
    jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True), of("a", 2, 3, waiting_since=NOW - 100.0)]
    before = cluster([node("n", 4)], jobs, a=4)
    for policy in (AntMan(), SHARING):
        assert planned(policy, before).again_at == NOW + 500.0
        later = replace(before, at=NOW + 500.0)
        assert planned(policy, later).again_at is None
    assert planned(AntMan(patience_s=float("inf")), before).again_at is None


def test_workers_of_several_gpus_have_second_seats_on_one_node():
    wide = Resources(2, 1)
    jobs = [of("a", 1, 3, {"n": 2, "m": 1}, guaranteed=True, utilization=0.4), of("b", 2, 2, shape=wide)]
    before = cluster([node("n", 2), node("m", 3)], jobs, a=3)
    plan = planned(SHARING, before)
    assert workers(plan, before) == {1: 3, 2: 2}


@given(before=tenancies(), busy=st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=1, max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_plans_overcommit_no_seat_keep_to_quotas_preempt_nobody_and_come_to_rest(
    before: Snapshot, busy: list[float]
):
    jobs = tuple(
        replace(each, utilization=busy[number % len(busy)], guaranteed=bool(each.shares) and each.guaranteed)
        for number, each in enumerate(before.training)
    )
    # whoever runs without a guarantee in an owner's seat may be taken: begin with nobody there
    began = replace(before, training=tuple(replace(each, shares=(), base=()) for each in jobs))
    free = {each.name: 0 for each in before.nodes}
    for each in before.training:
        for share in each.shares:
            free[share.node] += share.workers * each.shape.gpus
    began = replace(
        began,
        nodes=tuple(
            replace(each, allocated=replace(each.allocated, gpus=each.allocated.gpus - free[each.name]))
            for each in before.nodes
        ),
    )
    now = began
    for _ in range(6):
        plan = planned(SHARING, now)
        assert planned(SHARING, now) == plan
        assert all(each.shares for each in plan.allocations), "nothing is taken"
        after = carried_out(now, plan)
        check_guarantees(now, after)
        check_seats(after)
        if not plan.allocations:
            return
        now = after
    raise AssertionError(f"still changing: {plan.allocations}")


def check_seats(now: Snapshot) -> None:
    for each in now.nodes:
        assert each.allocated.gpus <= each.gpus
        guests = [
            share.workers * job.shape.gpus
            for job in now.training
            if job.shared
            for share in job.shares
            if share.node == each.name
        ]
        assert sum(guests) <= each.gpus
    assert len(shares_of(now)) == len(now.training)


def test_a_job_in_a_second_seat_counts_as_being_on_the_least_busy_gpu_of_its_node():
    jobs = [
        of("a", 1, 1, {"n": 1}, guaranteed=True, utilization=0.9),
        of("a", 2, 1, {"n": 1}, guaranteed=True, utilization=0.1),
        of("b", 3, 1, {"n": 1}, shared=True),
        of("b", 4, 1),
    ]
    assert planned(SHARING, cluster([node("n", 2)], jobs, a=2)).allocations == ()


def test_the_seats_of_a_job_are_gone_for_the_next_one_of_the_same_plan():
    owners = [
        of("a", 1, 1, {"n": 1}, guaranteed=True, utilization=0.1),
        of("a", 2, 2, {"n": 2}, guaranteed=True, utilization=0.5),
        of("a", 3, 1, {"o": 1}, guaranteed=True, utilization=0.5),
        of("a", 4, 1, {"m": 1}, guaranteed=True, utilization=0.3),
    ]
    before = cluster([node("n", 3), node("o", 1), node("m", 1)], [*owners, of("b", 5, 3), of("b", 6, 1)], a=5)
    first, second = planned(SHARING, before).allocations
    assert first.shares == (NodeShare("n", 3),)
    assert second.shares == (NodeShare("m", 1),)  # o is busier


def test_the_owners_seats_of_an_upgraded_job_are_gone_for_guaranteed_jobs_of_the_same_plan():
    guest = of("a", 1, 2, {"n": 2}, shared=True, most_workers=2)
    before = cluster([node("n", 4)], [guest, of("a", 2, 4), of("a", 3, 2)], a=8)
    plan = planned(SHARING, before)
    assert guaranteed(plan) == {1}
    assert workers(plan, before) == {1: 2, 2: 0, 3: 0}
