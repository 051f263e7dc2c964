"""Jobs in virtual time, against cases calculated by hand."""

from __future__ import annotations

import math

import pytest
from little_simulations import Doing, Script, allocate, by_number, greedy_fifo, on_one_node, trace_job

from flexo.clusters.base import ImpossiblePlan
from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.measured import Source
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare
from flexo.policies.base import Jobs
from flexo.policies.placement import Placement
from flexo_simulation.costs import POLLUX, Costs
from flexo_simulation.engine import SimulationStuck, simulate
from flexo_simulation.records import End, Held
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload


def test_a_job_alone_takes_as_long_as_its_trace_says():
    outcome = on_one_node([trace_job(1, 100.0, 2, at=7.0)])
    record = by_number(outcome)[1]
    assert (record.first_start_at, record.ended_at, record.jct_s) == (7.0, 107.0, 100.0)
    assert (record.gpu_s, record.end) == (200.0, End.FINISHED)


def test_a_job_waits_for_gpus_and_starts_at_the_instant_they_are_free():
    records = by_number(on_one_node([trace_job(1, 100.0, 6), trace_job(2, 50.0, 4, at=10.0)]))
    assert records[2].first_start_at == pytest.approx(100.0)
    assert records[2].queue_s == pytest.approx(90.0)
    assert records[2].ended_at == pytest.approx(150.0)


def sizes_then_maximum(sizes: dict[int, int]):
    """Two jobs with these workers; when one has ended, the other takes its maximum."""

    def what(jobs: Jobs, placement: Placement) -> list[Allocate]:
        there = jobs.training
        if len(there) == 1 and there[0].allocated < there[0].workers.max:
            return [allocate(there[0].key.job_id, there[0].workers.max)]
        return [allocate(job.key.job_id, sizes[job.key.job_id]) for job in jobs.waiting()]

    return what


@pytest.mark.parametrize(
    ("a", "sizes", "ends"),
    [
        # Lyra, Table 1: A 2-6 workers, 50 s; B 2-6, 20 s; 8 GPUs
        (("2-6", 50.0), (6, 2), (50.0, 53.33)),
        (("2-6", 50.0), (2, 6), (63.33, 20.0)),
        (("2-6", 50.0), (4, 4), (60.0, 30.0)),
        (("2-6", 50.0), (5, 3), (56.67, 40.0)),
        # Lyra, Table 2: A 2-3, 100 s
        (("2-3", 100.0), (3, 5), (100.0, 24.0)),
        (("2-3", 100.0), (2, 6), (106.67, 20.0)),
    ],
)
def test_completion_times_are_those_of_lyras_tables(a, sizes, ends):
    workers, seconds = a
    jobs = [trace_job(1, seconds, workers), trace_job(2, 20.0, "2-6")]
    outcome = on_one_node(jobs, sizes_then_maximum({1: sizes[0], 2: sizes[1]}))
    assert [record.jct_s for record in outcome.records] == pytest.approx(ends, abs=0.005)
    assert outcome.result.avg_jct_s == pytest.approx(sum(ends) / 2, abs=0.005)


def test_while_a_job_pays_for_its_start_it_holds_its_gpus_and_does_not_train():
    outcome = on_one_node([trace_job(1, 100.0, 2)], costs=POLLUX)
    record = by_number(outcome)[1]
    assert record.ended_at == pytest.approx(130.0)
    assert record.gpu_s == pytest.approx(260.0)


def test_a_resize_costs_and_counts_and_a_further_one_begins_to_pay_anew():
    script = Script({0.0: {1: 2}, 10.0: {1: 4}, 20.0: {1: 2}})
    jobs = [trace_job(1, 100.0, "2-4"), *(trace_job(n, 1.0, 1, at=10.0 * (n - 1)) for n in (2, 3))]
    record = by_number(on_one_node(jobs, script, costs=Costs(resize_s=15.0)))[1]
    # 400 worker seconds: 20 in the first 10 s, none until 35 s, then 380 with two workers
    assert record.ended_at == pytest.approx(35.0 + 190.0)
    assert (record.resizes, record.preemptions) == (2, 0)
    assert record.timeline == (Held(0.0, 2, 1), Held(10.0, 4, 1), Held(20.0, 2, 1))


def test_joining_and_leaving_may_cost_differently():
    costs = Costs(start_s=1.0, resize_s=5.0, join_s=2.0, leave_s=3.0)
    one, two, moved = (
        (NodeShare("a", 1),),
        (NodeShare("a", 1), NodeShare("b", 1)),
        (NodeShare("b", 1),),
    )
    changes = [((), one), (one, two), (two, one), (one, moved), (one, one), (one, ())]
    assert [costs.of_change(*change) for change in changes] == [1.0, 2.0, 3.0, 5.0, 0.0, 0.0]


def test_a_preempted_job_goes_on_where_it_was_and_pays_for_its_new_start():
    script = Script({0.0: {1: 2}, 10.0: {1: 0}, 30.0: {1: 2}})
    jobs = [trace_job(1, 100.0, 2), *(trace_job(n, 1.0, 1, at=at) for n, at in ((2, 10.0), (3, 30.0)))]
    record = by_number(on_one_node(jobs, script, costs=Costs(start_s=5.0)))[1]
    assert record.ended_at == pytest.approx(30.0 + 5.0 + 95.0)
    assert (record.preemptions, record.resizes, record.first_start_at) == (1, 0, 0.0)
    waits = script.looks(1)[2]
    assert (waits.shares, waits.started_at, waits.waiting_since) == ((), None, 10.0)


def test_without_checkpoints_a_preempted_job_begins_anew():
    script = Script({0.0: {1: 2}, 10.0: {1: 0}, 30.0: {1: 2}})
    jobs = [trace_job(1, 100.0, 2), *(trace_job(n, 1.0, 1, at=at) for n, at in ((2, 10.0), (3, 30.0)))]
    assert by_number(on_one_node(jobs, script, checkpoints=False))[1].ended_at == pytest.approx(130.0)


def test_with_an_interval_decisions_are_made_at_its_multiples_only():
    script = Script({})
    jobs = [trace_job(1, 90.0, 6), trace_job(2, 30.0, 4, at=60.0), trace_job(3, 5.0, 8, at=61.0)]

    def what(jobs: Jobs, placement: Placement) -> list[Allocate]:
        script(jobs, placement)
        return greedy_fifo(jobs, placement)

    records = by_number(on_one_node(jobs, what, interval_s=60.0))
    assert records[1].ended_at == pytest.approx(90.0)
    # job 1 has ended at 90 s, which is seen at 120 s
    assert (records[2].first_start_at, records[2].ended_at) == (120.0, pytest.approx(150.0))
    assert (records[3].first_start_at, records[3].ended_at) == (180.0, pytest.approx(185.0))
    assert [look.at for look in script.seen] == [0.0, 60.0, 120.0, 180.0, 240.0]
    assert [len(look.training) for look in script.seen] == [1, 2, 2, 1, 0]


def test_ticks_without_any_job_are_passed_over():
    script = Script({0.0: {1: 1}, 86_400.0: {2: 1}})
    on_one_node([trace_job(1, 10.0), trace_job(2, 10.0, at=86_399.0)], script, interval_s=60.0)
    assert [look.at for look in script.seen] == [0.0, 60.0, 86_400.0, 86_460.0]


def test_a_policy_is_told_when_it_last_changed_something_and_who_has_ended_since():
    script = Script({0.0: {1: 1, 2: 1}, 50.0: {3: 1}})
    jobs = [trace_job(1, 10.0), trace_job(2, 20.0), trace_job(3, 10.0, at=50.0)]
    on_one_node(jobs, script)
    told = [(look.at, look.decided_at, look.ended_count) for look in script.seen]
    # jobs 1 and 2 arrive at one instant, and are decided on at once
    assert told == [(0, 0, 0), (10, 0, 1), (20, 0, 2), (50, 0, 2), (60, 50, 1)]


def test_of_a_job_that_runs_a_policy_sees_what_it_was_when_something_last_happened_to_it():
    script = Script({0.0: {1: 4}, 10.0: {2: 1}})
    on_one_node([trace_job(1, 100.0, 4), trace_job(2, 5.0, at=10.0)], script, costs=Costs(start_s=4.0))
    first, later = script.looks(1)[1], script.looks(1)[2]
    assert first is later
    assert (first.as_of, first.resumes_at, first.started_at, first.last_change_at) == (0.0, 4.0, 0.0, 0.0)
    assert first.service_at(10.0) == 40.0
    assert first.remaining_at(10.0) == pytest.approx(400.0 - 6 * 4)
    assert first.remaining_at(3.0) == 400.0
    assert (first.most_workers, first.start_cost_s) == (4, 4.0)


def test_a_dropped_job_is_neither_run_nor_waited_for():
    def what(jobs: Jobs, placement: Placement) -> list[Allocate | Drop]:
        drops = [Drop(job.key, "no room") for job in jobs.training if job.key.job_id == 2]
        return [*drops, *(word for word in greedy_fifo(jobs, placement) if word.job.job_id != 2)]

    outcome = on_one_node([trace_job(1), trace_job(2, at=3.0), trace_job(3, at=4.0)], what)
    record = by_number(outcome)[2]
    assert (record.end, record.ended_at, record.jct_s, record.queue_s) == (End.DROPPED, 3.0, None, None)
    assert outcome.result.drop_ratio == pytest.approx(1 / 3)
    assert outcome.result.finished == 2


def test_a_job_larger_than_the_cluster_is_named_and_left_out():
    script = Script({0.0: {2: 8}})
    outcome = on_one_node([trace_job(1, 10.0, 9, name="huge"), trace_job(2, 10.0, 8)], script)
    assert outcome.result.never_fit == ("1 (huge)",)
    assert by_number(outcome)[1].end is End.NEVER_FITS
    assert script.looks(1) == []


@pytest.mark.parametrize("interval_s", [None, 60.0])
def test_a_job_that_is_never_started_is_named_and_the_simulation_ends(interval_s):
    outcome = on_one_node(
        [trace_job(1, 10.0), trace_job(2, 10.0)], Script({0.0: {1: 1}}), interval_s=interval_s
    )
    assert outcome.result.never_started == ("2",)
    assert outcome.result.finished == 1


def test_a_time_limit_ends_a_job_only_where_that_is_asked_for():
    jobs = [trace_job(1, 100.0, time_limit_s=60), trace_job(2, 50.0, time_limit_s=60)]
    assert [record.end for record in on_one_node(jobs).records] == [End.FINISHED, End.FINISHED]
    ended, finished = on_one_node(jobs, limits_end_jobs=True).records
    assert (ended.end, ended.ended_at, ended.jct_s) == (End.LIMIT, 60.0, None)
    assert (finished.end, finished.ended_at) == (End.FINISHED, 50.0)


def test_what_cannot_be_is_raised_and_not_passed_over():
    with pytest.raises(ImpossiblePlan, match="node n1 has 8 GPUs"):
        on_one_node([trace_job(1, workers=6), trace_job(2, workers=6)], Script({0.0: {1: 6, 2: 6}}))


def test_a_mistake_of_a_policy_is_raised():
    with pytest.raises(ZeroDivisionError):
        on_one_node([trace_job(1)], lambda jobs, placement: [1 // 0])  # type: ignore[list-item]


def test_what_one_job_gives_up_another_has_at_the_same_instant():
    script = Script({0.0: {1: 8}, 10.0: {1: 2, 2: 6}})
    records = by_number(on_one_node([trace_job(1, 100.0, "2-8"), trace_job(2, 20.0, 6, at=10.0)], script))
    assert records[2].ended_at == pytest.approx(30.0)
    assert records[1].ended_at == pytest.approx(10.0 + 720 / 2)


def test_equal_simulations_have_equal_outcomes():
    jobs = [trace_job(n, 10.0 * (n % 5 + 1), n % 4 + 1, at=3.0 * n) for n in range(1, 60)]
    first, second = on_one_node(jobs), on_one_node(jobs)
    assert first.records == second.records


def test_jobs_that_end_at_one_instant_are_decided_on_once():
    script = Script({0.0: {1: 1, 2: 1}})
    outcome = on_one_node([trace_job(1, 10.0), trace_job(2, 10.0)], script)
    assert [look.at for look in script.seen] == [0.0, 10.0]
    assert outcome.result.events == 4


def test_progress_is_told_at_the_end_too():
    told: list[tuple[int, int]] = []
    workload = Workload("test", tuple(trace_job(n, 5.0, at=10.0 * n) for n in range(1, 4)))
    simulate(workload, Doing(greedy_fifo), Scenario((NodeGroup(1, 8),)), lambda *word: told.append(word))
    assert told[-1] == (3, 3)


def test_a_job_of_another_number_is_unknown():
    with pytest.raises(ImpossiblePlan, match=r"no job 9\b"):
        on_one_node([trace_job(1)], lambda jobs, placement: [Allocate(JobKey(9), (NodeShare("n1", 1),), "")])


def test_jobs_that_are_not_in_order_or_have_one_number_are_refused():
    with pytest.raises(ValueError, match="order of submission"):
        on_one_node([trace_job(1, at=5.0), trace_job(2)])
    with pytest.raises(ValueError, match="the same number"):
        on_one_node([trace_job(1), trace_job(1)])


class Restless:
    """A training that wants to be looked at at once, for ever."""

    finished, steady, source = False, False, Source.PROGRESS

    def begin(self) -> Restless:
        return self

    def time_left_s(self, shares, samples) -> float:
        return 0.0

    def advance(self, seconds, shares, samples) -> float:
        return seconds

    def speed(self) -> None:
        return None

    def speeds(self) -> tuple[()]:
        return ()

    def remaining_work(self) -> float:
        return 1.0


def test_a_run_that_never_trains_on_is_named_and_does_not_hold_up_the_simulation_for_ever():
    with pytest.raises(SimulationStuck, match=r"\b3\.0 s\b.*\bjob 7\b"):
        on_one_node([trace_job(7, at=3.0, training=Restless())])


class CannotTrainSo(Restless):
    """A training that never gets on with what it has."""

    def time_left_s(self, shares, samples) -> float:
        return math.inf


def test_a_size_with_which_a_job_cannot_train_is_told_of_where_the_policy_never_changes_it():
    for interval_s in (60.0, None):
        with pytest.raises(SimulationStuck, match=r"\b7 with 1 workers"):
            on_one_node([trace_job(7, training=CannotTrainSo())], interval_s=interval_s)


def test_jobs_that_take_turns_for_ever_are_told_of():
    """A policy that takes one GPU from each job before it has started up, and gives it to the next."""

    def take_turns(jobs: Jobs, placement: Placement) -> list[Allocate]:
        has = next((job for job in jobs.training if job.shares), jobs.training[-1])
        after = jobs.training[(jobs.training.index(has) + 1) % len(jobs.training)]
        gives = [Allocate(has.key, (), "its turn is over")] if has.shares else []
        return [*gives, allocate(after.key.job_id, 1)]

    jobs = [trace_job(1, 100.0), trace_job(2, 100.0)]
    with pytest.raises(SimulationStuck, match=r"\b2,001 times\b.*\b2\b"):
        on_one_node(jobs, take_turns, gpus=1, costs=Costs(start_s=10.0), interval_s=5.0)


def test_a_job_pays_its_own_costs_before_those_of_the_scenario():
    jobs = [trace_job(1, 100.0, 4), trace_job(2, 100.0, 4, costs=Costs(start_s=7.0))]
    ended = by_number(on_one_node(jobs, costs=Costs(start_s=30.0)))
    assert (ended[1].ended_at, ended[2].ended_at) == (130.0, 107.0)
