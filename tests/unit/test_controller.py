"""The loop with a cluster and leaders that do what the real ones do, on a clock that the test moves."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest
from controller_world import ADA, BOB, KEY, SIGNER, STEP_S, TIME_LIMIT_S, FakeLeader, World
from says import says

from flexo.control.explanations import Headline, beyond, reasons
from flexo.control.profiles import MOST_OF_A_USER
from flexo.control.scale_overrides import BadScale, Busy, NotSteered
from flexo.control.views import UnknownJob
from flexo.event_store.search import Search
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import Cap, FailureReason, GrantFailure, SatelliteReport, SatelliteState
from flexo.model.measured import FailedWorkers, ScalingPoint, SlowGpuReport, Source
from flexo.model.queue import ElasticRequest, JobKey, JobState
from flexo.model.ranges import Range
from flexo.policies import registry
from flexo_protos.resources import Resources


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_job_grows_into_idle_gpus_and_the_event_store_says_why(world):
    leader = world.job()
    world.go(6)
    assert world.cluster.satellites() == [("t2", 3)]
    (offer,) = leader.told[-1]
    assert (offer.node, offer.workers, offer.partition, offer.time_limit_s) == ("t2", 3, "flex", TIME_LIMIT_S)
    assert offer.start_within_s == 65  # two backfill cycles of 30 s and 5 s
    ((number, grew),) = world.event_store.find(Search(job_id=1, kinds=("grow",))).events
    assert says(grew.text, "grow", "3 workers", "t2", "job 1", "1 of 4")
    facts = json.loads(world.event_store.facts_of((number,))[number])
    assert facts["idle"] == {"t1": 3, "t2": 4, "t3": 4}
    assert facts["elastic"][0]["job"] == "1"


def test_a_grant_is_said_once_however_long_it_takes(world):
    world.cluster.starts = False
    leader = world.job()
    world.go(40)
    assert len({offer.grant_id for told in leader.told for offer in told}) == 1
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_satellite_is_given_back_when_a_pending_job_could_start(world):
    world.job()
    world.go(20)
    world.rigid(50, 3, "t1")
    world.rigid(51, 4, "t3")
    world.rigid(60, 4)
    world.go(2)
    assert world.cluster.satellites() == []
    assert says(world.last("shrink"), "job 60", "bob", "t2")
    # its room is not granted again while the pending job has not started
    world.go(30)
    assert world.cluster.satellites() == []
    assert says(" ".join(world.controller.explain(1)), "job 60", "bob", "t2")
    world.cluster.queue.pop(60)
    world.go(4)
    assert world.cluster.satellites() == [("t2", 3)]
    assert world.kinds() == ["grow", "shrink", "left", "grow"]


def test_a_pending_job_that_never_starts_is_passed_over_after_a_while(world):
    world.job()
    for node in ("t1", "t3"):
        world.rigid(50 + len(world.cluster.queue), 3 if node == "t1" else 4, node)
    world.rigid(60, 4)
    world.go(300)
    assert world.cluster.satellites() == []
    world.go(100)
    assert world.cluster.satellites() == [("t2", 3)]
    assert says(world.last("wait"), "job 60", "360 s")


def test_two_jobs_share_evenly_and_stay_so(world):
    first, second = world.job(1, "1-8", "t1"), world.job(2, "1-8", "t1")
    world.go(60)
    sizes = sorted(leader.report().training_workers for leader in (first, second))
    assert sum(sizes) == 12
    assert sizes[1] - sizes[0] <= 1
    seen = len(world.event_store.events(None, 1000))
    world.go(200)
    assert len(world.event_store.events(None, 1000)) == seen


def test_a_second_job_gets_its_share_of_what_the_first_has_taken(world):
    first = world.job(1, "1-9", "t1")
    world.go(60)
    assert first.report().training_workers == 9
    second = world.job(2, "1-16", "t1")
    world.go(200)
    sizes = {leader.key.job_id: leader.report().training_workers for leader in (first, second)}
    assert sorted(sizes.values()) == [6, 6]


def test_nothing_is_granted_before_the_script_can_be_resized(world):
    leader = world.job()
    leader.scalable = False
    world.go(10)
    assert world.cluster.satellites() == []
    assert leader.told[-1] == ()
    assert says(" ".join(world.controller.explain(1)), "training loop")
    leader.scalable = True
    world.go(4)
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_report_of_somebody_else_about_the_job_counts_for_nothing(world):
    leader = world.job()
    leader.owner = BOB
    world.go(10)
    assert world.cluster.satellites() == []


def test_a_satellite_with_a_foreign_user_s_tag_is_no_grant_of_the_job(world):
    world.job()
    world.cluster.submit(KEY, BOB, "mine", "t2", 4, TIME_LIMIT_S)
    world.cluster.pass_time(STEP_S)
    world.go(10)
    (view,) = world.controller.jobs()
    assert [grant.node for grant in view.job.grants] == ["t3"]
    assert world.cluster.cancelled == []


def test_a_lease_is_extended_for_as_long_as_the_grant_stands(world):
    world.job()
    world.go(3 * TIME_LIMIT_S)
    assert world.cluster.satellites() == [("t2", 3)]
    assert world.cluster.extended
    assert {seconds for _, seconds in world.cluster.extended} == {TIME_LIMIT_S}
    assert len(world.cluster.extended) <= 3 * TIME_LIMIT_S / (TIME_LIMIT_S / 2)
    assert "extend" not in world.kinds()
    assert any(event.kind == "extend" for event in world.event_store.events(1, 100, routine=True))


def test_a_lease_is_not_extended_once_the_grant_is_withdrawn(world):
    leader = world.job()
    world.go(20)
    leader.submits = False  # hangs: hears nothing any more
    world.rigid(50, 4, "t3")
    world.rigid(60, 4)
    world.go(TIME_LIMIT_S + 10)
    assert world.cluster.extended == []
    assert world.cluster.satellites() == []


def test_a_refused_extension_is_trouble_said_once(world):
    world.job()
    world.go(10)
    world.cluster.refuses = "scontrol: Access/permission denied"
    world.go(TIME_LIMIT_S - 80)
    assert "Access/permission denied" in world.controller.status().trouble
    assert world.kinds().count("trouble") == 1
    world.cluster.refuses = ""
    world.go(60)
    assert world.controller.status().trouble == ""
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_restart_finds_every_grant_again_and_changes_nothing(world):
    leader = world.job()
    world.go(30)
    before = world.cluster.satellites(), dict(leader.own)
    world.restart()
    world.go(TIME_LIMIT_S * 2)
    assert (world.cluster.satellites(), dict(leader.own)) == before
    assert "adopt" in world.kinds()
    assert world.kinds().count("grow") == 1


def test_after_a_restart_satellites_of_a_leader_that_is_not_back_yet_are_left_alone_and_counted(world):
    world.job(1, "1-8")
    world.go(30)
    away = world.leaders.attached.pop(KEY)
    world.restart()
    other = world.job(2, "1-8", "t1")
    world.go(100)
    (first,) = [view for view in world.controller.jobs() if view.job.key == KEY]
    assert not first.attached
    assert first.job.granted_workers == 8
    assert len(away.own) == 2
    assert other.report().training_workers <= 4
    assert says(" ".join(world.controller.explain(1)), "leader", "not been connected for 98 s")
    assert "flexo run" not in world.controller.headline(1).text, "it had a leader, which got satellites"
    world.leaders.attached[KEY] = away
    told = len(away.told)
    world.go(2)
    assert {offer.grant_id for offer in away.told[told]} == set(away.own)


def test_a_leader_that_stays_away_keeps_its_satellites_for_two_leases_at_most(world):
    world.job()
    world.go(30)
    world.leaders.attached.clear()
    world.go(TIME_LIMIT_S)
    assert world.cluster.satellites() == [("t2", 3)]
    world.go(TIME_LIMIT_S + 10)
    assert world.cluster.satellites() == []


def test_what_a_leader_was_about_to_submit_when_flexod_was_restarted_stands(world):
    leader = world.job()
    leader.submits = False
    old = IssuedGrant(KEY, "old", ADA, "t2", 3, "flex", Resources(3, 3), world.cluster.now)
    signature = SIGNER.sign(old, world.cluster.now + TIME_LIMIT_S)
    reported = SatelliteReport(0, "old", "t2", 3, SatelliteState.PENDING, signature)
    leader.report = lambda: replace(FakeLeader.report(leader), satellites=(reported,))
    world.go(2)
    assert [offer.grant_id for offer in leader.told[-1]] == ["old"]
    greedy = replace(reported, workers=9)
    leader.report = lambda: replace(
        FakeLeader.report(leader), satellites=(reported, replace(greedy, grant_id="more"))
    )
    world.go(2)
    assert [offer.grant_id for offer in leader.told[-1]] == ["old"]


def test_satellites_whose_base_is_gone_are_cancelled_when_seen_so_twice(world):
    world.job()
    world.go(20)
    del world.cluster.queue[1]
    world.leaders.attached.clear()
    world.go(2)
    assert world.cluster.cancelled == []
    world.go(2)
    assert len(world.cluster.cancelled) == 1
    assert says(world.last("cancel"), "job 1", "gone")


def test_satellites_of_a_base_that_is_ending_are_not_orphans(world):
    world.job()
    world.go(20)
    world.cluster.queue[1] = replace(world.cluster.queue[1], state=JobState.COMPLETING)
    world.go(20)
    assert world.cluster.cancelled == []
    assert world.controller.jobs() == ()
    assert world.controller.explain(1) == ("job 1 is ending",)


def test_a_requeued_base_is_a_new_job_and_the_old_satellites_go(world):
    world.job()
    world.go(20)
    world.leaders.attached.clear()
    requeued = replace(world.cluster.queue[1], restart_count=1)
    world.cluster.add(requeued)
    leader = FakeLeader(world.cluster, requeued)
    world.leaders.attached[leader.key] = leader
    world.go(20)
    assert len(world.cluster.cancelled) == 1
    (view,) = world.controller.jobs()
    assert view.job.key == JobKey(1, 1)
    assert view.job.granted_workers == 4


def test_a_base_that_waits_again_leaves_no_satellites(world):
    world.job()
    world.go(20)
    world.leaders.attached.clear()
    world.cluster.add(replace(world.cluster.queue[1], state=JobState.PENDING, nodes=(), restart_count=1))
    world.go(6)
    assert len(world.cluster.cancelled) == 1


def test_a_job_that_ends_while_it_grows_leaves_nothing(world):
    world.cluster.starts = False
    world.job()
    world.go(4)
    assert world.cluster.satellites() == [("t2", 3)]
    del world.cluster.queue[1]
    world.leaders.attached.clear()
    world.cluster.starts = True
    world.go(6)
    assert world.cluster.satellites() == []
    assert world.controller.jobs() == ()


def test_a_grant_that_its_leader_never_mentions_is_forgotten_and_the_node_rests(world):
    leader = world.job()
    leader.submits = False
    world.go(90)
    assert len(leader.told[-1]) == 1
    world.go(10)
    assert world.kinds() == ["grow", "failure", "grow"]
    nodes = [offer.node for told in leader.told for offer in told]
    assert list(dict.fromkeys(nodes)) == ["t2", "t3"]


@pytest.mark.parametrize(
    "reason", [FailureReason.NOT_STARTED, FailureReason.LOST, FailureReason.WORKERS_FAILED]
)
def test_a_failed_grant_s_node_rests_longer_each_time(world, reason):
    world.cluster.sizes = {"t1": 1, "t2": 4}
    leader = world.job()
    world.go(4)
    rests = []
    for _ in range(6):
        world.fail(reason, next(iter(leader.own)))
        failed_at = world.cluster.now
        while not leader.own:
            world.go()
        rests.append(world.cluster.now - failed_at)
        world.cluster.starts = False
    assert rests == sorted(rests)
    assert [round(rest / 60) for rest in rests] == [1, 2, 4, 8, 15, 15]


def test_a_failure_tries_the_job_elsewhere_but_not_within_a_minute(world):
    leader = world.job()
    world.cluster.starts = False
    world.go(6)
    first_at = world.cluster.now - 6
    world.fail(FailureReason.NOT_STARTED, next(iter(leader.own)))
    while not leader.own:
        world.go()
    assert world.cluster.now - first_at >= 60
    assert world.cluster.satellites() == [("t3", 3)]


def test_training_in_a_satellite_ends_its_node_s_penance(world):
    world.cluster.sizes = {"t1": 1, "t2": 4}
    leader = world.job()
    world.go(4)
    for _ in range(3):
        world.fail(FailureReason.LOST, next(iter(leader.own)))
        failed_at = world.cluster.now
        while not leader.own:
            world.go()
        assert world.cluster.now - failed_at < 70
        world.go(10)  # starts and trains


def test_a_job_that_slurm_refuses_rests_on_all_nodes(world):
    leader = world.job()
    world.go(2)
    for least, most in ((60, 70), (120, 130)):
        world.fail(FailureReason.REFUSED, next(iter(leader.own)))
        world.cluster.starts = False
        failed_at = world.cluster.now
        while not leader.own:
            world.go()
        assert least <= world.cluster.now - failed_at < most


def test_a_preempted_satellite_s_node_is_left_to_the_job_that_took_it(world):
    world.cluster.sizes = {"t1": 1, "t2": 4}
    leader = world.job()
    world.go(20)
    world.fail(FailureReason.PREEMPTED, next(iter(leader.own)))
    preempted_at = world.cluster.now
    while not leader.own:
        world.go()
    assert 60 <= world.cluster.now - preempted_at < 70
    assert "preempted" in world.last("failure")


def test_a_satellite_that_vanishes_is_noted_and_replaced_after_the_rest(world):
    leader = world.job()
    world.go(20)
    world.cluster.queue.pop(leader.own.popitem()[1])
    world.go(4)
    assert "unasked" in world.last("lost")
    assert world.cluster.satellites() == []
    world.go(14)
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_failure_of_a_grant_that_never_was_is_ignored(world):
    world.job()
    world.go(20)
    world.leaders.failures.append(GrantFailure(JobKey(2), "g1", FailureReason.LOST, ""))
    world.leaders.failures.append(GrantFailure(KEY, "nonsense", FailureReason.LOST, ""))
    world.go(4)
    assert world.cluster.satellites() == [("t2", 3)]


def test_a_dry_run_decides_and_records_and_changes_nothing(tmp_path):
    world = World(tmp_path, dry_run=True)
    leader = world.job()
    orphan = world.cluster.submit(JobKey(9), ADA, "g", "t3", 4, TIME_LIMIT_S)
    world.go(60)
    assert leader.told == []
    assert (world.cluster.extended, world.cluster.cancelled) == ([], [])
    assert orphan in world.cluster.queue
    assert world.kinds() == ["grow"]
    assert says(world.last("grow"), "would grow", "3 workers", "t2")
    assert world.controller.status().dry_run
    assert "dry run" in " ".join(world.controller.explain(1))


def test_an_unreachable_cluster_is_trouble_and_grants_stand(world):
    leader = world.job()
    world.go(20)
    before = dict(leader.own)
    world.cluster.unreachable = "slurmctld: connection refused"
    world.go(40)
    assert "connection refused" in world.controller.status().trouble
    assert leader.own == before
    assert len(world.controller.jobs()) == 1
    world.cluster.unreachable = ""
    world.go(2)
    assert world.controller.status().trouble == ""
    assert world.cluster.asked_for_traits == 2
    assert leader.own == before
    assert [event.kind for event in world.event_store.events(None, 2)] == ["trouble", "trouble"]


def test_failures_reported_while_the_cluster_is_unreachable_are_not_forgotten(world):
    world.cluster.sizes = {"t1": 1, "t2": 4}
    leader = world.job()
    world.go(20)
    world.cluster.unreachable = "gone"
    world.fail(FailureReason.LOST, next(iter(leader.own)))
    world.go(4)
    world.cluster.unreachable = ""
    world.go(30)
    assert world.cluster.satellites() == []


def test_a_mistake_in_the_policy_is_trouble_and_the_loop_goes_on(world, monkeypatch):
    world.job()
    world.go(20)

    def broken(*_):
        raise ZeroDivisionError("a test's mistake")

    monkeypatch.setattr("flexo.policies.lyra.Lyra.targets", broken)
    world.go(4)
    assert "ZeroDivisionError: a test's mistake" in world.controller.status().trouble
    monkeypatch.undo()
    world.go(2)
    assert world.controller.status().trouble == ""


def test_the_interval_follows_what_a_read_costs(world):
    world.job()
    world.go(2)
    assert world.controller.interval_s == 2.0
    world.cluster.read_cost_s = 0.2
    world.go(10)
    assert world.controller.interval_s == pytest.approx(10.0)
    world.cluster.read_cost_s = 2.0
    world.go(10)
    assert world.controller.interval_s == pytest.approx(100.0)


def test_without_elastic_jobs_it_looks_seldom_and_without_slurm_ever_more_seldom(world):
    world.go(2)
    assert world.controller.interval_s == 30.0
    world.cluster.unreachable = "gone"
    intervals = []
    for _ in range(6):
        world.go(2)
        intervals.append(world.controller.interval_s)
    assert intervals == [4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    world.go(5000)
    assert world.controller.interval_s == 30.0


def test_the_same_cap_said_again_and_again_is_one_event(world):
    world.job()
    world.go(10)
    said = {world.controller.scale(KEY, 2) for _ in range(20)}
    assert len(said) == 1
    assert world.kinds().count("scale") == 1
    world.controller.scale(KEY, 3)
    assert world.kinds().count("scale") == 2


def test_a_job_scaled_on_the_web_page_has_an_event_that_says_who_did_it_and_where(world):
    world.job()
    world.go(10)
    answered = world.controller.scale(KEY, 2, "ada on the web page")
    assert "ada" not in answered
    world.controller.scale(KEY, 2, "ada on the web page")
    world.controller.scale(KEY, None, "ada on the web page")
    events = reversed(world.event_store.events(1, 1000))
    told = [event.text for event in events if event.kind == "scale"]
    assert [text.rpartition(": ")[2] for text in told] == [
        "scaled to 2 by ada on the web page",
        "cap removed by ada on the web page",
    ]
    assert told[0].startswith(answered)


def test_the_owner_scales_down_at_once_and_back(world):
    leader = world.job()
    world.go(20)
    world.leaders.wake.clear()
    assert says(world.controller.scale(KEY, 2), "job 1", "4 workers", "gives back")
    assert world.leaders.wake.is_set()
    world.go(2)
    assert leader.own == {}
    world.go(20)
    assert world.cluster.satellites() == [("t2", 1)] or world.cluster.satellites() == [("t3", 1)]
    assert "capped at 2" in " ".join(world.controller.explain(1))
    assert "all of 1-4" in world.controller.scale(KEY, None)
    world.go(20)
    assert sum(workers for _, workers in world.cluster.satellites()) == 3


def test_a_cap_is_named_with_who_set_it_also_after_a_restart(world):
    """A cap that was set on the page read as if it came from the command flexo scale."""
    world.job()
    world.go(20)
    world.controller.scale(KEY, 2, "ada on the web page")
    for restarted in (False, True):
        if restarted:
            world.restart()
        world.go(30)
        assert "capped at 2 by ada on the web page; the maximum is 4" in world.controller.explain(1)[-1]
    world.controller.scale(KEY, 3)
    world.go(30)
    assert "capped at 3; the maximum is 4" in world.controller.explain(1)[-1], "nobody knows who"


def test_the_owner_s_cap_outlives_a_restart_and_ends_with_the_job(world):
    world.job()
    world.go(4)
    world.controller.scale(KEY, 1)
    world.restart()
    world.go(20)
    assert world.cluster.satellites() == []
    base = world.cluster.queue.pop(1)
    world.go(20)  # one look or ten without the job are no end of it
    world.cluster.add(base)
    world.go(20)
    assert world.event_store.caps() == {KEY: Cap(1)}
    del world.cluster.queue[1]
    world.leaders.attached.clear()
    world.go(610)
    assert world.event_store.caps() == {}


def test_scaling_refuses_unknown_jobs_and_sizes_out_of_range(world):
    world.job()
    world.go(4)
    with pytest.raises(UnknownJob, match="no running elastic job 5"):
        world.controller.scale(JobKey(5), 2)
    with pytest.raises(BadScale, match="1-4 workers, not 9"):
        world.controller.scale(KEY, 9)


def test_status_and_jobs_show_the_last_look(world):
    world.job()
    assert world.controller.observation is None
    assert world.controller.status().last_cycle_at == 0.0
    world.go(20)
    status = world.controller.status()
    assert (status.cluster, status.version, status.policy) == ("lab", "22.05.8", "lyra")
    assert (status.nodes, status.gpus, status.gpus_idle, status.gpus_in_satellites) == (3, 12, 8, 3)
    assert (status.elastic_jobs, status.leaders) == (1, 1)
    assert status.satellite_partitions == ("flex",)
    (view,) = world.controller.jobs()
    assert (view.owner, view.attached, view.batches_committed) == (ADA, True, 17)
    assert [(grant.node, grant.workers, grant.state) for grant in view.job.grants] == [
        ("t2", 3, SatelliteState.TRAINING)
    ]
    assert world.controller.observation is not None


def test_explaining_a_job_says_what_it_has_and_why(world):
    world.job()
    world.rigid(50, 1, "t1")
    world.cluster.base(7, state=JobState.PENDING, reason="Priority", nodes=())
    world.go(20)
    have, why = world.controller.explain(1)
    assert says(have, "job 1", "ada", "1-4 workers", "1 in its base", "t1", "3 on t2")
    assert why == "4 of 4 workers: all that it can use"
    headline = world.controller.headline(1)
    assert headline.text == "4 of 1-4 workers: all that it can use"
    assert beyond(headline, (have, why, f"{why}; t9 failed it")) == (have, f"{why}; t9 failed it")
    assert beyond(Headline("4 of 1-4 workers"), (have, "it is heterogeneous: ")) == (
        have,
        "it is heterogeneous: ",
    )
    assert "has been pending for" in world.controller.explain(7)[0]
    assert says(world.controller.headline(7).text, "0 of", "pending", "(Priority)")
    assert world.controller.headline(50).text == ""
    (running,) = world.controller.explain(50)
    assert "not elastic" in running
    assert "pending" not in running
    world.rigid(51, 9, reason="Resources")
    world.go()
    assert says(" ".join(world.controller.explain(51)), "not elastic", "pending", "(Resources)")
    with pytest.raises(UnknownJob, match="not in the queue"):
        world.controller.explain(12345)
    satellite = world.cluster.last_id
    [told] = world.controller.explain(satellite)
    assert says(told, f"job {satellite}", "satellite of job 1")


def test_a_job_without_a_leader_has_one_reason_everywhere_since_when_and_what_to_look_at(world):
    """A newcomer's script never called flexo run: its lists and its own page gave two different reasons."""
    world.cluster.base(1, workers="1-4", started_at=world.cluster.clock())
    world.go()
    assert world.controller.headline(1).text == "1 of 1-4 workers: it starts, and has not begun to train"
    world.go(400)
    headline = world.controller.headline(1).text
    assert says(headline, "1 of 1-4 workers", "leader", "7 min", "flexo run")
    assert reasons(world.controller.view()) == {KEY: [headline]}
    sentences = world.controller.explain(1)
    assert headline.partition(": ")[2] in sentences
    assert "training loop" not in " ".join(sentences)


def test_the_time_without_a_leader_begins_when_the_leader_left(world):
    leader = world.job()
    world.go(200)
    assert world.controller.jobs()[0].job.leaderless_since == 0.0
    del world.leaders.attached[leader.key]
    world.go()
    left_at = world.controller.jobs()[0].job.leaderless_since
    world.go(100)
    assert world.controller.jobs()[0].job.leaderless_since == left_at > 0.0


def test_a_job_whose_new_workers_only_start_does_not_read_as_if_it_had_all_that_it_can_use(world):
    """A researcher saw `1 of 1-4 workers: all that it can use` for half a minute after the first grant."""
    leader = world.job()
    leader.submits = False
    world.go(6)
    assert [grant.starting for grant in world.controller.jobs()[0].job.grants] == [True]
    headline = world.controller.headline(1).text
    assert says(headline, "1 of 1-4 workers", "3 more start on t2 (granted)")
    assert "all that it can use" not in headline
    assert says(world.controller.explain(1)[-1], "4 of 4 workers granted")


def test_progress_is_shown_where_it_is_told_and_what_is_left_is_estimated_with_its_source(world):
    leader = world.job(time_limit_s=7200)
    world.go(20)
    (view,) = world.controller.jobs()
    assert (view.progress, view.left.source) == (0.0, Source.TIME_LIMIT)
    told = " ".join(world.controller.explain(1))
    assert says(told, "4 workers", "29 min", "time limit")
    leader.says = {"progress": 0.25}
    world.go(4)
    (view,) = world.controller.jobs()
    assert (view.progress, view.left.source) == (0.25, Source.PROGRESS)
    told = " ".join(world.controller.explain(1))
    assert says(told, "25%", "leader")
    assert says(told, "its own progress")


def test_what_satellites_have_done_is_not_left_to_do_and_nothing_is_said_where_that_is_all(world):
    """Two hours for one worker are half an hour for four; a page went on to count down all of them."""
    world.job(time_limit_s=7200)
    world.go(900)
    (view,) = world.controller.jobs()
    assert view.left.seconds == pytest.approx((7200 - 900 * 4) / 4, rel=0.05)
    world.go(1200)
    (view,) = world.controller.jobs()
    assert view.left is None
    assert "goes on for" not in " ".join(world.controller.explain(1))


def test_a_growth_onto_several_nodes_says_what_the_job_has_before_each(world):
    world.job(workers="1-8")
    world.go(60)
    texts = [event.text for event in reversed(world.event_store.events(1, 10)) if event.kind == "grow"]
    assert [text.rpartition("; ")[2] for text in texts] == ["job 1 has 1 of 8", "job 1 has 5 of 8"]


def test_the_loop_runs_in_its_thread_wakes_for_leaders_and_stops(tmp_path):
    world = World(tmp_path, min_interval_s=0.2, max_interval_s=60.0)
    stop = threading.Event()
    thread = threading.Thread(target=world.controller.run, args=(stop,))
    thread.start()
    try:
        _until(lambda: len(world.cluster.looks) == 1)
        time.sleep(0.5)
        assert len(world.cluster.looks) == 1  # no elastic job: nothing to look for
        for _ in range(20):
            world.leaders.wake.set()
        _until(lambda: len(world.cluster.looks) == 2)
        world.leaders.wake.set()
        _until(lambda: len(world.cluster.looks) == 3)
        assert world.cluster.looks[2] - world.cluster.looks[1] >= 0.19  # not below what reading allows
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert [event.text for event in world.event_store.events(None, 2)] == [
        "flexod ends; grants stand",
        "flexod begins",
    ]


def _until(true, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Scaling by so many workers more or less.


def test_scaling_out_lifts_the_cap_by_so_many_workers(world):
    leader = world.job(workers="1-8")
    world.controller.cycle()
    world.controller.scale(KEY, 2)
    world.go(20)
    assert leader.report().training_workers == 2
    assert says(world.controller.scale_out(KEY, 2), "grows", "at most 4")
    world.go(20)
    assert leader.report().training_workers == 4


def test_a_job_grows_on_the_nodes_that_its_owner_names_until_the_next_size(world):
    leader = world.job(workers="1-8")
    world.controller.cycle()
    world.controller.scale(KEY, 1)
    world.go(20)
    assert says(world.controller.scale_out(KEY, 2, ["t3"]), "at most 3", "t3 only")
    world.go(20)
    assert world.cluster.satellites() == [("t3", 2)]
    world.controller.scale(KEY, None)
    world.go(60)
    assert "t2" in {node for node, _ in world.cluster.satellites()}
    assert leader.report().training_workers > 3


def test_growth_on_named_nodes_outlives_a_restart_and_says_why_idle_nodes_are_not_used(world):
    world.job(workers="1-4")
    world.controller.cycle()
    world.controller.scale(KEY, 1)
    world.go(20)
    world.rigid(9, 4, "t3")
    world.go(20)
    world.controller.scale_out(KEY, 2, ["t3"])
    world.restart()
    world.go(20)
    assert world.cluster.satellites() == []
    assert says(" ".join(world.controller.explain(1)), "t2 has idle GPUs", "grow on t3 only")


def test_nodes_for_growth_must_exist_and_suit_the_job(world):
    world.job(workers="1-4", excluded_nodes=frozenset({"t2"}))
    world.controller.cycle()
    world.controller.scale(KEY, 1)
    world.go(20)
    with pytest.raises(BadScale, match="no node 't9'"):
        world.controller.scale_out(KEY, 1, ["t3", "t9"])
    with pytest.raises(BadScale, match="t2: the job excludes this node"):
        world.controller.scale_out(KEY, 1, ["t2"])
    assert world.controller.jobs()[0].job.wanted == 1


def test_scaling_in_gives_whole_satellites_back_and_they_do_not_come_again(world):
    leader = world.job(workers="1-4")
    world.go(20)
    assert leader.report().training_workers == 4
    world.controller.scale_in(KEY, 1)
    world.go(60)
    assert leader.report().training_workers <= 3
    assert world.controller.jobs()[0].job.wanted == 3


def test_scaling_in_on_a_node_gives_that_satellite_back_and_no_other(world):
    leader = world.job(workers="1-8", node="t1")
    world.go(60)
    before = world.cluster.satellites()
    assert len(before) == 2
    node, workers = before[1]
    assert f"on {node}" in world.controller.scale_in(KEY, 0, [node])
    world.go(60)
    assert world.cluster.satellites() == before[:1]
    assert leader.report().training_workers == 8 - workers


def test_scaling_in_on_several_nodes_gives_all_their_satellites_back_or_none(world):
    leader = world.job(workers="1-8", node="t1")
    world.go(60)
    (one, _), (other, _) = before = world.cluster.satellites()
    with pytest.raises(BadScale, match="no satellite on 't9'"):
        world.controller.scale_in(KEY, 0, [one, "t9"])
    world.go(60)
    assert world.cluster.satellites() == before
    assert says(world.controller.scale_in(KEY, 0, [one, other, one]), "7 workers", one, other)
    world.go(60)
    assert world.cluster.satellites() == []
    assert leader.report().training_workers == 1


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        (lambda controller: controller.scale_out(KEY, 1), "has 4 workers, which is its maximum"),
        (lambda controller: controller.scale_in(KEY, 4), "1 to 3 fewer are allowed"),
        (lambda controller: controller.scale_in(KEY, 0), "1 to 3 fewer are allowed"),
        (lambda controller: controller.scale_in(KEY, 0, ["t3"]), "no satellite on 't3': t2"),
    ],
)
def test_more_or_fewer_workers_than_the_range_holds_are_refused_with_what_is_allowed(world, change, allowed):
    world.job()
    world.go(20)
    with pytest.raises(BadScale, match=allowed):
        change(world.controller)
    assert world.event_store.caps() == {}


def test_a_second_resize_is_told_to_come_again_until_the_first_is_done(world):
    world.job(workers="1-8")
    world.controller.cycle()
    world.controller.scale(KEY, 2)
    world.go(20)
    world.controller.scale_out(KEY, 1)
    with pytest.raises(Busy, match=r"just begun.*try again later"):
        world.controller.scale_out(KEY, 1)
    world.cluster.starts = False
    world.controller.cycle()
    with pytest.raises(Busy, match=r"1 on t\d granted"):
        world.controller.scale_in(KEY, 1)
    world.cluster.starts = True
    world.go(20)
    world.controller.scale_out(KEY, 1)


def test_while_the_leader_is_between_generations_or_has_an_errand_a_resize_has_to_wait(world):
    leader = world.job()
    world.go(20)
    leader.says = {"changing": True}
    world.controller.cycle()
    with pytest.raises(Busy, match="being resized"):
        world.controller.scale_in(KEY, 1)
    leader.says = {"pending_command": "profile of 1-4 workers"}
    world.controller.cycle()
    with pytest.raises(Busy, match="profile of 1-4 workers"):
        world.controller.scale_in(KEY, 1)


def test_a_job_without_a_leader_or_that_cannot_be_resized_is_not_steered(world):
    leader = world.job()
    leader.scalable = False
    leader.says = {"unscalable_why": "its user has turned profiling off"}
    world.controller.cycle()
    with pytest.raises(NotSteered, match="turned profiling off"):
        world.controller.scale_out(KEY, 1)
    assert "turned profiling off" in " ".join(world.controller.explain(1))
    world.leaders.attached.clear()
    world.controller.cycle()
    with pytest.raises(NotSteered, match="no leader attached"):
        world.controller.scale_out(KEY, 1)


def test_a_job_that_is_profiled_is_given_nothing_meanwhile(world):
    leader = world.job()
    leader.says = {"pending_command": "profile of 1-2 workers"}
    world.go(20)
    assert world.cluster.satellites() == []
    assert says(" ".join(world.controller.explain(1)), "not resized", "profile of 1-2 workers")
    leader.says = {}
    world.go(20)
    assert world.cluster.satellites() == [("t2", 3)]


# What profiles and stragglers leave behind.


def test_a_profile_is_shown_and_outlives_a_restart(world):
    world.job()
    world.go(2)
    points = (ScalingPoint(1, 50.0, 0.1, 0.01, 1.0, 20, 5.0), ScalingPoint(2, 0.0, 0.12, 0.02, 0.8, 20, 5.0))
    world.controller.profiled(KEY, points)
    world.restart()
    world.go(4)
    (view,) = world.controller.jobs()
    assert view.scaling == points
    told = " ".join(world.controller.explain(1))
    assert says(told, "1 worker", "50 samples/s", "1.00", "2 workers", "0.12 s", "0.80")


def measured(*sizes: int, at: float = 5.0) -> tuple[ScalingPoint, ...]:
    return tuple(ScalingPoint(size, 50.0, 0.1, 0.01, 1.0, 20, at) for size in sizes)


def test_of_a_profile_only_sizes_count_that_the_job_may_have(world):
    world.job(1, "2-4", "t1")
    world.go(2)
    world.controller.profiled(KEY, measured(*range(1, 1001)))
    assert [point.workers for point in world.event_store.scaling()[KEY]] == [2, 3, 4]
    assert len(world.event_store.events(1, 1)[0].text) < 500


def test_a_sentence_about_a_profile_of_many_sizes_names_some_of_them(world):
    world.job(1, "1-1000", "t1")
    world.go(2)
    world.controller.profiled(KEY, measured(*range(1, 1001)))
    (event,) = world.event_store.events(1, 1)
    assert "16 workers" in event.text
    assert "984" in event.text
    assert len(event.text) < 2000


def test_of_one_users_profiles_the_oldest_goes_for_one_too_many(world):
    world.cluster.sizes["t1"] = MOST_OF_A_USER + 10
    for number in range(1, MOST_OF_A_USER + 3):
        world.job(number, "1-1", "t1")
    other = world.job(100, "1-1", "t1", owner=BOB, user="bob")
    world.go(2)
    world.controller.profiled(other.key, measured(1, at=1.0))
    for number in range(1, MOST_OF_A_USER + 3):
        world.controller.profiled(JobKey(number), measured(1, at=10.0 + number))
    known = world.event_store.scaling()
    assert other.key in known
    assert {key.job_id for key in known} == {*range(3, MOST_OF_A_USER + 3), 100}


def test_a_profile_is_forgotten_when_its_job_has_been_gone_for_a_while_also_after_a_restart(world):
    leader = world.job()
    world.go(2)
    world.controller.profiled(KEY, measured(1, 2))
    world.cluster.queue.clear()
    world.leaders.attached.clear()
    world.go(60)
    assert KEY in world.event_store.scaling()
    world.restart()
    world.go(700)
    assert world.event_store.scaling() == {}
    world.controller.profiled(leader.key, measured(1, 2))
    assert world.event_store.scaling() == {}


def test_a_node_with_a_slow_gpu_is_left_alone_for_a_while_also_after_a_restart(tmp_path):
    world = World(tmp_path, slow_gpu_s=100.0)
    world.job()
    world.go(20)
    assert world.cluster.satellites() == [("t2", 3)]
    world.leaders.slow.append(SlowGpuReport(KEY, "t2", (1,), 1.8))
    (grant_id,) = world.leaders.attached[KEY].own
    world.fail(FailureReason.SLOW_GPU, grant_id)
    world.go(4)
    assert world.cluster.satellites() == []
    world.restart()
    (slow,) = world.controller.status().slow_gpus
    assert (slow.node, slow.gpus, slow.ratio, slow.until_at - slow.seen_at) == ("t2", (1,), 1.8, 100.0)
    world.go(30)
    assert world.cluster.satellites() == [("t3", 3)]
    assert says(world.last("slow"), "GPU 1 of t2", "1.8 times", "job 1")
    world.go(100)
    assert world.controller.status().slow_gpus == ()


def test_new_workers_that_failed_and_started_again_are_an_event_of_their_own_job(world):
    world.job()
    world.go(20)
    for node in ("t3", "t2", "t2"):
        world.leaders.failed_workers.append(FailedWorkers(KEY, node, 2, "exit code 1"))
    world.go(4)
    restarts = [each.text for each in world.event_store.events(None, 1000) if each.kind == "restart"]
    assert len(restarts) == 1  # the job has nothing on t3, and once a minute is enough
    assert says(restarts[0], "2 new workers", "t2", "exit code 1")


def test_a_job_whose_workers_keep_failing_says_so_where_its_size_is_explained(world):
    """Six failures in two minutes left "all that it can use" and one event among many."""
    world.job()
    world.go(20)
    for lately in (2, 6):
        world.leaders.failed_workers.append(FailedWorkers(KEY, "t2", 1, "exit code 1", True, lately))
        world.go(80)
    newest, older = (each.text for each in world.event_store.events(None, 1000) if each.kind == "restart")
    assert "6 failures in 10 minutes" in newest
    assert "failures in" not in older
    assert says(world.controller.headline(1).text, "keep failing", "6 in 10 min")
    assert "flexo logs 1" in " ".join(world.controller.explain(1))
    world.go(700)
    assert "failing" not in world.controller.headline(1).text


def test_a_leader_may_only_speak_of_gpus_that_its_own_job_has(world):
    world.job()
    world.go(20)
    world.leaders.slow.append(SlowGpuReport(KEY, "t3", (0,), 9.0))
    world.go(4)
    assert world.controller.status().slow_gpus == ()
    assert "ignored" in world.last("slow")


def test_slow_gpus_are_only_recorded_where_the_administrator_says_so(tmp_path):
    world = World(tmp_path, slow_gpu_s=0.0)
    world.job()
    world.go(20)
    world.leaders.slow.append(SlowGpuReport(KEY, "t2", (0,), 2.0))
    world.go(4)
    assert world.controller.status().slow_gpus == ()
    assert "slow_gpu_s" in world.last("slow")


def test_the_batch_grows_with_the_workers_within_what_the_training_accepts(world):
    leader = world.job(workers="1-8", elastic=ElasticRequest(Range(1, 8), batch=Range(32, 128)))
    leader.scalable = False
    world.go(4)
    assert leader.batch == 32
    leader.scalable = True
    world.go(60)
    assert leader.report().training_workers == 8
    assert leader.batch == 128
    assert says(" ".join(world.controller.explain(1)), "128 samples", "32-128")
    plain = world.job(2)
    world.go(4)
    assert plain.batch == 0


@pytest.mark.parametrize("policy", [name for name in registry.names() if name != "lyra"])
def test_under_every_policy_jobs_stay_within_range_pending_jobs_come_first_and_it_comes_to_rest(
    tmp_path, policy
):
    world = World(tmp_path, policy=policy)
    jobs = [world.job(1, "1-8", "t1", time_limit_s=7200), world.job(2, "2-6", "t2", time_limit_s=3600)]
    world.go(60)
    assert not world.controller.status().trouble
    for leader in jobs:
        report = leader.report()
        assert report.workers.min <= report.training_workers <= report.workers.max
    world.rigid(50, gpus=4)
    world.go(60)
    # somebody gives way to the pending job, which then starts as on Slurm
    room = {node: gpus - world.cluster.held(node) for node, gpus in world.cluster.sizes.items()}
    assert max(room.values()) >= 4
    seen = world.event_store.events(None, 1000)
    world.go(120)
    assert world.event_store.events(None, 1000) == seen


def test_a_long_job_does_not_take_gpus_from_a_short_one_because_it_saves_more_seconds(tmp_path):
    world = World(tmp_path, policy="lyra")
    short = world.job(1, "1-8", "t1", time_limit_s=600)
    world.go(30)
    assert short.report().training_workers == 8
    long = world.job(2, "1-8", "t1", time_limit_s=72_000)
    world.go(200)
    assert 4 <= long.report().training_workers <= short.report().training_workers
    assert long.report().training_workers + short.report().training_workers >= 11


def test_running_times_of_ended_jobs_are_remembered_and_outlive_a_restart(world):
    world.rigid(50, gpus=4, node="t3")
    world.go(6)
    ran_s = world.cluster.now - 950.0
    del world.cluster.queue[50]
    world.go(10)
    (time_of_it,) = world.event_store.running_times()
    assert (time_of_it.user, time_of_it.gpus) == ("bob", 4)
    assert time_of_it.seconds == pytest.approx(ran_s, abs=2 * STEP_S)
    world.restart()
    world.go(6)
    assert world.event_store.running_times() == (time_of_it,)
