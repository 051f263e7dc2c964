"""Comments, reports and job names of one user take nothing from others: only what flexod granted counts.

A user writes the comments of his own jobs, and his leader says what it likes. Ada's job grows on three nodes
of four GPUs; Bob claims.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import BOB, KEY, TIME_LIMIT_S, FakeLeader, World, slurm_job
from flat_records import change_job

from flexo.clusters.slurm.marks import satellite_tag
from flexo.control.slow_gpus import nodes_of
from flexo.model.elastic import FailureReason, GrantFailure, SatelliteReport, SatelliteState
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey, JobState, SatelliteTag

HIS = JobKey(2)
DUE = 11
"""Workers of Ada's job, where Bob's base holds one GPU of twelve and his job does not grow."""


def cluster_of_two(directory: Path, **controller: object) -> tuple[World, FakeLeader, FakeLeader]:
    """Two jobs of 1-16 workers: Ada's, and Bob's, which is not ready to grow."""
    world = World(directory, **controller)
    victim = world.job(1, "1-16", "t1")
    hostile = world.job(2, "1-16", "t1", owner=BOB, user="bob")
    hostile.scalable = False
    return world, victim, hostile


def tagged(world: World, grant_id: str, node: str, workers: int, **changes: object) -> int:
    """One of Bob's jobs, with the comment of a satellite of his own base."""
    job_id = world.cluster.submit(HIS, BOB, grant_id, node, workers, TIME_LIMIT_S)
    world.cluster.add(change_job(world.cluster.queue[job_id], **changes))
    return job_id


def test_held_jobs_with_a_satellites_comment_take_no_node(tmp_path: Path) -> None:
    world, victim, _ = cluster_of_two(tmp_path)
    for number, node in enumerate(("t1", "t2", "t3")):
        tagged(world, f"g{number}", node, 4, reason="JobHeldUser", priority=0, gpus=1, cpus=1)
    world.go(120)
    assert victim.report().training_workers == DUE


def test_a_job_with_a_satellites_comment_that_waits_is_cancelled_within_a_lease(tmp_path: Path) -> None:
    world, _, _ = cluster_of_two(tmp_path)
    held = [tagged(world, f"g{number}", "t2", 1, reason="JobHeldUser", priority=0) for number in range(20)]
    world.go(TIME_LIMIT_S)
    assert world.cluster.queue.keys().isdisjoint(held)
    assert set(world.cluster.cancelled) == set(held)


def test_comments_write_nothing_into_the_history_of_the_job_that_they_name(tmp_path: Path) -> None:
    """Neither of one that has ended, nor of one that never was."""
    world, _, _ = cluster_of_two(tmp_path)
    world.go(30)
    for job_id in [job.job_id for job in world.cluster.queue.values() if job.key == KEY or job.satellite]:
        del world.cluster.queue[job_id]
    del world.leaders.attached[KEY]
    world.go(30)
    before = world.event_store.events(KEY.job_id, 100)
    assert before[0].kind == "end"
    cancelled = len(world.cluster.cancelled)
    for number, base in enumerate([KEY, *(JobKey(50_000 + number) for number in range(20))]):
        job_id = world.cluster.submit(base, BOB, f"g{number}", "t2", 1, TIME_LIMIT_S)
        world.cluster.add(replace(world.cluster.queue[job_id], reason="JobHeldUser", priority=0))
    world.go(120)
    assert len(world.cluster.cancelled) == cancelled + 21
    assert world.event_store.events(KEY.job_id, 100) == before
    assert not any(world.event_store.events(50_000 + number, 10) for number in range(20))
    assert world.event_store.unended(0.0) == ()
    last = world.cluster.cancelled[-1]
    assert world.kinds(last) == ["cancel"]
    world.event_store.close()
    world.restart()
    world.go(10)
    assert world.event_store.events(KEY.job_id, 100) == before
    assert "end" not in world.kinds(last)


def test_thousands_of_them_cost_a_few_commands_a_cycle(tmp_path: Path) -> None:
    world, victim, _ = cluster_of_two(tmp_path)
    for number in range(1000):
        base = JobKey(2) if number % 2 else JobKey(5000)
        job_id = tagged(world, f"g{number}", "t2", 1, reason="JobHeldUser", priority=0)
        tag = SatelliteTag(base, f"g{number}", 1)
        world.cluster.add(replace(world.cluster.queue[job_id], satellite=tag))
    for _ in range(30):
        before = len(world.cluster.cancelled)
        world.go(2)
        assert len(world.cluster.cancelled) - before <= 3
    assert victim.report().training_workers == DUE
    assert len(world.event_store.events(None, 1000)) < 300


def test_a_leader_s_word_alone_is_no_grant(tmp_path: Path) -> None:
    world, victim, hostile = cluster_of_two(tmp_path)
    hostile.submits = False
    for number in range(30):
        hostile.says = {
            "satellites": tuple(
                SatelliteReport(0, f"g{number}-{node}", node, 2, SatelliteState.PENDING)
                for node in ("t1", "t2", "t3")
            )
        }
        world.go(40)
    assert victim.report().training_workers == DUE
    assert all(told == () for told in hostile.told)


def test_jobs_with_a_satellites_comment_take_no_place_of_backfill(tmp_path: Path) -> None:
    world = World(tmp_path, start_within_s=30)
    world.cluster.starts_in_a_turn = 5
    for number in range(20):
        tagged(world, f"g{number}", "t3", 1, reason="JobHeldUser", priority=0, gpus=0, cpus=1)
    world.cluster.base(2, owner=BOB, user="bob")
    victim = world.job(1, "1-16", "t1")
    world.go(60)
    assert victim.report().training_workers == DUE


def test_jobs_with_a_satellites_comment_take_no_place_of_max_satellites(tmp_path: Path) -> None:
    world, victim, _ = cluster_of_two(tmp_path, max_satellites=4)
    for number in range(4):
        tagged(world, f"g{number}", "t3", 1, reason="JobHeldUser", priority=0, gpus=0, cpus=1)
    world.go(120)
    assert victim.report().training_workers == DUE


@pytest.mark.parametrize("workers", [1, 4])
def test_a_running_job_that_flexod_never_granted_is_not_extended(tmp_path: Path, workers: int) -> None:
    world, victim, _ = cluster_of_two(tmp_path)
    job_id = tagged(world, "g1", "t3", workers, gpus=4, cpus=4)
    world.go(TIME_LIMIT_S - 20)
    assert victim.report().training_workers == DUE - 4, "what he really holds is his"
    world.go(40)
    assert job_id not in world.cluster.queue
    assert all(extended != job_id for extended, _ in world.cluster.extended)
    world.go(60)
    assert victim.report().training_workers == DUE


def granted(directory: Path) -> tuple[World, FakeLeader, str, int]:
    """Bob's job has grown alone: its satellite."""
    world = World(directory)
    hostile = world.job(2, "1-4", "t1", owner=BOB, user="bob")
    world.go(20)
    ((grant_id, job_id),) = hostile.own.items()
    return world, hostile, grant_id, job_id


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 4, "cpus": 4},
        {"cpus": 8},
        {"nodes": ("t3",)},
        {"num_nodes": 2, "nodes": ("t2", "t3")},
        {"partitions": ("train",)},
        {"restart_count": 1},
        {"time_limit_s": None},
        {"time_limit_s": 10 * 86400},
    ],
    ids=lambda change: "+".join(change),
)
def test_a_satellite_that_is_not_what_was_granted_does_not_count(
    tmp_path: Path, change: dict[str, object]
) -> None:
    world, hostile, _, job_id = granted(tmp_path)
    hostile.submits = False
    world.cluster.add(change_job(world.cluster.queue[job_id], **change))
    world.go(2)
    assert not [grant for view in world.controller.jobs() for grant in view.job.grants]
    extended = list(world.cluster.extended)
    world.go(TIME_LIMIT_S - 40)
    assert world.cluster.extended == extended


def test_one_slurm_job_counts_for_a_grant(tmp_path: Path) -> None:
    world, hostile, grant_id, job_id = granted(tmp_path)
    second = world.cluster.submit(HIS, BOB, grant_id, "t2", 3, TIME_LIMIT_S)
    world.cluster.sizes["t2"] = 8
    world.go(TIME_LIMIT_S + 60)
    assert second not in world.cluster.queue
    assert {extended for extended, _ in world.cluster.extended} == {job_id}
    # nor does it after the first has ended, nor in a later life of flexod
    hostile.submits = False
    del world.cluster.queue[hostile.own.pop(grant_id)]
    world.go(10)
    third = world.cluster.submit(HIS, BOB, grant_id, "t2", 3, TIME_LIMIT_S)
    world.go(10)
    world.restart()
    world.go(20)
    assert third not in {
        grant.satellite_job_id for view in world.controller.jobs() for grant in view.job.grants
    }


def test_a_grant_that_was_withdrawn_is_not_good_again(tmp_path: Path) -> None:
    world, hostile, grant_id, job_id = granted(tmp_path)
    report = hostile.report()
    world.controller.scale(HIS, 1)
    world.go(10)
    assert job_id not in world.cluster.queue
    world.controller.scale(HIS, None)
    hostile.submits, hostile.says = False, {"satellites": report.satellites}
    again = world.cluster.submit(HIS, BOB, grant_id, "t2", 3, TIME_LIMIT_S)
    world.restart()
    world.go(TIME_LIMIT_S + 20)
    assert all(extended != again for extended, _ in world.cluster.extended)


def test_a_satellite_that_waits_counts_for_less_than_a_lease(tmp_path: Path) -> None:
    world, _, hostile = cluster_of_two(tmp_path)
    world.cluster.starts = False
    hostile.scalable = True
    world.go(10)
    held = dict(hostile.own)
    assert held
    hostile.hear = lambda orders: None  # type: ignore[method-assign]  # he cancels nothing
    for job_id in held.values():
        world.cluster.add(replace(world.cluster.queue[job_id], reason="JobHeldUser", priority=0))
    world.cluster.starts = True
    world.go(TIME_LIMIT_S)
    grants = [grant for view in world.controller.jobs() if view.job.key == HIS for grant in view.job.grants]
    assert not {grant.satellite_job_id for grant in grants} & set(held.values())


def test_a_leader_that_never_submits_is_granted_ever_less_often(tmp_path: Path) -> None:
    world, victim, hostile = cluster_of_two(tmp_path)
    world.cluster.sizes = dict.fromkeys([f"t{number}" for number in range(1, 40)], 4)
    victim.scalable = False
    hostile.scalable, hostile.submits = True, False
    world.go(1800)
    assert world.kinds(2).count("grow") < 30  # 76 if each node rested by itself


@pytest.mark.thorough
@pytest.mark.parametrize(
    "reason", [reason for reason in FailureReason if reason is not FailureReason.REFUSED]
)
def test_whatever_a_leader_says_of_grants_of_which_no_satellite_ran_its_job_rests_ever_longer(
    tmp_path: Path, reason: FailureReason
) -> None:
    world, victim, hostile = cluster_of_two(tmp_path)
    world.cluster.sizes = dict.fromkeys([f"t{number}" for number in range(1, 40)], 4)
    victim.scalable = False
    hostile.scalable, hostile.submits = True, False
    given_back: set[str] = set()
    for _ in range(90):
        world.go(20)
        unused = {offer.grant_id for offer in hostile.told[-1]} - given_back
        given_back |= unused
        world.leaders.failures += [GrantFailure(HIS, each, reason, "he says") for each in unused]
    assert world.kinds(2).count("grow") < 30


def test_one_satellite_that_trains_ends_no_rest_while_other_grants_are_not_used(tmp_path: Path) -> None:
    """Nor does a leader that says again and again that it begins to train."""
    world, victim, hostile = cluster_of_two(tmp_path)
    world.cluster.sizes = dict.fromkeys([f"t{number}" for number in range(1, 40)], 1) | {"t1": 4}
    victim.scalable = False
    hostile.scalable = True
    world.go(20)
    hostile.submits = False
    for grant_id in list(hostile.own)[1:]:
        world.cluster.queue.pop(hostile.own.pop(grant_id))
    grown = world.kinds(2).count("grow")
    (trains,) = hostile.report().satellites
    for step in range(900):
        state = SatelliteState.TRAINING if step % 2 else SatelliteState.WARMING
        hostile.says = {"satellites": (replace(trains, state=state),)}
        world.go()
    assert world.kinds(2).count("grow") - grown < 100  # about 400 if each satellite that trains ended it


def test_what_a_leader_says_that_a_worker_takes_is_bounded_by_its_base(tmp_path: Path) -> None:
    world, _, hostile = cluster_of_two(tmp_path)
    hostile.scalable, hostile.submits = True, False
    hostile.shape = replace(hostile.shape, gpus=4, cpus=8, memory_mib=8000)
    world.go(10)
    (theirs,) = [view.job for view in world.controller.jobs() if view.job.key == HIS]
    assert (theirs.shape.gpus, theirs.shape.cpus) == (1, 1)


def test_a_comment_with_numbers_that_slurm_has_not_is_no_tag_and_not_written_down(tmp_path: Path) -> None:
    assert satellite_tag("flexo-satellite base=9999999999 restart=0 grant=g1 workers=1") is None
    assert satellite_tag("flexo-satellite base=4294967296 restart=0 grant=g1 workers=1") is None
    assert satellite_tag("flexo-satellite base=0 restart=0 grant=g1 workers=1") is None
    assert satellite_tag("flexo-satellite base=4294967295 restart=0 grant=g1 workers=1") is not None


def test_a_job_that_only_says_to_be_a_satellite_is_an_ordinary_one_in_status_and_why(tmp_path: Path) -> None:
    world, _, _ = cluster_of_two(tmp_path)
    job_id = tagged(world, "g1", "t3", 4)
    world.go(10)
    assert world.controller.status().unknown_satellites == 1
    (told,) = world.controller.explain(job_id)
    assert "bob" in told
    assert "adopt" not in world.kinds(2)
    assert all(job.satellite is None for job in world.controller.observation.jobs if job.job_id == job_id)


def test_somebody_elses_job_is_never_cancelled_for_a_comment(tmp_path: Path) -> None:
    world, victim, _ = cluster_of_two(tmp_path)
    world.go(60)
    (first, *_) = victim.own.items()
    mine = slurm_job(500, BOB, partitions=("flex",), nodes=("t3",), gpus=0, time_limit_s=9999)
    # Bob copies the comment of Ada's satellite, and names bases that are not there
    world.cluster.add(replace(mine, satellite=SatelliteTag(KEY, first[0], 1)))
    world.cluster.add(replace(mine, job_id=501, satellite=SatelliteTag(JobKey(77), first[0], 1)))
    world.go(TIME_LIMIT_S + 60)
    assert set(world.cluster.cancelled) <= {500, 501}
    assert victim.report().training_workers == DUE
    assert all(job.state is JobState.RUNNING for job in world.cluster.queue.values())


def test_one_users_word_on_slow_gpus_keeps_others_off_no_node(tmp_path: Path) -> None:
    world, victim, hostile = cluster_of_two(tmp_path)
    hostile.scalable = True
    victim.scalable = False
    world.go(60)
    theirs = {node for view in world.controller.jobs() if view.job.key == HIS for node in nodes_of(view.job)}
    assert len(theirs) == 3
    world.leaders.slow.extend(SlowGpuReport(HIS, node, (0,), 9.0) for node in theirs)
    world.go(4)
    world.controller.scale(HIS, 1)
    hostile.scalable, victim.scalable = False, True
    world.go(60)
    assert victim.report().training_workers == DUE
    # the word of a second user counts for everybody
    world.controller.scale(KEY, 1)
    world.go(20)
    world.controller.scale(KEY, None)
    world.leaders.slow.append(SlowGpuReport(KEY, "t1", (0,), 9.0))
    world.controller.cycle()
    slow = [(gpu.node, gpu.user) for gpu in world.controller.status().slow_gpus]
    assert slow == [("t1", "ada"), ("t1", "bob"), ("t2", "bob"), ("t3", "bob")]


def test_satellites_that_a_user_gives_back_again_and_again_are_no_sign_that_gpus_are_wanted(
    tmp_path: Path,
) -> None:
    world, victim, hostile = cluster_of_two(tmp_path)
    victim.scalable, hostile.scalable = False, True
    world.go(4)
    for workers in (None, 1) * 8:
        world.controller.scale(HIS, workers)
        world.go(14)
    world.controller.scale(HIS, None)
    for _ in range(8):
        world.go(80)
        for grant_id in list(hostile.own):
            world.leaders.failures.append(GrantFailure(HIS, grant_id, FailureReason.PREEMPTED, "he says"))
    assert world.kinds(2).count("shrink") >= 5
    assert world.kinds(2).count("failure") >= 5
    assert math.isinf(world.controller._residency.likely_s(world.cluster.now))
