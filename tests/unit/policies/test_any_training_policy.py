"""What holds of every plan of the policies that queue, whatever the cluster looks like."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import examples
from training_jobs import after, check_plan, planned, snapshots

from flexo.model.plans import Snapshot
from flexo.policies import registry

QUEUEING = ("fifo", "backfill", "srtf", "tiresias", "elastic-tiresias", "tiresias-pollux")


@pytest.mark.parametrize("name", QUEUEING)
@given(before=snapshots(types=("v100", "t4")))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_never_over_commits_nor_drops_a_base_nor_leaves_a_range(name: str, before: Snapshot):
    check_plan(before, planned(registry.make(name), before))


@pytest.mark.parametrize("name", QUEUEING)
@given(before=snapshots())
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_equal_snapshots_have_equal_plans(name: str, before: Snapshot):
    assert planned(registry.make(name), before) == planned(registry.make(name), before)


@pytest.mark.parametrize("name", QUEUEING)
@given(before=snapshots(gpus_per_worker=1))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_planning_again_what_was_planned_changes_nothing(name: str, before: Snapshot):
    policy = registry.make(name)
    now = after(before, planned(policy, before))
    assert planned(policy, now).allocations == ()


@pytest.mark.parametrize("name", QUEUEING)
@given(before=snapshots(types=("v100", "t4")), seconds=st.sampled_from([1.0, 900.0, 90_000.0]))
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plans_stay_right_as_time_goes_by(name: str, before: Snapshot, seconds: float):
    policy = registry.make(name)
    for _ in range(4):
        plan = planned(policy, before)
        check_plan(before, plan)
        before = after(before, plan, seconds)


@pytest.mark.parametrize("name", registry.names())
@given(before=snapshots(types=("v100", "t4"), shared=True))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_workers_that_take_a_part_of_a_gpu_are_placed_like_others(name: str, before: Snapshot):
    check_plan(before, planned(registry.make(name), before))
