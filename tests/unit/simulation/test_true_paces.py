"""Jobs on slower GPUs take longer, in truth and in what policies see of them."""

from __future__ import annotations

import pytest
from little_simulations import Doing, Script, allocate, by_number, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.plans import Allocate
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo_protos.resources import Resources
from flexo_simulation.costs import Costs
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

V100 = Resources(1, 1, gpu_type="v100")
V_NODE, T_NODE = "v1", "t1"
MIXED = (NodeGroup(1, 4, "v100", "v"), NodeGroup(1, 4, "t4", "t"))


def run(jobs, script, nodes=MIXED, **changes):
    settings = {"gpu_speeds": GpuSpeeds({"T4": 0.25}, 0.8), "estimates": Estimates(Mode.ORACLE)} | changes
    return simulate(Workload("test", tuple(jobs)), Doing(script), Scenario(nodes, **settings))


def ended(jobs, script, **changes):
    return {number: record.ended_at for number, record in by_number(run(jobs, script, **changes)).items()}


def on(number: int, *shares: NodeShare) -> Allocate:
    return Allocate(JobKey(number), shares, "the test says so")


def at(words):
    """What jobs are to have from given instants on."""
    left = dict(words)

    def say(jobs, placement):
        return [each for when in sorted(left) if when <= jobs.at for each in left.pop(when)]

    return say


def test_a_job_takes_as_much_longer_as_its_gpus_are_slower():
    jobs = [trace_job(1, 100.0, 2, shape=V100), trace_job(2, 100.0, 2, shape=V100, fungible=True)]
    script = at({0.0: [on(1, NodeShare(V_NODE, 2)), on(2, NodeShare(T_NODE, 2))]})
    assert ended(jobs, script) == {1: 100.0, 2: 400.0}


def test_a_heterogeneous_job_splits_its_batch_by_speed_and_loses_what_is_stated():
    """A V100 and 4 T4s of 0.25 are 2 V100s, less a fifth."""
    jobs = [trace_job(1, 100.0, 5, shape=V100, heterogeneous=True)]
    script = at({0.0: [on(1, NodeShare(V_NODE, 1), NodeShare(T_NODE, 4))]})
    assert ended(jobs, script)[1] == pytest.approx(500.0 / (2 * 0.8))


def test_a_job_that_moves_goes_on_at_the_pace_of_its_new_gpus_and_pays_for_the_move():
    jobs = [trace_job(1, 100.0, 2, shape=V100, fungible=True), trace_job(2, 1.0, 1, at=40.0, shape=V100)]
    script = at(
        {
            0.0: [on(1, NodeShare(T_NODE, 2))],
            40.0: [on(1, NodeShare(V_NODE, 2)), on(2, NodeShare(V_NODE, 1))],
        }
    )
    assert ended(jobs, script, costs=Costs(resize_s=5.0))[1] == pytest.approx(40.0 + 5.0 + 100.0 - 10.0)


def test_of_a_job_that_asks_for_no_type_the_duration_is_that_on_the_fastest_of_the_cluster():
    jobs = [trace_job(1), trace_job(2)]
    script = at({0.0: [on(1, NodeShare(V_NODE, 1)), on(2, NodeShare(T_NODE, 1))]})
    assert ended(jobs, script) == {1: 100.0, 2: 400.0}
    slow_only = (NodeGroup(1, 4, "t4", "t"),)
    assert ended(jobs[:1], at({0.0: [on(1, NodeShare(T_NODE, 1))]}), nodes=slow_only) == {1: 100.0}


def test_where_gpus_have_no_types_nothing_is_slower():
    assert ended([trace_job(1)], at({0.0: [allocate(1, 1, "n1")]}), nodes=(NodeGroup(1, 4),)) == {1: 100.0}


def test_policies_see_what_is_left_at_the_pace_at_which_it_is_done():
    seen = Script({})
    jobs = [trace_job(1, 100.0, 2, shape=V100, fungible=True), trace_job(2, 1.0, at=40.0, shape=V100)]
    script = at({0.0: [on(1, NodeShare(T_NODE, 2))], 40.0: [on(2, NodeShare(V_NODE, 1))]})

    def look(jobs, placement):
        seen(jobs, placement)
        return script(jobs, placement)

    run(jobs, look)
    later = next(look for look in seen.seen if look.at == 40.0)
    job = later.training[0]
    assert (job.pace, job.rate_now) == (0.25, 0.5)
    assert job.remaining_at(40.0) == pytest.approx(200.0 - 40.0 * 2 * 0.25)


def test_a_time_limit_is_of_the_time_that_really_passes():
    jobs = [trace_job(1, 100.0, shape=V100, fungible=True, time_limit_s=150)]
    script = at({0.0: [on(1, NodeShare(T_NODE, 1))]})
    assert ended(jobs, script, limits_end_jobs=True) == {1: 150.0}
