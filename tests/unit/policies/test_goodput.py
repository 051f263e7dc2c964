"""Policy goodput: GPUs where they shorten the time that jobs take most, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from flat_records import change_node, make_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import examples
from training_jobs import after, check_plan, planned, snapshots

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.goodput import Goodput
from flexo.scalability.scaled import ScaledSpeed
from flexo_protos.resources import Resources
from flexo_simulation.costs import Costs
from flexo_simulation.engine import simulate
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import TraceJob, Workload

NOW = 10_000.0
GPU = Resources(1, 1)


@dataclass(frozen=True)
class Power:
    """A speed of `workers` to a power, less a part when they are on several nodes."""

    exponent: float
    between: float = 1.0

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        return workers**self.exponent * (self.between if nodes > 1 else 1.0)

    def best_batch(self, workers: int, nodes: int) -> int:
        return 0


def nodes(*gpus: int) -> tuple[Node, ...]:
    return tuple(make_node(f"n{i}", each, 0, 64, 0, 1, 0, frozenset({"p"})) for i, each in enumerate(gpus, 1))


def job(number: int, workers: str = "1-8", work: float | None = 1000.0, **changes) -> TrainingJob:
    plain = TrainingJob(
        JobKey(number), "ada", Range.parse(workers), GPU, 0.0, waiting_since=NOW, remaining_work=work
    )
    return replace(plain, **changes)


def seen(machine: tuple[Node, ...], *jobs: TrainingJob) -> Snapshot:
    held = {each.name: 0 for each in machine}
    for each in jobs:
        for share in each.shares:
            held[share.node] += share.workers * each.shape.gpus
    counted = tuple(change_node(each, gpus_allocated=held[each.name]) for each in machine)
    return Snapshot(NOW, counted, (), (), (), "flex", training=jobs)


def given_to(policy: Goodput, snapshot: Snapshot) -> dict[int, tuple[NodeShare, ...]]:
    return {each.job.job_id: each.shares for each in planned(policy, snapshot).allocations}


def sizes(policy: Goodput, snapshot: Snapshot) -> dict[int, int]:
    now = {each.key.job_id: each.allocated for each in snapshot.training}
    for number, shares in given_to(policy, snapshot).items():
        now[number] = sum(share.workers for share in shares)
    return now


def test_like_jobs_that_scale_badly_share_evenly():
    alike = [job(number, speed=Power(0.5), most_workers=8) for number in (1, 2)]
    assert sizes(Goodput(), seen(nodes(8), *alike)) == {1: 4, 2: 4}


def test_of_two_jobs_the_one_that_is_nearly_done_gets_more():
    long, short = (job(n, work=w, speed=Power(0.7), most_workers=8) for n, w in ((1, 2_000.0), (2, 500.0)))
    got = sizes(Goodput(), seen(nodes(8), long, short))
    assert got[2] > got[1] >= 1


def test_a_job_that_gets_no_faster_leaves_gpus_to_nobody_rather_than_take_them():
    flat = job(1, speed=Power(0.0), most_workers=8)
    assert sizes(Goodput(), seen(nodes(8), flat)) == {1: 1}


def test_a_running_job_is_not_changed_for_less_than_the_change_costs():
    running = job(
        1,
        speed=Power(0.1),
        shares=(NodeShare("n1", 4),),
        most_workers=4,
        started_at=0.0,
        change_cost_s=30.0,
    )
    assert given_to(Goodput(), seen(nodes(8), running)) == {}
    assert given_to(Goodput(), seen(nodes(8), replace(running, change_cost_s=0.0))) != {}


def test_a_job_grows_by_its_factor_at_most_because_larger_sizes_were_never_tried():
    unknown = job(1, "1-64", speed=None)
    policy = Goodput(first_workers=4, growth=2)
    assert sizes(policy, seen(nodes(*[4] * 16), unknown)) == {1: 4}
    tried = replace(unknown, shares=(NodeShare("n1", 4),), most_workers=4, started_at=0.0)
    assert sizes(policy, seen(nodes(*[4] * 16), tried)) == {1: 8}


def test_workers_lie_on_as_few_nodes_as_possible():
    (shares,) = given_to(Goodput(first_workers=8), seen(nodes(4, 8, 4), job(1))).values()
    assert shares == (NodeShare("n2", 8),)


def test_a_scattered_job_moves_together_where_that_pays():
    scattered = job(
        1,
        "4-4",
        work=1e6,
        requested_workers=4,
        speed=Power(1.0, between=0.3),
        shares=(NodeShare("n1", 2), NodeShare("n2", 2)),
        most_workers=4,
        started_at=0.0,
        change_cost_s=30.0,
    )
    assert given_to(Goodput(), seen(nodes(2, 2, 4), scattered)) == {1: (NodeShare("n3", 4),)}


def test_whoever_waits_long_enough_is_served():
    """One GPU; short jobs come again and again, and a long one has been there first."""
    policy = Goodput()
    long = job(1, "1-1", work=1e6, waiting_since=0.0)
    for waited_s in range(0, 10**7, 10**4):
        short = job(2, "1-1", work=100.0, waiting_since=float(waited_s))
        snapshot = replace(seen(nodes(1), long, short), at=float(waited_s))
        if sizes(policy, snapshot)[1]:
            return
    pytest.fail("it waits for ever")


def test_what_cannot_be_taken_stays_and_others_share_the_rest():
    base = (NodeShare("n1", 2),)
    kept = job(1, "2-8", base=base, shares=base, preemptible=False, started_at=0.0, most_workers=2)
    got = given_to(Goodput(), seen(nodes(4), kept, job(2, work=10.0)))
    assert all(
        set(shares) >= set(base) or sum(s.workers for s in shares) > 2 for n, shares in got.items() if n == 1
    )
    assert sum(share.workers for share in got[2]) <= 2


def test_without_any_word_of_what_is_left_a_job_counts_by_what_it_has_had():
    old, young = (
        job(
            n,
            work=None,
            service_gpu_s=s,
            speed=Power(0.7),
            most_workers=8,
            shares=(NodeShare("n1", 2),),
            started_at=0.0,
        )
        for n, s in ((1, 1e6), (2, 600.0))
    )
    got = sizes(Goodput(), seen(nodes(8), old, young))
    assert got[2] > got[1]


@given(before=snapshots(types=("v100", "t4")))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_plan_over_commits_nor_drops_a_base_nor_leaves_a_range(before: Snapshot):
    plan = planned(Goodput(), before)
    check_plan(before, plan)
    assert plan == planned(Goodput(), before)


@given(before=snapshots(gpus_per_worker=1), seconds=st.sampled_from([60.0, 900.0]))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plans_stay_right_round_after_round(before: Snapshot, seconds: float):
    for _ in range(4):
        plan = planned(Goodput(), before)
        check_plan(before, plan)
        before = after(before, plan, seconds)


def test_a_job_is_not_preempted_before_it_has_trained_for_as_long_as_its_start_took():
    long_ago = {"work": 10.0, "workers": "1-1", "waiting_since": NOW - 1e6}
    started = job(1, "1-1", 1e6, shares=(NodeShare("n1", 1),), start_cost_s=100.0, started_at=NOW - 150.0)
    for resumes_at, kept in ((NOW + 10.0, 1), (NOW - 99.0, 1), (NOW - 100.0, 0)):
        snapshot = seen(nodes(1), replace(started, resumes_at=resumes_at), job(2, **long_ago))
        assert sizes(Goodput(), snapshot)[1] == kept


def test_a_job_that_would_have_to_begin_anew_is_not_preempted():
    running = job(1, "1-1", 1e6, shares=(NodeShare("n1", 1),), started_at=NOW - 1e4)
    waiting = job(2, "1-1", 10.0, waiting_since=NOW - 1e6)
    assert sizes(Goodput(), seen(nodes(1), running, waiting))[1] == 0
    assert sizes(Goodput(), seen(nodes(1), replace(running, checkpoints=False), waiting))[1] == 1


def test_jobs_whose_start_takes_longer_than_a_round_all_get_done():
    jobs = tuple(TraceJob(number, 0.0, Range(1, 1), 1, GPU, LinearTraining(500.0)) for number in range(1, 13))
    place = Scenario((NodeGroup(1, 2),), Costs(start_s=1000.0), interval_s=60.0)
    result = simulate(Workload("test", jobs), Goodput(), place).result
    assert result.finished == 12


def typed(*gpus: tuple[int, str]) -> tuple[Node, ...]:
    """Nodes with these GPUs, of these types."""
    return tuple(
        change_node(node, gpu_type=gpu_type)
        for node, (_, gpu_type) in zip(nodes(*(each for each, _ in gpus)), gpus, strict=True)
    )


def on_types(number: int, **faster: float) -> TrainingJob:
    """A job that knows its speed on each type, by how much faster it is there."""
    speeds = tuple((name, ScaledSpeed(Power(0.8), factor)) for name, factor in faster.items())
    return job(number, "1-4", speed=speeds[0][1], speeds=speeds, most_workers=4)


def types_given(machine: tuple[Node, ...], *jobs: TrainingJob) -> dict[int, set[str]]:
    named = {node.name: node.gpu_type for node in machine}
    got = given_to(Goodput(), seen(machine, *jobs))
    return {number: {named[share.node] for share in shares} for number, shares in got.items()}


def test_the_fast_gpus_go_to_the_job_that_gains_most_by_them():
    machine = typed((4, "t4"), (4, "a100"))
    indifferent, sensitive = on_types(1, t4=1.0, a100=1.1), on_types(2, t4=1.0, a100=4.0)
    assert types_given(machine, indifferent, sensitive) == {1: {"t4"}, 2: {"a100"}}


def test_a_job_moves_to_another_type_only_if_that_is_worth_the_change():
    machine = typed((4, "t4"), (4, "a100"))
    here = replace(on_types(1, t4=1.0, a100=1.3), shares=(NodeShare("n1", 4),), change_cost_s=1.0)
    assert types_given(machine, here) == {1: {"a100"}}
    dear = replace(here, change_cost_s=10_000.0)
    assert types_given(machine, dear) == {}


def test_a_job_that_names_its_type_gets_no_other():
    machine = typed((4, "t4"), (4, "a100"))
    bound = replace(on_types(1, t4=1.0, a100=4.0), shape=Resources(1, 1, gpu_type="t4"))
    assert types_given(machine, bound) == {1: {"t4"}}


def test_a_base_keeps_its_type():
    machine = typed((4, "t4"), (4, "a100"))
    base = (NodeShare("n1", 1),)
    held = replace(on_types(1, t4=1.0, a100=4.0), shares=base, base=base)
    assert types_given(machine, held) == {1: {"t4"}}


def test_a_job_whose_changes_cost_much_still_grows():
    """A size is likely to last longer, the more a change to it costs: else such a job kept its first size."""
    dear = job(1, "1-8", speed=Power(0.9), most_workers=8, shares=(NodeShare("n1", 1),), change_cost_s=250.0)
    assert sizes(Goodput(), seen(nodes(8), replace(dear, remaining_work=1e6))) == {1: 8}


def test_a_job_that_has_long_had_its_size_is_changed_for_less():
    """To grow pays by a third: worth it if the new size lasts for 400 s, and not if it lasts for 200."""
    here = {"shares": (NodeShare("n1", 2),), "change_cost_s": 100.0, "most_workers": 4, "workers": "2-4"}
    running = job(1, work=1e6, speed=Power(0.6), **here)
    lately, long_ago = (replace(running, last_change_at=NOW - had_s) for had_s in (60.0, 2000.0))
    assert sizes(Goodput(), seen(nodes(4), lately)) == {1: 2}
    assert sizes(Goodput(), seen(nodes(4), long_ago)) == {1: 4}


def test_a_size_that_a_job_never_had_has_to_pay_for_the_way_back():
    running = job(
        1,
        "2-4",
        work=1e6,
        speed=Power(0.9),
        shares=(NodeShare("n1", 2),),
        most_workers=2,
        last_change_at=NOW - 60.0,
        change_cost_s=40.0,
    )
    assert sizes(Goodput(), seen(nodes(4), running)) == {1: 2}
    assert sizes(Goodput(), seen(nodes(4), replace(running, most_workers=4))) == {1: 4}


def test_the_first_gpu_of_a_job_counts_for_more_than_the_last_of_another():
    """Both scale almost linearly: with beta 1, all would go to the one that is nearly done."""
    long, short = (job(n, work=w, speed=Power(0.95), most_workers=4) for n, w in ((1, 1_000.0), (2, 500.0)))
    assert sizes(Goodput(), seen(nodes(4), long, short))[1] >= 1
    assert sizes(Goodput(beta=1.0), seen(nodes(4), long, short))[1] == 0


def test_a_guess_of_what_is_left_counts_for_less_than_a_report():
    """Two jobs that differ tenfold in what they have had and in what they report, which is the same."""
    had = {"shares": (NodeShare("n1", 1),), "speed": Power(1.0), "most_workers": 16, "workers": "1-16"}
    told = [job(n, work=w, service_gpu_s=w, **had) for n, w in ((1, 5_000.0), (2, 50_000.0))]
    guessed = [replace(each, remaining_work=None) for each in told]
    policy = Goodput(beta=0.5)
    assert sizes(policy, seen(nodes(16), *guessed))[2] > sizes(policy, seen(nodes(16), *told))[2]
