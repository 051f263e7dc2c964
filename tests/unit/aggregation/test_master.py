"""pMaster: which pool Aggregators sum which jobs' gradients, and what happens when that hurts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import GB, MB, PoolWorld, Trainer

from flexo.aggregation.assignment import TaskTooLarge
from flexo.aggregation.demand import AggregationTask, Capacity, JobDemand
from flexo.aggregation.master import (
    ADOPTED_WITHIN_S,
    ADOPTS_FOR_S,
    GONE_AFTER_S,
    PROFILED_WITHIN_S,
    TAKEN_OVER_WITHIN_S,
)
from flexo.aggregation.pool import Aggregator, AggregatorPool
from flexo.aggregation.pool_state import LinkLoad
from flexo.aggregation.pooled_job import PooledJob
from flexo.aggregation.scaling import Change, undo_for
from flexo.aggregation.upkeep import EVICTED_AFTER_S, EVICTED_LATE_S
from flexo.model.aggregation import Eviction, JobSums, PoolAggregator, UsedAggregator


def stages(world: PoolWorld) -> dict[int, str]:
    return {each.job.job_id: each.state for each in world.decided.view.jobs}


def test_a_job_is_profiled_on_aggregators_that_no_other_job_uses() -> None:
    world = PoolWorld(3)
    first, second = world.add(1), world.add(2)
    world.run(2)
    assert stages(world) == {1: "is profiled", 2: "is profiled"}
    assert len(first.used) == 2  # as many as it would reserve, if so many are idle
    assert not {each.name for each in first.used} & {each.name for each in second.used}


def test_four_jobs_that_would_reserve_two_cores_each_share_at_most_three_aggregators() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    world.run(400)
    assert set(stages(world).values()) == {"shares"}
    assert len(world.aggregators_in_use()) <= 3
    assert all(each.loss == 0 for each in world.decided.view.jobs)
    assert world.decided.view.reverts == 0
    assert world.decided.view.wanted <= 3


def test_without_an_idle_aggregator_the_time_alone_and_an_estimate_stand_for_the_profile() -> None:
    world = PoolWorld(1)
    world.add(1, reserves=1, size=2 * MB)
    world.run(60)
    late = world.add(2, reserves=1, size=2 * MB)
    world.run(5)
    assert stages(world)[2] == "waits"
    assert not late.used
    world.run(60)
    assert stages(world)[2] == "shares"
    assert late.used == world.jobs[1].used


def test_a_job_that_asks_for_its_own_aggregators_is_told_nothing() -> None:
    world = PoolWorld(2)
    world.add(1, wants_pool=False)
    world.run(5)
    assert not world.decided.assignments
    assert not world.decided.view.jobs


def test_a_greedy_newcomer_goes_back_to_its_own_aggregators_and_rests() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    world.run(400)
    greedy = world.add(5, cpu_s=0.02, greedy_cpu_s=1.0, alone_s=0.2)
    world.add_aggregator()
    happened = world.run(100)
    reverts = [each for each in happened if each.kind == "revert"]
    assert [each.job for each in reverts] == [greedy.key]
    assert "loses" in reverts[0].text
    assert "came last" in reverts[0].text
    assert "rests" in reverts[0].text
    assert not greedy.used
    assert stages(world)[5] == "rests"
    assert set(stages(world).values()) == {"shares", "rests"}
    assert max(each.loss for each in world.decided.view.jobs) == 0


def test_a_rest_ends_and_the_job_is_profiled_again() -> None:
    world = PoolWorld(3, rest_s=50.0)
    for number in (1, 2, 3):
        world.add(number, cpu_s=0.05)
    world.run(300)
    world.add(4, cpu_s=0.02, greedy_cpu_s=1.0)
    world.add_aggregator()
    world.run(75)
    assert stages(world)[4] == "rests"
    world.jobs[4].greedy_cpu_s = 0.0
    world.run(150)
    assert stages(world)[4] == "shares"


def test_a_job_that_becomes_greedy_later_is_told_by_its_cpu_time() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    world.run(600)
    world.jobs[2].greedy_cpu_s = 1.0
    happened = [each for each in world.run(60) if each.kind == "revert"]
    assert happened
    assert happened[0].job == world.jobs[2].key
    assert "cores where its profile says" in happened[0].text


@pytest.mark.parametrize("takes_s", [1, 12])
def test_only_the_greedy_job_goes_back_although_durations_are_old_for_a_while(takes_s: int) -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    greedy = world.add(5, cpu_s=0.04, takes_s=takes_s)
    world.run(600)
    greedy.greedy_cpu_s = 0.3
    happened = [each for each in world.run(200) if each.kind == "revert"]
    assert [each.job for each in happened] == [greedy.key]


def test_the_first_iterations_after_an_assignment_are_not_judged() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, warm_up_s=5)
    world.run(400)
    assert set(stages(world).values()) == {"shares"}
    assert world.decided.view.reverts == 0


def test_a_profiled_job_stays_where_it_is_while_those_are_profiled_whom_it_will_join() -> None:
    world = PoolWorld(3)
    world.add(1, alone_s=0.4)
    late = world.add(2, alone_s=0.2)
    happened = world.run(200)
    assert stages(world) == {1: "shares", 2: "shares"}
    assert not [each for each in happened if each.job == late.key and "by its own" in each.text]


def test_a_job_that_sends_more_than_its_profile_says_goes_back_although_nobody_loses() -> None:
    world = PoolWorld(3)
    for number in range(1, 6):
        world.add(number, cpu_s=0.01)
    world.run(600)
    greedy = world.jobs[5]
    greedy.greedy_cpu_s, greedy.size = 0.03, 10 * greedy.size
    happened = [each for each in world.run(60) if each.kind == "revert"]
    assert [each.job for each in happened] == [greedy.key]
    assert "cores where its profile says" in happened[0].text
    assert greedy.iterations * greedy.alone_s > 30, "long ago"
    assert all(each.loss < 0.1 for each in world.decided.view.jobs)


def test_a_machine_that_slows_a_greedy_job_down_does_not_hide_it() -> None:
    world = PoolWorld(3)
    for number in range(1, 6):
        world.add(number, cpu_s=0.01)
    world.run(600)
    greedy = world.jobs[5]
    greedy.alone_s, greedy.cpu_s = 10 * greedy.alone_s, 10 * greedy.cpu_s  # as many cores as before
    happened = [each for each in world.run(35) if each.kind == "revert"]
    assert [each.job for each in happened] == [greedy.key]
    assert "cores where its profile says 0.05" in happened[0].text


def test_if_another_job_loses_the_bytes_of_a_greedy_one_count_before_its_cpu_time() -> None:
    world = PoolWorld(3)
    for number in range(1, 6):
        world.add(number, cpu_s=0.02)
    world.run(600)
    greedy, loser = world.jobs[5], world.jobs[1]
    greedy.size, loser.alone_s = 10 * greedy.size, 1.5 * loser.alone_s
    happened = [each for each in world.run(20) if each.kind == "revert"]
    assert [each.job for each in happened] == [greedy.key]
    assert "job 1 loses" in happened[0].text
    assert "job 5 sends 191 MiB where its profile says 19" in happened[0].text


def test_a_job_that_grows_before_it_is_measured_is_measured_as_it_is_then() -> None:
    world = PoolWorld(2)
    for number in range(1, 4):
        world.add(number, cpu_s=0.01)
    world.run(300)
    late = world.add(4, cpu_s=0.01)
    while stages(world).get(4) != "shares":
        world.tick()
    world.run(15)  # by an estimate: it is not measured yet
    late.size, late.cpu_s = 3 * late.size, 3 * late.cpu_s
    assert not [each for each in world.run(120) if each.kind == "revert"]
    job = world.master._state.jobs[late.key]
    assert not job.provisional
    assert job.planned_cores == pytest.approx(0.15, rel=0.02)


def test_a_job_may_exceed_its_profile_where_it_is_alone() -> None:
    world = PoolWorld(2)
    world.add(1, cpu_s=0.01)
    world.run(100)
    world.jobs[1].cpu_s = 0.1
    assert not [each for each in world.run(60) if each.kind == "revert"]


def test_neighbours_do_not_wait_for_ever_for_a_greedy_job_that_stays() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    greedy = world.add(5, cpu_s=0.04)
    world.run(600)
    greedy.greedy_cpu_s, greedy.obeys = 0.3, False
    happened = [each for each in world.run(200) if each.kind == "revert"]
    assert happened[0].job == greedy.key
    assert len(happened) > 1


def test_a_loss_that_nobody_explains_sends_the_losing_job_itself_back() -> None:
    world = PoolWorld(3)
    world.add(1)
    world.add(2)
    world.run(400)
    world.jobs[1].alone_s *= 1.5
    happened = [each for each in world.run(30) if each.kind == "revert"]
    assert [each.job for each in happened] == [world.jobs[1].key]
    assert "no recent change explains it" in happened[0].text


def test_a_load_that_fits_nowhere_stays_at_home_and_is_counted_as_wanted() -> None:
    world = PoolWorld(1)
    world.add(1, reserves=1, cpu_s=0.15)
    world.run(60)
    world.add(2, reserves=1, cpu_s=0.15, size=90 * MB)
    world.run(60)
    assert stages(world) == {1: "shares", 2: "waits"}
    assert world.decided.view.jobs[1].why == "no pool Aggregator has room for it"
    assert world.decided.view.wanted == 2
    world.add_aggregator()
    world.run(3)
    assert stages(world)[2] == "shares"


@pytest.mark.parametrize(("share", "together"), [("user", False), ("account", True), ("all", True)])
def test_who_may_share_an_aggregator_is_configured(share: str, *, together: bool) -> None:
    world = PoolWorld(1, share=share)
    world.add(1, user="ada", account="physics", reserves=1, size=2 * MB, cpu_s=0.02)
    world.run(60)
    world.add(2, user="bob", account="physics", reserves=1, size=2 * MB, cpu_s=0.02)
    world.run(60)
    assert bool(world.jobs[2].used) is together


def test_an_aggregator_that_is_gone_loses_its_jobs_at_once() -> None:
    world = PoolWorld(3)
    for number in (1, 2):
        world.add(number)
    world.run(300)
    lost = world.jobs[1].used[0].name
    del world.pool[lost]
    happened = world.run(int(GONE_AFTER_S) + 2)
    assert any(each.kind == "aggregator" and lost in each.text for each in happened)
    assert lost not in world.aggregators_in_use()
    assert world.jobs[1].used  # there is room elsewhere


def test_the_last_aggregator_leaves_and_jobs_use_their_own() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    name = job.used[0].name
    world.pool[name] = replace(world.pool[name], leaving=True)
    version = job.version
    world.run(1)
    assert not job.used
    assert job.version > version


def test_a_short_absence_of_an_aggregator_moves_nobody() -> None:
    world = PoolWorld(2)
    world.add(1)
    world.run(100)
    away = world.pool.copy()
    world.pool.clear()
    assert not world.run(int(GONE_AFTER_S) - 2)
    world.pool |= away
    assert not world.run(5)


def test_an_aggregator_that_was_started_again_has_other_tokens_and_so_another_version() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    version, name = job.version, job.used[0].name
    world.pool[name] = replace(world.pool[name], key=b"\xff" * 32, jobs=())
    world.run(1)
    assert job.version > version


def test_flexod_starts_again_and_nobody_moves() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number)
    world.run(400)
    before = {number: (job.version, job.used) for number, job in world.jobs.items()}
    world.jobs[3].attached = False  # its leader comes later than the others
    world.restart_flexod()
    happened = world.run(8)
    world.jobs[3].attached = True
    happened += world.run(int(ADOPTED_WITHIN_S) + 20)
    assert {number: (job.version, job.used) for number, job in world.jobs.items()} == before
    assert {each.kind for each in happened} == {"aggregator"}
    assert set(stages(world).values()) == {"shares"}


def test_flexod_starts_again_and_the_aggregators_are_gone() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    version = job.version
    world.pool.clear()
    world.restart_flexod()
    world.run(int(ADOPTED_WITHIN_S) - 5)
    assert job.version == version
    world.run(10)
    assert job.version > version
    assert not job.used


def test_a_leader_that_claims_another_users_aggregator_gets_no_token_for_it() -> None:
    world = PoolWorld(1)
    world.add(1, user="ada", reserves=1)
    world.run(60)
    thief = world.add(2, user="eve", reserves=1)
    thief.used, thief.version = world.jobs[1].used, 7
    thief.now_s, thief.iterations = 0.2, 500
    for _ in range(int(ADOPTED_WITHIN_S) + 10):
        decided = world.tick()
        told = next((each for each in decided.assignments if each.job == thief.key), None)
        assert told is None or not told.shares


@pytest.mark.parametrize("late", [False, True], ids=["at flexod's start", "later"])
def test_a_job_that_claims_the_whole_pool_gets_what_any_job_gets(*, late: bool) -> None:
    """It trains at none of the Aggregators that it names, so none of them says that the job is there."""
    world = PoolWorld(4)
    if late:
        world.run(int(ADOPTS_FOR_S) + 5)
    claim = tuple(UsedAggregator(name, 1) for name in world.pool)
    job = world.add(1, reserves=1, obeys=False)
    job.version, job.iterations = 1, 50
    told = []
    for _ in range(300):
        job.used = claim
        said = job.client()
        job.used = ()  # the world has an Aggregator say that a job is there where the job uses it
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job, "client", lambda said=said: said)
            told += [each.shares for each in world.tick().assignments]
    assert told
    assert max(map(len, told)) <= 1


def test_a_job_that_serves_itself_with_an_old_token_is_not_adopted_long_after_flexods_start() -> None:
    world = PoolWorld(2)
    world.run(int(ADOPTS_FOR_S) + 5)
    job = world.add(1, reserves=1)
    job.used, job.version, job.iterations = tuple(UsedAggregator(name, 1) for name in world.pool), 7, 500
    world.run(int(ADOPTED_WITHIN_S) + 3)
    assert job.version > 7
    assert len(job.used) < 2


def test_an_adopted_job_that_is_never_measured_goes_back() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    job.alone_s = 1e6  # it stands still
    world.restart_flexod()
    happened = world.run(int(PROFILED_WITHIN_S) + 10)
    assert any(each.kind == "revert" and "not measured" in each.text for each in happened)
    assert stages(world) == {1: "rests"}


def test_a_leader_that_is_away_keeps_its_assignment() -> None:
    world = PoolWorld(2)
    job = world.add(1)
    world.run(60)
    job.attached = False
    assert not world.run(100)
    job.attached = True
    assert not world.run(5)
    assert job.used


def test_the_jobs_of_an_ended_one_are_served_by_fewer_aggregators_after_a_period() -> None:
    world = PoolWorld(4, period_s=30.0)
    for number in range(1, 5):
        world.add(number, cpu_s=0.09, reserves=1)
    world.run(300)
    assert len(world.aggregators_in_use()) == 2
    del world.jobs[1], world.jobs[3]
    happened = world.run(100)
    assert len(world.aggregators_in_use()) == 1
    assert any("fewer Aggregators" in each.text for each in happened)


def test_a_job_whose_size_is_unknown_for_a_moment_is_not_resized() -> None:
    world = PoolWorld(3)
    world.add(1)
    world.run(400)
    [known] = world.master._state.jobs.values()
    size, world.jobs[1].size = world.jobs[1].size, 0
    world.run(2)
    world.jobs[1].size = size
    world.run(2)
    assert not known.provisional


def test_a_resized_job_is_measured_again_where_it_is() -> None:
    world = PoolWorld(2)
    job = world.add(1, reserves=1)
    world.run(60)
    version = job.version
    job.nodes, job.alone_s = 4, 0.3
    assert not world.run(60)
    assert job.version == version
    assert world.decided.view.jobs[0].alone_s == pytest.approx(0.3)


@pytest.mark.parametrize("nodes", [2, 30])
def test_a_token_allows_what_two_generations_of_the_job_take(nodes: int) -> None:
    """Whatever the job says of its nodes: flexod knows how many it has, and had."""
    world = PoolWorld(1, quota_mib=4096)
    job = world.add(1, reserves=1, size=100 * MB, nodes=nodes, cpu_s=0.001)
    world.run(5)
    job.nodes = 1
    decided = world.tick()
    assert [each.quota for each in decided.assignments] == [2 * (nodes + 1) * 100 * MB]


def test_gradients_over_the_quota_stay_at_home() -> None:
    world = PoolWorld(1, quota_mib=10)
    world.add(1, size=20 * MB)
    world.run(5)
    assert not world.jobs[1].used
    assert "quota_mib" in world.decided.view.jobs[0].why


def test_buffers_over_an_aggregators_memory_stay_at_home() -> None:
    world = PoolWorld()
    world.add_aggregator(memory=GB // 100)
    world.add(1, reserves=1, size=20 * MB)
    world.run(60)
    assert stages(world) == {1: "waits"}


def test_a_job_that_stays_where_it_was_is_evicted_after_a_while() -> None:
    world = PoolWorld(1)
    world.add(1)
    name = next(iter(world.pool))
    world.run(30)
    world.strangers = (JobSums("99", 1, 1, 1.0, 0.0),)
    evicted: list[Eviction] = []
    for _ in range(int(EVICTED_AFTER_S) + 3):
        evicted += world.tick().evictions
    assert evicted == [Eviction(name, "99")]


def test_idle_aggregators_end_after_a_while_but_not_those_that_waiting_jobs_need() -> None:
    world = PoolWorld(3, drain_after_s=60.0)
    world.run(30)
    world.add(1)
    world.run(25)
    assert not world.drained
    world.run(40)
    assert len(world.drained) == 1
    assert world.drained[0] not in world.aggregators_in_use()
    world.run(100)
    assert len(world.drained) == 1
    world.add(2, wants_pool=True)
    world.run(100)
    assert world.drained[0] not in world.aggregators_in_use()


def test_by_default_no_aggregator_is_told_to_end() -> None:
    world = PoolWorld(2)
    world.run(3)
    world.now += 1_000_000
    world.run(3)
    assert not world.drained


def test_a_job_moves_at_most_once_in_a_hundred_of_its_iterations() -> None:
    world = PoolWorld(6, period_s=2.0)
    for number in range(1, 7):
        world.add(number, cpu_s=0.3, alone_s=1.0, reserves=1)
    for ended in (1, 4, 5):
        world.run(60)
        del world.jobs[ended]
    world.run(150)  # the world checks each move
    world.run(200)
    assert len(world.aggregators_in_use()) == 1


def test_after_a_restart_nobody_comes_to_an_aggregator_whose_job_is_not_known_yet() -> None:
    world = PoolWorld(1)
    job = world.add(1, user="ada", reserves=1)
    world.run(60)
    job.attached = False
    world.restart_flexod()
    late = world.add(2, user="bob", reserves=1)
    world.run(200)
    assert job.used
    assert not late.used


def test_a_job_that_asks_for_a_pool_no_more_is_told_so_and_then_forgotten() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    assert job.used
    job.wants_pool = False
    world.run(3)
    assert not job.used
    assert not world.decided.view.jobs
    job.version += 1  # its leader assigns Aggregators in satellites
    job.used = (UsedAggregator("s1:7000", 1),)
    world.run(5)
    assert not world.decided.assignments
    job.wants_pool, job.used, job.version = True, (), job.version + 1
    world.run(60)
    assert job.used, "it may come again"


def test_a_leader_that_assigns_satellites_before_it_has_left_the_pool_is_told_nothing_more() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    job.wants_pool, job.obeys, job.version = False, False, job.version + 2
    job.used = (UsedAggregator("s1:7000", 1),)
    world.run(2)
    assert not world.decided.assignments
    assert not world.decided.view.jobs


def test_an_assignment_of_another_flexod_is_followed_by_a_later_version() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    world.run(60)
    job.version += 5
    version = job.version
    world.run(2)
    assert job.version > version
    assert job.used


def test_a_job_that_cannot_reach_its_aggregators_goes_back_to_its_own() -> None:
    world = PoolWorld(1)
    job = world.add(1, reserves=1)
    job.obeys = False
    happened = world.run(int(TAKEN_OVER_WITHIN_S) + 3)
    reverts = [each.text for each in happened if each.kind == "revert"]
    assert len(reverts) == 1
    assert "not taken its pool Aggregators over" in reverts[0]
    assert stages(world) == {1: "rests"}


def test_a_job_that_is_late_to_leave_is_not_evicted_while_it_trains_there() -> None:
    world = PoolWorld(2)
    job = world.add(1, reserves=1)
    world.run(60)
    job.obeys = False
    job.wants_pool = False
    evicted: list[Eviction] = []
    for _ in range(int(EVICTED_LATE_S) - 10):
        evicted += world.tick().evictions
    assert not evicted
    for _ in range(20):
        evicted += world.tick().evictions
    assert [each.job for each in evicted] == ["1"]


def test_jobs_are_profiled_one_after_the_other_if_few_aggregators_are_idle() -> None:
    world = PoolWorld(3)
    for number in range(1, 5):
        world.add(number, cpu_s=0.04)
    happened = world.run(200)
    profiled = [each.job for each in happened if "profiled on Aggregators" in each.text]
    assert profiled == [job.key for job in world.jobs.values()]
    assert set(stages(world).values()) == {"shares"}


def test_a_job_whom_a_slow_link_of_the_pool_holds_up_goes_back_to_its_own_aggregators() -> None:
    world = PoolWorld(1)
    held_up = world.add(1, link_s=0.3)
    events = world.run(120)
    assert stages(world)[1] == "rests"
    assert not held_up.used
    (told,) = [each.text for each in events if each.kind == "revert"]
    assert "0.5 s there, and 0.2 s on its own" in told
    world = PoolWorld(1)
    world.add(1, reserves=1, size=2 * MB, link_s=0.05)
    world.run(120)
    assert stages(world)[1] == "shares", (
        "a little slower is what a job without Aggregators of its own accepts"
    )


def test_a_job_is_measured_on_its_own_aggregators_first() -> None:
    world = PoolWorld(1)
    job = world.add(1)
    job.alone_s = 0.0  # nothing is measured yet
    world.master.tick(world.now, world.pool.values(), [job.client()], [job.key])
    assert (
        "before a pool Aggregator is tried"
        in world.master.tick(world.now, world.pool.values(), [job.client()], [job.key]).view.jobs[0].why
    )


def congested(world: PoolWorld, used: UsedAggregator) -> None:
    """Other programs leave half of what the jobs of an Aggregator need of its link."""
    world.others[used.name] = round(world.pool[used.name].network - world.needs(used.name) / 2)


def measuring(aggregators: int) -> PoolWorld:
    """A pool whose links are measured, and nobody else uses them."""
    world = PoolWorld(aggregators)
    world.others = dict.fromkeys(world.pool, 0)
    return world


def test_a_job_moves_away_from_an_aggregator_whose_link_other_programs_use() -> None:
    world = measuring(2)
    job = world.add(1, reserves=1)
    world.run(100)
    (before,) = job.used
    congested(world, before)
    happened = world.run(60)
    (after,) = job.used
    assert after.name != before.name
    (moved,) = [each for each in happened if each.kind == "assign"]
    assert f"moves away from {before.name}, where other programs use the network" in moved.text
    world.run(200)
    assert job.used == (after,), "it does not go back while the link is used"
    assert [each.kind for each in world.events].count("revert") == 0


def test_a_job_is_profiled_where_others_leave_most_of_the_link() -> None:
    world = measuring(2)
    world.others["c1:7000"] = world.pool["c1:7000"].network
    world.run(12)
    job = world.add(1, reserves=1)
    world.run(20)
    assert [each.name for each in job.used] == ["c2:7000"]


def test_a_job_stays_where_a_used_link_does_not_slow_it_down() -> None:
    world = measuring(2)
    job = world.add(1, reserves=1)
    world.run(100)
    before = job.used
    world.others[before[0].name] = round(world.pool[before[0].name].network / 2)
    world.run(100)
    assert job.used == before


def test_without_another_aggregator_a_job_goes_home_from_a_used_link() -> None:
    world = measuring(1)
    job = world.add(1, reserves=1)
    world.run(100)
    congested(world, job.used[0])
    happened = world.run(60)
    assert job.used == ()
    assert [each.kind for each in happened] == ["revert"]


def test_nobody_moves_to_an_aggregator_whose_link_has_no_room_either() -> None:
    world = measuring(2)
    job = world.add(1, reserves=1)
    world.run(100)
    congested(world, job.used[0])
    (other,) = world.pool.keys() - {job.used[0].name}
    world.others[other] = world.pool[other].network
    happened = world.run(60)
    assert job.used == ()
    assert [each.kind for each in happened] == ["revert"]


def test_jobs_share_no_aggregator_whose_link_has_no_room_for_both() -> None:
    world = measuring(2)
    first = world.add(1, reserves=1)
    world.run(100)
    (name,) = {used.name for used in first.used}
    world.others[name] = round(world.pool[name].network - 1.5 * world.needs(name))
    second = world.add(2, reserves=1)
    world.run(300)
    assert second.used
    assert first.used != second.used
    world.others[name] = 0
    world.run(200)
    assert first.used == second.used, "fewer Aggregators serve both, once others leave the link to them"


def test_a_link_that_is_not_measured_is_never_congested() -> None:
    link = LinkLoad(1000)
    each = PoolAggregator("c1", 7000, 1, 1000, b"")
    link.note(1.0, each)
    link.note(2.0, each)
    assert link.available is None


def test_what_others_leave_of_a_link_is_told_by_the_direction_that_they_use_more() -> None:
    link = LinkLoad(1000)
    each = PoolAggregator("c1", 7000, 1, 1000, b"", interface_received=10_000, interface_sent=20_000)
    link.note(1.0, each)
    each = replace(each, interface_received=12_000, interface_sent=24_500, moved=3_000)
    link.note(6.0, each)
    assert link.available == 800, "of 900 bytes a second that it sends, 300 are its jobs'"
    link.note(11.0, replace(each, interface_received=1))
    assert link.available is None, "the host was started again"


def test_a_job_that_fits_nowhere_any_more_is_not_moved_back() -> None:
    """Its former place is taken, its present link has shrunk, and the newest Aggregator is small."""
    first, moved, third = (
        JobDemand(name, 10**8, 2, tuple(AggregationTask(f"part {n}", size, cpu_ns) for n in range(60)))
        for name, size, cpu_ns in (
            ("1", 1_666_666, 333_333),
            ("2", 1_666_666, 333_333),
            ("3", 166_666, 1_515_151),
        )
    )
    large, small = Capacity(30 * GB, 64 * GB), Capacity(10 * MB, 64 * MB)
    pool = AggregatorPool(small, {number: Aggregator(number, large) for number in (1, 2)}, allocated=3)
    pool = pool.hosting(first, {1: first.tasks}).hosting(moved, {1: moved.tasks})
    pool = pool.hosting(third, {2: third.tasks})
    pool = pool.with_aggregators([replace(pool.aggregators[1], capacity=replace(large, network=4 * GB))])
    master = PoolWorld().master
    master._state.pool = pool
    jobs = [PooledJob(Trainer(number, iterations=60).client(), "ada", 0.0) for number in (1, 2)]
    jobs[1].before = {task.key: 2 for task in moved.tasks}
    with pytest.raises(TaskTooLarge):
        undo_for(pool, "1", (Change("2", 60, jobs[1].before),), master._limits)
    assert not master._move_back(jobs[0], jobs[1], "job 1 loses")
    assert master._state.pool is pool
