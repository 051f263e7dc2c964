"""How long idle GPUs are likely to stay, and that no satellite is granted for less than pays."""

from __future__ import annotations

import math
from dataclasses import replace

from flat_records import change_job
from small_clusters import NOW, Wishing, elastic, granted, grown, node, pending, sentence, snapshot
from training_jobs import TableSpeed

from flexo.model.plans import Snapshot
from flexo.model.training import TrainingJob
from flexo.policies import satellites
from flexo.policies.greedy import Greedy
from flexo.policies.resize_benefit import PAUSE_S, START_S, idle_for

NODES = [node("n1", 8), node("n2", 8), node("t1", 8, used=8)]


def planned_for(seconds: float, **changes):
    """A pending job that does not fit yet, and that Slurm plans to start in so many seconds."""
    return pending(500, gpus_per_node=8, nodes=3, started_at=NOW + seconds, **changes)


def test_nothing_is_known_where_no_job_is_planned_and_no_satellite_has_left():
    assert idle_for(snapshot(NODES, []), ["n1", "n2"]) == {"n1": math.inf, "n2": math.inf}


def test_gpus_stay_as_long_as_satellites_lately_did():
    assert idle_for(snapshot(NODES, [], stay_s=90.0), ["n1"]) == {"n1": 90.0}


def test_a_planned_start_ends_the_stay_on_the_nodes_that_the_job_names():
    job = change_job(planned_for(60.0), num_nodes=1, required_nodes=frozenset({"n1"}))
    assert idle_for(snapshot(NODES, [], [job], stay_s=90.0), ["n1", "n2"]) == {"n1": 60.0, "n2": 90.0}
    later = replace(job, started_at=NOW + 600.0)
    assert idle_for(snapshot(NODES, [], [later], stay_s=90.0), ["n1"]) == {"n1": 90.0}


def test_a_job_that_needs_all_nodes_that_it_may_use_ends_the_stay_on_all_of_them():
    assert idle_for(snapshot(NODES, [], [planned_for(60.0)]), ["n1", "n2"]) == {"n1": 60.0, "n2": 60.0}
    fewer = change_job(planned_for(60.0), num_nodes=2)
    assert idle_for(snapshot(NODES, [], [fewer]), ["n1"]) == {"n1": math.inf}
    without = replace(fewer, excluded_nodes=frozenset({"n2"}))
    assert idle_for(snapshot(NODES, [], [without]), ["n1", "n2"]) == {"n1": 60.0, "n2": math.inf}


def test_a_start_that_was_planned_for_earlier_says_nothing():
    assert idle_for(snapshot(NODES, [], [planned_for(-5.0)]), ["n1"]) == {"n1": math.inf}


def known(seen: Snapshot, **changes) -> tuple[TrainingJob, ...]:
    """All elastic jobs, of which only that is known."""
    return tuple(TrainingJob(job.key, "ada", job.workers, job.shape, 0.0, **changes) for job in seen.elastic)


def growing(seen: Snapshot, **changes):
    """What becomes of one job whose due is 6 workers."""
    seen = replace(seen, training=known(seen, **changes))
    return satellites.plan(Wishing({1: 6}), seen, 60.0)


def test_gpus_that_stay_no_longer_than_workers_take_to_start_and_a_pause_to_pay_are_left_alone():
    """From 4 to 6 workers, 0.09 s each way: 0.54 s, once the new ones have started."""
    nodes = [node("n1", 2), node("t1", 4, used=4)]
    seen = snapshot(nodes, [elastic(1, "4-6")])
    even_s = START_S + 2 * PAUSE_S * 6 / (6 - 4)
    assert grown(growing(replace(seen, stay_s=even_s))) == []
    assert grown(growing(replace(seen, stay_s=even_s + 0.01))) == [(1, "n1", 2)]


def test_gpus_that_make_nothing_faster_are_left_alone_where_they_do_not_stay_for_ever():
    seen = snapshot([node("n1", 2), node("t1", 4, used=4)], [elastic(1, "4-6")], stay_s=1e6)
    flat = TableSpeed((1.0,) * 6)
    assert grown(growing(seen, speed=flat)) == []
    assert grown(growing(seen)) == [(1, "n1", 2)]


WANTS_N1 = change_job(planned_for(5.0), num_nodes=1, required_nodes=frozenset({"n1"}), gpus=8)


def test_it_is_said_why_idle_gpus_are_left_alone():
    nodes = [node("n1", 8, used=6), node("t1", 4, used=4)]
    plan = growing(snapshot(nodes, [elastic(1, "4-6")], [WANTS_N1]))
    assert grown(plan) == []
    why = "n1 has idle GPUs, but they are likely to stay for about 5 s: too short to pay"
    assert sentence(plan, 1) == f"4 of 6 workers: {why}"


def test_a_policy_is_not_shown_gpus_that_pay_for_nobody():
    policy = Wishing({})
    nodes = [node("n1", 2), node("n2", 2), node("t1", 4, used=4)]
    seen = snapshot(nodes, [elastic(1, "4-6")], [WANTS_N1])
    satellites.plan(policy, replace(seen, training=known(seen)), 60.0)
    ((_, placement),) = policy.shown
    assert {each.name for each in placement.nodes} == {"n2", "t1"}


def test_who_gets_nothing_because_it_does_not_pay_keeps_nobody_else_from_it():
    seen = snapshot(
        [node("n1", 3), node("t1", 2, used=2)],
        [elastic(1, "1-4", base="t1"), elastic(2, "1-4", base="t1")],
        stay_s=120.0,
    )
    flat, linear = known(seen)
    both = (replace(flat, speed=TableSpeed((1.0,) * 4)), linear)
    assert grown(satellites.plan(Greedy(), replace(seen, training=both), 60.0)) == [(2, "n1", 3)]


def test_what_stands_stays_though_it_would_not_be_granted_anew():
    job = granted(elastic(1, "4-6"), "n1", 2)
    seen = snapshot([node("n1", 2, used=2), node("t1", 4, used=4)], [job], stay_s=1.0)
    assert not growing(seen).actions
