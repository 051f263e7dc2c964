"""Tiresias' queues, Elastic-Tiresias' two rules, Pollux' variant, SRTF: who runs with how many, who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from says import says
from traces import needs_traces
from training_jobs import NOW, TableSpeed, after, job, node, pending_order, planned, snapshot, workers

from flexo.model.plans import Snapshot
from flexo.model.training import Held, NodeShare, TrainingJob
from flexo.policies.elastic_tiresias import ElasticTiresias
from flexo.policies.srtf import Srtf
from flexo.policies.tiresias import Tiresias
from flexo.policies.tiresias_pollux import TiresiasPollux
from flexo_simulation.table_training import load_tables

Q1 = 10_000.0
Q2 = 200_000.0


def cluster(gpus: int, jobs: Sequence[TrainingJob]) -> Snapshot:
    """One node."""
    return snapshot([node("n0", gpus)], jobs)


def running(job_id: int, count: int | str, has: int, service: float = 0.0, **changes) -> TrainingJob:
    """A running job, for as long as its service takes."""
    started_at = NOW - service / has
    return job(
        job_id,
        count,
        on={"n0": has},
        service_gpu_s=service,
        started_at=started_at,
        waiting_since=started_at,
        **changes,
    )


# Tiresias.


def test_a_job_is_in_the_queue_of_the_service_that_it_has_had():
    queue_of = Tiresias().queue_of
    services = (0.0, 9_999.0, Q1, 199_999.0, Q2, 1e9)
    assert [queue_of(running(1, 1, 1, service), NOW) for service in services] == [0, 0, 1, 1, 2, 2]


def test_a_new_job_takes_the_gpus_of_one_of_a_lower_queue():
    before = cluster(4, [running(1, 4, 4, Q1), job(2, 2)])
    plan = planned(Tiresias(), before)
    assert workers(plan, before) == {1: 0, 2: 2}
    assert pending_order(Tiresias(), after(before, plan)) == [1]
    assert says(next(each.why for each in plan.allocations if each.job.job_id == 1), "queue 1")


def test_within_a_queue_nobody_is_preempted():
    before = cluster(4, [job(1, 4), running(2, 2, 2)])
    assert workers(planned(Tiresias(), before), before) == {1: 0, 2: 2}


def test_what_is_left_goes_to_lower_queues_and_a_job_that_does_not_fit_is_passed_over():
    before = cluster(8, [running(1, 2, 2, Q2), running(2, 6, 6, Q1), job(3, 4)])
    assert workers(planned(Tiresias(), before), before) == {1: 2, 2: 0, 3: 4}


def test_nobody_is_preempted_while_there_are_idle_gpus_enough():
    before = snapshot([node("n0"), node("n1")], [job(1, 4, on={"n0": 4}, service_gpu_s=Q2), job(2, 4)])
    plan = planned(Tiresias(), before)
    assert [each.job.job_id for each in plan.allocations] == [2]
    assert plan.allocations[0].shares == (NodeShare("n1", 4),)


def test_a_job_that_has_waited_long_for_what_it_had_comes_into_the_first_queue():
    policy = Tiresias(promote_knob=8.0)
    had = 20_000.0
    patient = job(1, 2, service_gpu_s=had, waiting_since=NOW - 8 * had / 2 + 1)
    starving = replace(patient, waiting_since=NOW - 8 * had / 2)
    assert [policy.queue_of(each, NOW) for each in (patient, starving)] == [1, 0]
    assert Tiresias(promote_knob=0.0).queue_of(starving, NOW) == 1


def test_a_promoted_job_stays_until_it_has_had_the_quantum_again():
    policy = Tiresias(promote_knob=8.0)
    starving = job(1, 2, service_gpu_s=20_000.0, waiting_since=NOW - 80_000.0)
    before = cluster(2, [starving])
    assert policy.queue_of(after(before, planned(policy, before), 4_999.0).training[0], NOW + 4_999.0) == 0
    assert policy.queue_of(after(before, planned(policy, before), 5_000.0).training[0], NOW + 5_000.0) == 1


def test_what_cannot_be_taken_is_not():
    fixed = running(1, "2-4", 2, Q2, base=(NodeShare("n0", 2),), preemptible=False)
    before = cluster(4, [fixed, job(2, 4)])
    assert workers(planned(Tiresias(), before), before) == {1: 2, 2: 0}


# Elastic-Tiresias.


def test_r1_halves_jobs_outside_the_first_queue_when_too_many_wait():
    jobs = [running(1, "1-4", 4, Q1, requested_workers=4), running(2, 4, 4), job(3, 1), job(4, 1)]
    before = cluster(8, jobs)
    assert workers(planned(ElasticTiresias(pending_limit=2), before), before) == {1: 0, 2: 4, 3: 1, 4: 1}
    assert workers(planned(ElasticTiresias(pending_limit=0), before), before) == {1: 2, 2: 4, 3: 1, 4: 1}


def test_r1_leaves_at_least_one_worker():
    before = cluster(2, [running(1, "1-4", 1, Q1, requested_workers=1), job(2, 1), job(3, 1)])
    policy = ElasticTiresias(pending_limit=0)
    assert policy._halved(before.training[0], NOW) == 1
    assert workers(planned(policy, before), before) == {1: 0, 2: 1, 3: 1}


def test_r1_keeps_a_jobs_minimum_and_the_first_queue():
    policy = ElasticTiresias()
    assert policy._halved(running(1, "3-8", 4, Q1, requested_workers=4), NOW) == 3
    assert policy._halved(running(1, "1-8", 4, 0.0, requested_workers=4), NOW) == 4


def test_r1_and_r2_come_to_one_plan():
    """Halved for one that waits, and grown again into what that one leaves."""
    jobs = [running(1, "1-8", 6, Q1, requested_workers=6), job(2, 4)]
    before = cluster(8, jobs)
    plan = planned(ElasticTiresias(pending_limit=0), before)
    assert workers(plan, before) == {1: 4, 2: 4}
    assert len(plan.allocations) == 2


def test_r2_gives_idle_gpus_to_the_largest_gain_one_at_a_time():
    """vgg16 gains .920, then .420 (at 2 to 3, interpolated); bert .433."""
    tables = load_tables(needs_traces("elasticflow/a100"))
    vgg16 = running(1, "1-8", 1, requested_workers=1, speed=tables.of("vgg16", 256))
    bert = running(2, "1-8", 1, requested_workers=1, speed=tables.of("bert", 64))
    given = []
    for gpus in (2, 3, 4, 5):
        before = cluster(gpus, [vgg16, bert])
        given.append(workers(planned(ElasticTiresias(), before), before))
    assert given == [{1: 1, 2: 1}, {1: 2, 2: 1}, {1: 2, 2: 2}, {1: 3, 2: 2}]


def test_r2_stops_where_more_workers_gain_nothing():
    speed = TableSpeed((1.0, 1.5, 1.5, 3.0))
    before = cluster(8, [running(1, "1-4", 1, requested_workers=1, speed=speed)])
    assert workers(planned(ElasticTiresias(), before), before) == {1: 2}


def test_r2_waits_while_anybody_waits():
    before = cluster(4, [running(1, "1-4", 2, requested_workers=2), job(2, 3)])
    assert workers(planned(ElasticTiresias(pending_limit=1), before), before) == {1: 2, 2: 0}


def test_a_job_grown_by_r2_gives_back_when_another_comes():
    before = cluster(4, [running(1, "1-4", 4, requested_workers=2), job(2, 2)])
    assert workers(planned(ElasticTiresias(), before), before) == {1: 2, 2: 2}


def test_resized_jobs_stay_where_they_are():
    grown = job(1, "1-8", on={"n0": 1, "n1": 3}, requested_workers=2)
    before = snapshot([node("n0"), node("n1")], [grown, job(2, 6)])
    plan = planned(ElasticTiresias(), before)
    assert {each.job.job_id: each.shares for each in plan.allocations}[1] == (NodeShare("n1", 2),)


def test_r2_gives_no_gpus_that_go_back_before_the_resize_has_paid():
    """Amoeba, section 3.2: two GPUs more for a job on four, for two minutes."""
    dear = running(1, "4-6", 4, requested_workers=4, change_cost_s=30.0)
    before = cluster(6, [dear])
    assert workers(planned(ElasticTiresias(stay_s=120.0), before), before) == {1: 4}
    assert workers(planned(ElasticTiresias(stay_s=181.0), before), before) == {1: 6}
    assert workers(planned(ElasticTiresias(), before), before) == {1: 6}
    cheap = replace(before, training=(replace(dear, change_cost_s=1.07),))
    assert workers(planned(ElasticTiresias(stay_s=120.0), cheap), cheap) == {1: 6}


def test_what_does_not_pay_for_one_job_others_may_have():
    dear = running(1, "1-4", 1, requested_workers=1, change_cost_s=100.0)
    cheap = running(2, "1-4", 1, requested_workers=1, change_cost_s=1.0)
    before = cluster(5, [dear, cheap])
    assert workers(planned(ElasticTiresias(stay_s=120.0), before), before) == {1: 1, 2: 4}


def test_what_a_job_has_it_keeps_though_it_would_not_pay_to_get_it_anew():
    grown = running(1, "1-4", 3, requested_workers=1, change_cost_s=100.0)
    before = cluster(4, [grown])
    assert workers(planned(ElasticTiresias(stay_s=120.0), before), before) == {1: 3}


# Pollux' variant.


def test_in_pollux_variant_there_are_two_queues_in_the_order_of_submission():
    before = cluster(4, [running(1, 2, 2, 57_600.0), running(2, 2, 2, 57_599.0), job(3, 2)])
    assert workers(planned(TiresiasPollux(), before), before) == {1: 0, 2: 2, 3: 2}
    before = cluster(4, [job(1, 4), running(2, 2, 2)])
    assert workers(planned(TiresiasPollux(), before), before) == {1: 4, 2: 0}


def test_the_second_queue_is_in_the_order_in_which_jobs_came_into_it():
    def demoted(job_id: int, seconds_ago: float) -> TrainingJob:
        """One that had had the quantum, on two GPUs, so long ago, and was preempted then."""
        at = NOW - seconds_ago
        history = (Held(at - 28_800.0, 2, 1), Held(at, 0, 0))
        return job(job_id, 2, service_gpu_s=57_600.0, history=history)

    before = cluster(2, [demoted(1, 100.0), demoted(2, 500.0)])
    assert workers(planned(TiresiasPollux(), before), before) == {1: 0, 2: 2}
    before = cluster(2, [demoted(1, 100.0), demoted(2, 110.0)])
    assert workers(planned(TiresiasPollux(round_s=1000.0), before), before) == {1: 2, 2: 0}


def test_pollux_variant_takes_gpus_from_the_node_with_most_free():
    before = snapshot([node("n0", 2), node("n1", 4)], [job(1, 2)])
    assert planned(TiresiasPollux(), before).allocations[0].shares == (NodeShare("n1", 2),)


# Shortest remaining time first.


def test_the_job_with_least_to_go_is_served_first():
    jobs = [running(1, 2, 2, remaining_work=300.0), job(2, 2, remaining_work=100.0), job(3, 2)]
    before = cluster(2, jobs)
    assert workers(planned(Srtf(), before), before) == {1: 0, 2: 2, 3: 0}
    assert pending_order(Srtf(), after(before, planned(Srtf(), before))) == [1, 3]
    assert Srtf.oracle


def test_of_equals_the_running_one_stays():
    before = cluster(2, [job(1, 2, remaining_work=100.0), running(2, 2, 2, remaining_work=100.0)])
    assert workers(planned(Srtf(), before), before) == {1: 0, 2: 2}


# When to be asked again.


def test_while_anybody_waits_tiresias_wants_to_be_asked_when_the_next_job_changes_its_queue():
    waiting = job(2, 4, service_gpu_s=20_000.0, waiting_since=NOW)
    before = cluster(4, [running(1, 2, 2, 9_000.0), running(3, 2, 2), waiting])
    assert planned(Tiresias(promote_knob=0.0), before).again_at == NOW + 500.0
    assert planned(Tiresias(promote_knob=0.01), before).again_at == NOW + 50.0
    assert planned(Tiresias(), cluster(4, [running(1, 2, 2, 9_000.0)])).again_at is None


def test_a_job_that_starves_and_does_not_fit_is_not_looked_at_all_the_time():
    starving = job(2, 4, service_gpu_s=20_000.0, waiting_since=NOW - 1e6)
    again_at = planned(Tiresias(), cluster(4, [running(1, 2, 2, 9_000.0), starving])).again_at
    assert again_at == NOW + 500.0
