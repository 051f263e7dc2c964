"""First come, first served, and EASY backfilling: who starts, who waits, and that nobody delays the head."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from thorough import examples
from training_jobs import NOW, TableSpeed, after, job, node, planned, snapshot, snapshots, workers

from flexo.model.plans import Snapshot
from flexo.model.training import TrainingJob
from flexo.policies.backfill import Backfill
from flexo.policies.fifo import Fifo
from flexo_protos.resources import Resources


def runs(job_id: int, count: int, on: str, seconds: float) -> TrainingJob:
    """A running job that is known to end in so many seconds."""
    return job(job_id, count, on={on: count}, remaining_work=seconds * count)


def waits(job_id: int, count: int, seconds: float | None = None, **changes) -> TrainingJob:
    """A waiting job that would run so long."""
    return job(job_id, count, remaining_work=None if seconds is None else seconds * count, **changes)


def started(plan_of: Fifo | Backfill, before: Snapshot) -> set[int]:
    """Numbers of the jobs that it starts."""
    return {each.job.job_id for each in planned(plan_of, before).allocations}


def test_fifo_starts_jobs_in_order_until_one_does_not_fit():
    before = snapshot([node("n0", 4)], [waits(1, 2), waits(2, 1), waits(3, 4), waits(4, 1)])
    assert started(Fifo(), before) == {1, 2}
    assert "do not fit yet" in planned(Fifo(), before).notes[0].text


def test_what_its_user_asked_for_is_what_an_elastic_job_starts_with():
    before = snapshot([node("n0", 8)], [job(1, "2-8", requested_workers=4), job(2, "3-8")])
    assert workers(planned(Fifo(), before), before) == {1: 4, 2: 3}


def test_a_job_larger_than_the_whole_cluster_holds_nobody_up():
    before = snapshot([node("n0", 4)], [waits(1, 5), waits(2, 4, 10.0)])
    assert started(Fifo(), before) == {2}
    assert started(Backfill(), before) == {2}


def test_a_job_that_ends_before_the_head_can_start_is_backfilled():
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 4, 50.0), waits(3, 2, 100.0)]
    plan = planned(Backfill(), snapshot([node("n0", 4)], jobs))
    assert [each.job.job_id for each in plan.allocations] == [3]
    assert "ends before job 2" in plan.allocations[0].why
    assert "100 s" in plan.notes[0].text


def test_a_job_that_would_delay_the_head_is_not():
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 4, 50.0), waits(3, 2, 101.0)]
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == set()


def test_the_time_that_a_start_takes_counts():
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 4, 50.0), waits(3, 2, 90.0, start_cost_s=30.0)]
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == set()


def test_a_job_without_end_is_backfilled_where_the_head_has_room_enough_beside_it():
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 3, 50.0), waits(3, 1), waits(4, 1)]
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == {3}


def test_the_head_reserves_workers_that_fit_on_nodes_not_just_gpus():
    two_gpus = Resources(2, 1)
    running = [
        replace(runs(1, 1, "n0", 100.0), shape=two_gpus),
        replace(runs(2, 1, "n1", 500.0), shape=two_gpus),
    ]
    head = replace(waits(3, 2, 50.0), shape=two_gpus)
    nodes = [node("n0", 3), node("n1", 3)]
    jobs = [*running, head, waits(4, 1, 400.0), waits(5, 1, 600.0)]
    assert started(Backfill(), snapshot(nodes, jobs)) == {4, 5}
    tight = [node("n0", 2), node("n1", 4, gpus_allocated=1)]
    assert started(Backfill(), snapshot(tight, jobs)) == {4}


def test_nobody_is_backfilled_for_ever_before_a_head_of_which_nobody_knows_when_it_will_fit():
    jobs = [job(1, 2, on={"n0": 2}), waits(2, 4, 50.0), waits(3, 1, 100.0), waits(4, 1)]
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == {3}


def test_jobs_further_back_than_the_depth_are_not_looked_at():
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 4), waits(3, 3, 1.0), waits(4, 1, 1.0)]
    before = snapshot([node("n0", 4)], jobs)
    assert started(Backfill(depth=3), before) == {4}
    assert started(Backfill(depth=2), before) == set()


def test_speeds_decide_when_a_job_ends():
    slow = TableSpeed((1.0, 1.25))
    jobs = [runs(1, 2, "n0", 100.0), waits(2, 4), job(3, 2, speed=slow, remaining_work=130.0)]
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == set()
    jobs[2] = replace(jobs[2], remaining_work=120.0)
    assert started(Backfill(), snapshot([node("n0", 4)], jobs)) == {3}


@given(before=snapshots(gpus_per_worker=2))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_backfilling_never_delays_the_head_of_the_queue(before: Snapshot):
    head_first = Backfill(depth=_until_held_up(before))
    alone = after(before, planned(head_first, before))
    head = next((each for each in alone.training if not each.shares and _fits_empty(before, each)), None)
    if head is None:
        return
    together = after(before, planned(Backfill(), before))
    assert _starts_at(together, head) <= _starts_at(alone, head)


def _until_held_up(before: Snapshot) -> int:
    """The depth at which the first job that has to wait is the last that is looked at."""
    waiting = [each for each in before.training if not each.shares]
    for depth in range(1, len(waiting) + 1):
        held_up = waiting[depth - 1]
        now = after(before, planned(Backfill(depth=depth), before))
        if _fits_empty(before, held_up) and any(
            each.key == held_up.key and not each.shares for each in now.training
        ):
            return depth
    return max(1, len(waiting))


def _fits_empty(before: Snapshot, held_up: TrainingJob) -> bool:
    free = [each.gpus // held_up.shape.gpus for each in before.nodes if not each.unusable]
    return sum(free) >= _wanted(held_up)


def _wanted(each: TrainingJob) -> int:
    return each.requested_workers or each.workers.min


def _starts_at(now: Snapshot, head: TrainingJob) -> float:
    """When `head` fits if nobody else starts and all end when they are expected to."""
    free = {each.name: each.gpus_idle for each in now.nodes}
    usable = {each.name for each in now.nodes if not each.unusable}
    ends: dict[float, list[TrainingJob]] = {}
    for each in now.training:
        if each.shares and each.remaining_work is not None:
            rate = each.speed.rate(each.allocated, len(each.shares)) if each.speed else each.allocated
            ends.setdefault(max(NOW, each.resumes_at) + each.remaining_work / rate, []).append(each)
    for at in sorted(ends):
        for each in ends[at]:
            for share in each.shares:
                if share.node in usable:
                    free[share.node] += share.workers * each.shape.gpus
        if sum(gpus // head.shape.gpus for gpus in free.values()) >= _wanted(head):
            return at
    return math.inf
