"""Inference servers lent to jobs in a simulation, by the code that flexod runs: never used by both sides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_simulations import Doing, by_number, greedy_fifo, trace_job
from thorough import examples

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim import exact, random_choice
from flexo.loaning.reclaim_steps import Timing
from flexo.model.plans import Allocate
from flexo.model.training import NodeShare, Quota
from flexo.policies.antman import AntMan
from flexo.policies.base import Jobs, Policy
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.policies.lyra import Lyra
from flexo.policies.placement import Placement
from flexo_protos.resources import Resources
from flexo_simulation.costs import Costs
from flexo_simulation.demand_trace import DemandTrace
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.inference import Inference
from flexo_simulation.records import End
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

SERVERS, GPUS = 3, 4
RULES = Rules(
    headroom_servers=0.0,
    most_per_interval=10,
    interval_s=10.0,
    rest_s=0.0,
    hysteresis_servers=0.0,
    reclaim_s=100.0,
)
TIMING = Timing(save_within_s=0.0, preempt_within_s=60.0, force_within_s=0.0)
NO_DEMAND = DemandTrace("nothing", (0.0,), (0.0,))


def busy_from(at: float, until: float = math.inf) -> DemandTrace:
    """All servers are needed from one instant to another, and none before and after."""
    steps = [(0.0, 0.0), (at, float(SERVERS)), (until, 0.0)]
    known = [step for step in steps if step[0] < math.inf]
    return DemandTrace("a rush", tuple(at for at, _ in known), tuple(servers for _, servers in known))


def inference(demand: DemandTrace = NO_DEMAND, **changes) -> Inference:
    usual = {"rules": RULES, "timing": TIMING, "edit_interval_s": 0.0, "forecast": False}
    return Inference(NodeGroup(SERVERS, GPUS, "", "i"), demand, **(usual | changes))


def run(
    jobs: list[TraceJob], beside: Inference | None, policy: Policy | None = None, **scenario
) -> SimulatedRun:
    """On one training node n1."""
    place = Scenario((NodeGroup(1, GPUS),), estimates=Estimates(Mode.ORACLE), inference=beside, **scenario)
    return simulate(Workload("test", tuple(jobs)), policy or Doing(greedy_fifo), place)


def four(seconds: float = 1000.0, **changes) -> list[TraceJob]:
    """As many jobs as there are nodes, each as large as one."""
    return [trace_job(number, seconds, GPUS, **changes) for number in range(1, SERVERS + 2)]


def test_idle_servers_are_lent_and_jobs_start_on_them_at_once():
    outcome = run(four(), inference())
    assert [record.jct_s for record in outcome.records] == [1000.0] * 4
    assert [record.on_loan for record in outcome.records] == [False, True, True, True]
    assert outcome.result.loans is not None
    assert outcome.result.loans.loans == SERVERS
    assert outcome.result.loans.on_loan_use == pytest.approx(1.0)
    assert outcome.result.loans.server_hours == pytest.approx(SERVERS * 1000 / 3600)


def test_servers_that_inference_needs_are_not_lent():
    outcome = run(four(), inference(DemandTrace("two", (0.0,), (1.5,))))
    assert outcome.loans is not None
    assert {moment.used for moment in outcome.loans.course} == {2}
    assert max(moment.away for moment in outcome.loans.course) == 1


def test_where_nothing_is_lent_jobs_run_as_if_there_were_no_inference_cluster():
    alone, beside = run(four(), None), run(four(), inference(lends=False))
    assert beside.records == alone.records
    assert alone.result.loans is None
    assert "loans" not in alone.result.to_json()
    assert beside.result.loans is not None
    assert beside.result.loans.loans == 0
    assert beside.result.events == alone.result.events


def test_no_more_servers_are_lent_than_jobs_ask_for_if_only_those_are():
    # the second comes when the first has the training node
    jobs = [trace_job(number, 200.0, GPUS, at=at) for number, at in ((1, 0.0), (2, 25.0))]
    outcome = run(jobs, inference(only_asked=True))
    assert [record.end for record in outcome.records] == [End.FINISHED] * 2
    assert outcome.loans is not None
    assert max(moment.away for moment in outcome.loans.course) == 1
    assert outcome.result.loans is not None
    assert outcome.result.loans.on_loan_use > 0.9
    all_idle = run(jobs, inference())
    assert all_idle.loans is not None
    assert max(moment.away for moment in all_idle.loans.course) == SERVERS


def test_jobs_ask_for_servers_that_are_of_use_to_them_and_for_no_more_than_they_lack():
    def asked(*jobs: TraceJob, gpu_type: str = "v100") -> int:
        """The most servers away while the jobs run beside a full training node."""
        shape = Resources(gpus=1, cpus=1, gpu_type=gpu_type)
        full = trace_job(1, 1000.0, GPUS, shape=shape)
        others = [replace(job, shape=shape) for job in jobs]
        servers = Inference(
            NodeGroup(SERVERS, GPUS, "t4", "i"), NO_DEMAND, rules=RULES, timing=TIMING, edit_interval_s=0.0,
            forecast=False, only_asked=True,
        )  # fmt: skip
        place = Scenario(
            (NodeGroup(1, GPUS, "v100"),), estimates=Estimates(Mode.ORACLE), inference=servers,
            gpu_speeds=GpuSpeeds({}),
        )  # fmt: skip
        loans = simulate(Workload("test", (full, *others)), Lyra(gpu_speeds={}), place).loans
        assert loans is not None
        return max(moment.away for moment in loans.course)

    assert asked(trace_job(2, 100.0, 2)) == 0
    assert asked(trace_job(2, 100.0, 2, fungible=True)) == 1
    assert asked(trace_job(2, 100.0, 2, fungible=True), trace_job(3, 100.0, 3, fungible=True)) == 2


def test_servers_are_back_by_the_deadline_and_their_jobs_go_on_later():
    outcome = run(four(), inference(busy_from(500.0, 2000.0)))
    assert outcome.loans is not None
    assert outcome.result.loans is not None
    assert len(outcome.loans.past) == SERVERS
    assert outcome.result.loans.longest_reclaim_s == RULES.reclaim_s - TIMING.preempt_within_s
    assert outcome.result.loans.deadlines_missed == 0
    assert outcome.result.loans.bases_preempted == SERVERS
    assert [record.preemptions for record in outcome.records] == [0, 1, 1, 1]
    assert all(record.end is End.FINISHED for record in outcome.records)
    # 540 s before the preemption, 460 s after it: nothing is lost
    assert by_number(outcome)[2].gpu_s == pytest.approx(GPUS * 1000.0)


def test_a_preempted_job_without_checkpoints_begins_anew():
    outcome = run(four(), inference(busy_from(500.0, 2000.0)), checkpoints=False)
    assert by_number(outcome)[1].gpu_s == pytest.approx(GPUS * 1000.0)
    assert by_number(outcome)[2].gpu_s == pytest.approx(GPUS * 1540.0)


def test_inference_uses_its_servers_as_soon_as_they_are_empty():
    outcome = run(four(), inference(busy_from(500.0, 2000.0)))
    assert outcome.loans is not None
    back = next(moment.at for moment in outcome.loans.course if moment.used == SERVERS)
    assert 540.0 <= back <= 600.0
    assert outcome.result.loans is not None
    assert outcome.result.loans.inference_short_server_hours == pytest.approx(SERVERS * (back - 500.0) / 3600)


def test_workers_beyond_a_jobs_base_leave_first_and_nobody_is_preempted():
    jobs = [trace_job(1, 1000.0, "4-16")]
    outcome = run(jobs, inference(busy_from(500.0)), Lyra(inference="borrowed"))
    assert outcome.result.loans is not None
    assert outcome.result.preemptions == 0
    assert outcome.result.loans.workers_scaled_in == SERVERS * GPUS
    assert outcome.result.loans.servers_reclaimed == SERVERS
    assert outcome.result.loans.longest_reclaim_s == 0.0


def test_a_server_whose_call_is_taken_back_has_newcomers_when_it_is_in_the_partition_again():
    jobs = [trace_job(1, 1000.0, GPUS), trace_job(2, 1000.0, 2), trace_job(3, 100.0, 2, at=525.0)]
    outcome = run(jobs, inference(busy_from(500.0, 515.0), edit_interval_s=60.0))
    assert outcome.result.preemptions == 0
    assert by_number(outcome)[3].first_start_at == 560.0


def test_a_server_that_is_not_vacated_is_taken_at_its_deadline_and_counted():
    late = Timing(save_within_s=0.0, preempt_within_s=-1000.0, force_within_s=0.0)
    outcome = run(four(), inference(busy_from(500.0, 2000.0), timing=late))
    assert outcome.result.loans is not None
    assert outcome.result.loans.deadlines_missed == SERVERS
    assert outcome.result.loans.bases_preempted == SERVERS
    assert outcome.result.finished == 4
    assert outcome.loans is not None
    assert {moment.away for moment in outcome.loans.course if 600.0 < moment.at < 2000.0} <= {0}


def test_a_server_emptied_because_its_job_went_for_another_is_counted():
    def across_two(jobs: Jobs, placement: Placement) -> list[Allocate]:
        lent = {node.name for node in placement.nodes if node.gpus_idle} - {"n1"}
        waits = [job.key for job in jobs.training if not job.shares]
        shares = (NodeShare("i1", 2), NodeShare("i2", 2))
        return [Allocate(key, shares, "it fits") for key in waits if {"i1", "i2"} <= lent]

    rush = DemandTrace("two, then none", (0.0, 500.0, 2000.0), (0.0, 2.0, 0.0))
    outcome = run([trace_job(1, 1000.0, GPUS)], inference(rush), Doing(across_two))
    assert outcome.result.loans is not None
    assert outcome.result.loans.servers_reclaimed == 2
    assert outcome.result.loans.bases_preempted == 1
    assert outcome.result.loans.servers_emptied_aside == 1
    assert outcome.loans is not None
    assert sum(loan.servers_emptied_beside for loan in outcome.loans.past) == 1


def test_equal_simulations_have_equal_outcomes():
    def once() -> SimulatedRun:
        chooser = random_choice(3)
        return run(four(700.0), inference(busy_from(300.0, 900.0), chooser=chooser), Lyra())

    first, second = once(), once()
    assert first.records == second.records
    assert first.loans == second.loans


def test_policies_that_decide_at_intervals_get_servers_at_those():
    outcome = run(four(), inference(busy_from(505.0, 2000.0)), interval_s=60.0)
    assert outcome.result.finished == 4
    assert outcome.result.loans is not None
    assert outcome.result.loans.loans >= SERVERS


def test_demand_above_the_clusters_size_takes_all_of_it_and_does_no_harm():
    outcome = run(four(), inference(DemandTrace("much", (0.0, 500.0, 2000.0), (0.0, 99.0, 0.0))))
    assert outcome.result.finished == 4
    assert outcome.loans is not None
    assert max(moment.used for moment in outcome.loans.course) == SERVERS


def test_a_job_that_is_larger_than_the_training_cluster_runs_where_enough_is_lent():
    jobs = [trace_job(1, 100.0, 2 * GPUS), trace_job(2, 100.0, 9 * GPUS)]
    outcome = run(jobs, inference(), Lyra())
    assert by_number(outcome)[1].end is End.FINISHED
    assert by_number(outcome)[2].end is End.NEVER_FITS


def test_a_simulation_ends_although_a_job_waits_for_servers_that_are_never_lent():
    needed = DemandTrace("all", (0.0,), (float(SERVERS),))
    outcome = run([trace_job(1, 100.0, GPUS), trace_job(2, 100.0, 2 * GPUS)], inference(needed), Lyra())
    assert by_number(outcome)[1].end is End.FINISHED
    assert by_number(outcome)[2].end is End.NEVER_STARTED


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[TraceJob], DemandTrace, bool]:
    jobs = []
    at = 0.0
    for number in range(1, draw(st.integers(2, 8))):
        least = draw(st.integers(1, GPUS))
        size = f"{least}-{draw(st.integers(least, 3 * GPUS))}"
        jobs.append(trace_job(number, draw(st.floats(1.0, 900.0)), size, at=at))
        at += draw(st.floats(0.0, 200.0))
    steps = draw(st.lists(st.tuples(st.floats(1.0, 300.0), st.floats(0.0, 4.0)), max_size=12))
    times, servers = [0.0], [0.0]
    for after, needed in steps:
        times.append(times[-1] + after)
        servers.append(needed)
    # in the end nothing is needed, so that everything comes to an end
    trace = DemandTrace("drawn", (*times, times[-1] + 300.0), (*servers, 0.0))
    return jobs, trace, draw(st.booleans())


@settings(max_examples=examples(60), deadline=None)
@given(stories())
def test_no_server_is_ever_used_by_both_sides_and_every_deadline_is_met(
    story: tuple[list[TraceJob], DemandTrace, bool],
):
    jobs, trace, exactly = story
    beside = inference(trace, chooser=exact) if exactly else inference(trace)
    outcome = run(jobs, beside, Lyra(), costs=Costs(5.0, 1.0))
    assert outcome.loans is not None
    for moment in outcome.loans.course:
        assert moment.used + moment.away <= SERVERS
        assert moment.held <= moment.away * GPUS
    assert [moment.at for moment in outcome.loans.course] == sorted(
        {moment.at for moment in outcome.loans.course}
    )
    assert outcome.loans.missed == 0
    assert not any(loan.late for loan in outcome.loans.past)
    assert sum(loan.servers_emptied_beside for loan in outcome.loans.past) == outcome.loans.emptied_aside
    assert outcome.result.finished == len(jobs)


def test_a_job_in_second_seats_leaves_a_server_that_is_called_back_and_keeps_its_other_second_seats():
    """The owner has all GPUs of n1, so that the second job has no owner's seat to go to."""
    jobs = [
        trace_job(1, 2000.0, GPUS, tenant="a", model="GCN"),
        trace_job(2, 2000.0, "2-14", requested_workers=14, at=1.0, tenant="b", model="GCN"),
    ]
    quotas = (Quota("a", GPUS),)
    outcome = run(jobs, inference(busy_from(500.0)), AntMan(share_gpus=True), quotas=quotas)
    owner, second = by_number(outcome)[1], by_number(outcome)[2]
    assert owner.first_start_at == 0.0
    assert second.on_loan
    assert (second.preemptions, second.resizes > 0, second.end) == (0, True, End.FINISHED)
    assert second.timeline[-1].nodes == 1
    assert owner.slowdown is not None
