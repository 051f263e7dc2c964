"""AntMan's rules (sections 3.2 and 3.3), one by one, and on random small clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import NOW
from thorough import examples
from training_jobs import after, check_plan, job, node, pending_order, planned, snapshot, snapshots, workers

from flexo.model.plans import Plan, Snapshot
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, Quota, TrainingJob
from flexo.policies.antman import AntMan
from flexo_protos.resources import Resources


def cluster(nodes: Sequence, jobs: Sequence[TrainingJob], **quotas: int) -> Snapshot:
    """With these tenants' quotas."""
    return replace(
        snapshot(nodes, jobs), quotas=tuple(Quota(tenant, gpus) for tenant, gpus in quotas.items())
    )


def of(tenant: str, job_id: int, size: int, on=None, **changes) -> TrainingJob:
    """A job of `tenant` that has only just come."""
    return job(job_id, size, on, tenant=tenant, **{"waiting_since": NOW, **changes})


def guaranteed(plan: Plan) -> set[int]:
    return {each.job.job_id for each in plan.allocations if each.guaranteed}


def carried_out(before: Snapshot, plan: Plan) -> Snapshot:
    """`after`, and the jobs know whether they are guaranteed."""
    flags = {each.job: each.guaranteed for each in plan.allocations}
    now = after(before, plan)
    jobs = tuple(replace(each, guaranteed=flags.get(each.key, each.guaranteed)) for each in now.training)
    return replace(now, training=jobs)


def test_jobs_within_a_quota_start_guaranteed_and_those_without_one_opportunistically():
    before = cluster([node("n", 8)], [of("a", 1, 3), of("b", 2, 4)], a=4)
    plan = planned(AntMan(), before)
    assert workers(plan, before) == {1: 3, 2: 4}
    assert guaranteed(plan) == {1}


def test_a_guaranteed_job_takes_gpus_from_opportunistic_ones():
    before = cluster([node("n", 4)], [of("b", 1, 4, {"n": 4}), of("a", 2, 3)], a=4)
    plan = planned(AntMan(), before)
    check_plan(before, plan)
    assert workers(plan, before) == {1: 0, 2: 3}
    assert "job 2" in plan.allocations[-1].why


def test_it_takes_idle_gpus_first():
    before = cluster([node("n", 4), node("m", 4)], [of("b", 1, 4, {"n": 4}), of("a", 2, 3)], a=4)
    assert workers(planned(AntMan(), before), before) == {1: 4, 2: 3}


def test_the_opportunistic_job_that_started_last_is_taken_first():
    jobs = [
        of("b", 1, 2, {"n": 2}, started_at=NOW - 10),
        of("b", 2, 2, {"n": 2}, started_at=NOW - 500),
        of("a", 3, 2),
    ]
    before = cluster([node("n", 4)], jobs, a=4)
    assert workers(planned(AntMan(), before), before) == {1: 0, 2: 2, 3: 2}


def test_an_opportunistic_job_that_is_taken_goes_on_elsewhere_if_it_can():
    wide = Resources(4, 1)
    jobs = [of("b", 1, 2, {"n": 2}), of("a", 2, 1, shape=wide)]
    before = cluster([node("n", 4), node("m", 3)], jobs, a=4)
    plan = planned(AntMan(), before)
    check_plan(before, plan)
    assert {each.job: each.shares for each in plan.allocations} == {
        JobKey(2): (NodeShare("n", 1),),
        JobKey(1): (NodeShare("m", 2),),
    }


def test_a_guaranteed_job_is_never_taken():
    jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True), of("b", 2, 2)]
    before = cluster([node("n", 4)], jobs, a=4, b=4)
    assert planned(AntMan(), before).allocations == ()


def test_what_a_quota_leaves_is_reserved_for_the_first_job_that_needs_more():
    """Three GPUs are left while the request is for four: the next job may not have them guaranteed either."""
    jobs = [of("a", 1, 5, {"n": 5}, guaranteed=True), of("a", 2, 4), of("a", 3, 2)]
    before = cluster([node("n", 16)], jobs, a=8)
    assert planned(AntMan(), before).allocations == ()


def test_what_is_reserved_is_used_by_opportunistic_jobs():
    jobs = [of("a", 1, 5, {"n": 5}, guaranteed=True), of("a", 2, 4), of("b", 3, 3)]
    before = cluster([node("n", 8)], jobs, a=8)
    plan = planned(AntMan(), before)
    assert workers(plan, before) == {1: 5, 2: 0, 3: 3}
    assert guaranteed(plan) == set()


def test_gpus_that_do_not_suffice_for_all_of_a_job_are_kept_from_other_guaranteed_jobs():
    """The first needs a whole node and has two halves: nobody else's guarantee takes a half of them."""
    jobs = [
        of("b", 1, 3, {"n": 2, "m": 1}, guaranteed=True),
        of("a", 2, 2, shape=Resources(2, 1)),
        of("b", 3, 2),
    ]
    before = cluster([node("n", 4), node("m", 2)], jobs, a=4, b=5)
    assert planned(AntMan(), before).allocations == ()


def test_a_job_that_waits_for_long_runs_as_an_opportunistic_one():
    jobs = [of("a", 1, 4, {"n": 4}, guaranteed=True), of("a", 2, 3, waiting_since=NOW - 600.0)]
    before = cluster([node("n", 8)], jobs, a=4)
    plan = planned(AntMan(), before)
    assert workers(plan, before) == {1: 4, 2: 3}
    assert guaranteed(plan) == set()
    assert planned(AntMan(patience_s=601.0), before).allocations == ()


def test_a_job_that_is_not_preemptible_waits_for_its_guarantee():
    jobs = [
        of("a", 1, 4, {"n": 4}, guaranteed=True),
        of("a", 2, 3, waiting_since=NOW - 1e6, preemptible=False),
    ]
    before = cluster([node("n", 8)], jobs, a=4)
    assert planned(AntMan(), before).allocations == ()


def test_a_job_is_upgraded_once_the_quota_suffices_for_all_of_it():
    running = of("a", 2, 4, {"n": 4})
    jobs = [of("a", 1, 1, {"n": 1}, guaranteed=True), running]
    too_little = cluster([node("n", 8)], jobs, a=4)
    assert planned(AntMan(), too_little).allocations == ()
    enough = replace(too_little, training=(running,))
    (upgrade,) = planned(AntMan(), enough).allocations
    assert upgrade.shares == running.shares
    assert upgrade.guaranteed


def test_an_upgrade_comes_before_new_jobs():
    jobs = [of("a", 1, 3), of("a", 2, 3, {"n": 3})]
    before = cluster([node("n", 8)], jobs, a=4)
    plan = planned(AntMan(), before)
    assert guaranteed(plan) == {2}
    assert workers(plan, before) == {1: 0, 2: 3}


def test_a_job_that_was_declared_opportunistic_never_uses_the_quota():
    jobs = [of("a", 1, 2, opportunistic=True), of("a", 2, 2, {"n": 2}, opportunistic=True)]
    before = cluster([node("n", 4)], jobs, a=4)
    plan = planned(AntMan(), before)
    assert workers(plan, before) == {1: 2, 2: 2}
    assert guaranteed(plan) == set()


def test_opportunistic_jobs_go_to_the_freest_nodes():
    before = cluster([node("n", 4, gpus_allocated=1), node("m", 8)], [of("b", 1, 3)])
    (start,) = planned(AntMan(), before).allocations
    assert start.shares == (NodeShare("m", 3),)


def test_in_the_queue_jobs_within_their_quotas_come_first_and_what_is_reserved_holds_up_its_tenant_alone():
    jobs = [of("b", 1, 2), of("a", 2, 4), of("a", 3, 6), of("a", 4, 1), of("b", 5, 8), of("c", 6, 2)]
    quotas = (Quota("a", 8, used=2), Quota("c", 4, used=1))
    seen = replace(snapshot([node("n0", 4)], jobs), quotas=quotas)
    # of a's 6, job 2 takes 4, and job 3 has what is left kept for it
    assert pending_order(AntMan(), seen) == [2, 6, 1, 3, 4, 5]


@st.composite
def tenancies(draw: st.DrawFn) -> Snapshot:
    """Clusters of two tenants, one of which may have no quota."""
    before = draw(snapshots())
    jobs = tuple(
        replace(
            each,
            tenant=draw(st.sampled_from("ab")),
            opportunistic=draw(st.sampled_from([False, False, True])),
            most_workers=each.allocated,
        )
        for each in before.training
    )
    gpus = sum(each.gpus for each in before.nodes)
    first = draw(st.integers(0, gpus))
    quotas = (Quota("a", first), Quota("b", draw(st.integers(0, gpus - first))))
    return replace(before, training=jobs, quotas=quotas)


@given(before=tenancies())
@settings(max_examples=examples(200), deadline=None)
def test_plans_are_safe_keep_to_quotas_take_no_guaranteed_job_and_come_to_rest(before: Snapshot):
    for _ in range(6):
        plan = planned(AntMan(), before)
        assert planned(AntMan(), before) == plan
        upgrades = {each.job for each in plan.allocations if each.shares == shares_of(before)[each.job]}
        check_plan(before, Plan(tuple(each for each in plan.allocations if each.job not in upgrades)))
        now = carried_out(before, plan)
        check_guarantees(before, now)
        if not plan.allocations:
            return
        before = now
    raise AssertionError(f"still changing: {plan.allocations}")


def shares_of(seen: Snapshot) -> dict[JobKey, tuple[NodeShare, ...]]:
    return {each.key: each.shares for each in seen.training}


def check_guarantees(before: Snapshot, now: Snapshot) -> None:
    """Guaranteed jobs stay what and where they are, and use no more than their quotas."""
    for was, is_now in zip(before.training, now.training, strict=True):
        if was.guaranteed:
            assert is_now.guaranteed
            assert is_now.shares == was.shares
        assert is_now.shares or not is_now.guaranteed
    for quota in now.quotas:
        used = [each for each in now.training if each.guaranteed and each.tenant == quota.tenant]
        assert sum(each.gpus for each in used) <= quota.gpus
        assert not any(each.opportunistic for each in used)
