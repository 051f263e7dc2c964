"""Targets of policies that do not say where workers go: put in their order, beside what jobs have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import examples
from training_jobs import after, check_plan, job, node, planned, snapshot, snapshots, workers

from flexo.model.queue import JobKey
from flexo.model.training import NodeShare
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.greedy import Greedy
from flexo.policies.placement import Placement


@dataclass(frozen=True)
class Wanting(Policy):
    """Fixed numbers of workers by the job's number, in this order; where they go it does not say."""

    sizes: Mapping[int, int]
    evenly: bool = False
    name: ClassVar[str] = "wanting"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        targets = (Target(JobKey(number), workers, "it wants so") for number, workers in self.sizes.items())
        return Targets(tuple(targets), evenly=self.evenly)


def test_the_first_target_is_served_first():
    before = snapshot([node("n", 6)], [job(1, "1-4"), job(2, "1-4")])
    assert workers(planned(Wanting({2: 4, 1: 4}), before), before) == {1: 2, 2: 4}
    assert workers(planned(Wanting({1: 4, 2: 4}), before), before) == {1: 4, 2: 2}


def test_what_one_job_gives_up_another_may_have():
    before = snapshot([node("n", 4)], [job(1, "1-4", {"n": 4}), job(2, 2)])
    assert workers(planned(Wanting({2: 2, 1: 2}), before), before) == {1: 2, 2: 2}


def test_a_job_that_runs_keeps_what_it_has_before_an_earlier_one_gets_more():
    before = snapshot([node("n", 4)], [job(1, "1-4", {"n": 2}), job(2, "1-4", {"n": 2})])
    assert planned(Wanting({1: 4, 2: 2}), before).allocations == ()


def test_a_job_grows_beside_what_it_has():
    before = snapshot([node("n", 4), node("m", 8)], [job(1, "1-4", {"n": 2})])
    (grown,) = planned(Wanting({1: 4}), before).allocations
    assert grown.shares == (NodeShare("n", 4),)


def test_a_job_that_does_not_fit_even_with_its_least_waits_and_others_start():
    before = snapshot([node("n", 4)], [job(1, "5-8"), job(2, 2)])
    assert workers(planned(Wanting({1: 8, 2: 2}), before), before) == {1: 0, 2: 2}


def test_a_target_of_none_stops_a_job_only_where_that_may_be():
    jobs = [job(1, 2, {"n": 2}), job(2, 2, {"n": 2}, preemptible=False)]
    before = snapshot([node("n", 4)], jobs)
    assert workers(planned(Wanting({1: 0, 2: 0}), before), before) == {1: 0, 2: 2}


def test_evenly_workers_go_to_the_job_that_has_the_fewest():
    before = snapshot([node("n", 8)], [job(1, "1-8", {"n": 5}), job(2, "1-8"), job(3, "1-2")])
    assert workers(planned(Wanting({1: 8, 2: 8, 3: 8}, evenly=True), before), before) == {1: 3, 2: 3, 3: 2}


def test_greedy_lets_running_jobs_share_evenly_and_starts_nobody():
    before = snapshot([node("n", 8)], [job(1, "1-8", {"n": 3}), job(2, "1-8", {"n": 1}), job(3, 1)])
    assert workers(planned(Greedy(), before), before) == {1: 4, 2: 4, 3: 0}


@pytest.mark.parametrize("evenly", [False, True])
@given(before=snapshots(types=("v100", "t4")), data=st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_wanted_nothing_is_over_committed_and_no_job_leaves_its_range(evenly, before, data):
    sizes = {each.key.job_id: data.draw(st.integers(0, 12)) for each in before.training}
    plan = planned(Wanting(sizes, evenly), before)
    check_plan(before, plan)
    check_plan(after(before, plan), planned(Wanting(sizes, evenly), after(before, plan)))
