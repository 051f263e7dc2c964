"""All policies on small workloads: the cluster refuses what cannot be, and nobody is left behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_simulations import trace_job
from thorough import examples

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import Quota, TrainingJob
from flexo.policies import registry
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.placement import Placement
from flexo_simulation.costs import Costs
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

SHARING = "antman with shared GPUs"
POLICIES = (*registry.built_in("starts_jobs"), SHARING)
"""greedy grants satellites and starts nobody."""


def made(name: str) -> Policy:
    return registry.make("antman", share_gpus=True) if name == SHARING else registry.make(name)


@dataclass(frozen=True)
class Twice(Policy):
    """A policy that is also shown every job as it is at the instant of the decision."""

    policy: Policy
    name: ClassVar[str] = "twice"

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        said = self.policy.targets(jobs, placement)
        now = replace(jobs, training=tuple(_as_of_now(job, jobs.at) for job in jobs.training))
        again = Placement(placement.nodes)
        assert self.policy.targets(now, again).jobs == said.jobs
        for target in said.jobs:
            shares = placement.of(target.job) or ()
            assert (again.of(target.job) or ()) == shares
            assert sum(share.workers for share in shares) == target.workers
        return said


def _as_of_now(job: TrainingJob, now: float) -> TrainingJob:
    """The same job, looked at now."""
    if not job.shares:
        return job
    return replace(job, service_gpu_s=job.service_at(now), remaining_work=job.remaining_at(now), as_of=now)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    def one(number: int, at: int) -> TraceJob:
        low = draw(st.integers(1, 4))
        most = draw(st.integers(low, 8))
        return trace_job(
            number,
            float(2 ** draw(st.integers(0, 12))),
            f"{low}-{most}",
            at=float(at),
            requested_workers=draw(st.integers(low, most)),
            user=draw(st.sampled_from("ab")),
            tenant=draw(st.sampled_from("ab")),
            time_limit_s=draw(st.sampled_from([None, 3600])),
            opportunistic=draw(st.booleans()),
        )

    times = sorted(draw(st.lists(st.integers(0, 1000), min_size=1, max_size=10)))
    return Workload("random", tuple(one(number, at) for number, at in enumerate(times, 1)))


@pytest.mark.parametrize("name", POLICIES)
@given(
    workload=workloads(),
    mode=st.sampled_from([Mode.ORACLE, Mode.PROGRESS]),
    costs=st.sampled_from([Costs(), Costs(start_s=30.0, resize_s=30.0)]),
    interval_s=st.sampled_from([None, 64.0]),
)
@settings(max_examples=examples(25), deadline=None)
def test_its_plans_can_be_and_are_the_same_for_a_job_last_looked_at_earlier(
    name, workload, mode, costs, interval_s
):
    place = Scenario(
        (NodeGroup(2, 4),),
        costs=costs,
        interval_s=interval_s,
        estimates=Estimates(mode),
        quotas=(Quota("a", 4),),
    )
    outcome = simulate(workload, Twice(made(name)), place)
    assert outcome.result.jobs == len(workload.jobs)


@pytest.mark.parametrize("name", POLICIES)
def test_with_ticks_it_lets_every_job_finish(name):
    jobs = tuple(
        trace_job(
            n, 50.0 * (n % 7 + 1), "1-4" if n % 3 else 4, at=20.0 * n, tenant="ab"[n % 2], user="ab"[n % 2]
        )
        for n in range(1, 40)
    )
    place = Scenario((NodeGroup(2, 4),), costs=Costs(5.0, 5.0), interval_s=60.0, quotas=(Quota("a", 4),))
    outcome = simulate(Workload("test", jobs), made(name), place)
    assert outcome.result.finished + round(outcome.result.drop_ratio * 39) == 39
