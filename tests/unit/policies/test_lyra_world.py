"""Lyra applied again and again to clusters that carry its plans out: always safe, and soon at rest."""

from __future__ import annotations

import math
from dataclasses import replace

from flat_records import change_node
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples
from training_jobs import after, check_plan, planned, snapshots

from flexo.model.plans import Plan, Snapshot
from flexo.policies.lyra import Lyra


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Clusters with inference servers on loan, costs of changes, and jobs that are at home anywhere."""
    before = draw(snapshots(types=("v100", "T4")))
    nodes = [
        replace(each, features=frozenset(draw(st.sampled_from([[], ["borrowed"]])))) for each in before.nodes
    ]
    jobs = [
        replace(
            each,
            change_cost_s=draw(st.sampled_from([0.0, 0.0, 30.0])),
            weight=draw(st.sampled_from([1.0, 1.0, 0.25])),
            fungible=not each.shape.gpu_type and draw(st.booleans()),
        )
        for each in before.training
    ]
    return replace(before, nodes=tuple(nodes), training=tuple(jobs))


def check_bases(before: Snapshot, plan: Plan) -> None:
    """Lyra never preempts: whoever runs goes on running."""
    assert all(each.shares for each in plan.allocations)
    assert not plan.drops


@given(before=worlds())
@settings(max_examples=examples(200), deadline=None)
def test_a_plan_of_lyra_is_safe_and_preempts_nobody(before: Snapshot):
    plan = planned(Lyra(), before)
    check_plan(before, plan)
    check_bases(before, plan)


@given(before=worlds())
@settings(max_examples=examples(100), deadline=None)
def test_lyra_comes_to_rest_while_nothing_happens(before: Snapshot):
    for _ in range(8):
        plan = planned(Lyra(), before)
        check_plan(before, plan)
        if not plan.allocations:
            return
        before = after(before, plan)
    raise AssertionError(f"still changing: {plan.allocations}")


@given(before=worlds(), steps=st.lists(st.sampled_from([1.0, 300.0, 5_000.0]), min_size=1, max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_lyra_stays_safe_while_time_goes_by_and_jobs_end(before: Snapshot, steps: list[float]):
    for seconds in steps:
        plan = planned(Lyra(), before)
        check_plan(before, plan)
        check_bases(before, plan)
        before = ended(after(before, plan, seconds))


def ended(now: Snapshot) -> Snapshot:
    """`now` without the jobs that have nothing left to do."""
    gone = [each for each in now.training if each.shares and each.remaining_work == 0.0]
    freed: dict[str, int] = {}
    for each in gone:
        for share in each.shares:
            freed[share.node] = freed.get(share.node, 0) + share.workers * each.shape.gpus
    nodes = [
        change_node(each, gpus_allocated=each.allocated.gpus - freed.get(each.name, 0)) for each in now.nodes
    ]
    return replace(now, nodes=tuple(nodes), training=tuple(each for each in now.training if each not in gone))


@given(before=worlds())
@settings(max_examples=examples(30), deadline=None)
def test_equal_snapshots_have_equal_plans_of_lyra(before: Snapshot):
    assert planned(Lyra(), before) == planned(Lyra(), before)


@given(before=snapshots(gpus_per_worker=1))
@settings(max_examples=examples(60), deadline=None)
def test_lyra_leaves_nothing_idle_that_a_waiting_base_could_use(before: Snapshot):
    """With flexible workers counted as idle, because they are taken back. Unless room is kept for one."""
    now = after(before, planned(Lyra(patience_s=math.inf), before))
    idle = sum(each.gpus_idle for each in now.nodes)
    for each in now.training:
        if not each.shares:
            assert each.workers.min > idle
