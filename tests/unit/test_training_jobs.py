"""What flexod knows of the jobs that train on Slurm, and where it knows it from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flat_records import change_job, make_job

from flexo.model.elastic import ElasticJob, Grant, LeaderReport, SatelliteState
from flexo.model.measured import RunningTime, ScalingPoint, Source
from flexo.model.queue import ElasticRequest, JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo.training_jobs import History, Known, TrainingJobs
from flexo_protos.resources import Resources

NOW = 10_000.0
GPU = Resources(1, 1)


def queued(job_id: int, **changes) -> QueuedJob:
    """Ada's job on two GPUs, which has run for 1,000 s of its hour."""
    plain = make_job(
        job_id=job_id,
        owner=Principal("1000"),
        user="ada",
        partitions=("train",),
        state=JobState.RUNNING,
        wait=WaitReason.NONE,
        reason="None",
        priority=1,
        submitted_at=NOW - 1_200.0,
        started_at=NOW - 1_000.0,
        time_limit_s=3600,
        nodes=("n1",),
        num_nodes=1,
        cpus=2,
        gpus=2,
        memory_mib=0,
        elastic=ElasticRequest(Range(2, 8)),
    )
    return change_job(plain, **changes)


def waiting(job_id: int, **changes) -> QueuedJob:
    return change_job(
        queued(job_id, state=JobState.PENDING, nodes=(), started_at=NOW + 500.0, elastic=None), **changes
    )


def elastic(base: QueuedJob, **changes) -> ElasticJob:
    plain = ElasticJob(base.key, base.user, Range(2, 8), GPU, ("n1",), 2, scalable=True)
    return replace(plain, **changes)


def report(base: QueuedJob, progress: float) -> LeaderReport:
    return LeaderReport(base.key, 1000, Range(2, 8), GPU, ("n1",), 2, 1, 9, True, (), progress=progress)


def known(*times: RunningTime, scaling=None, reports=None) -> Known:
    return Known(History(times), scaling or {}, reports or {}, NOW)


def points(*speeds: float) -> tuple[ScalingPoint, ...]:
    return tuple(
        ScalingPoint(workers, speed, 1.0, 0.1, 1.0, 20, NOW) for workers, speed in enumerate(speeds, start=1)
    )


def test_the_time_limit_is_gone_by_where_nothing_else_is_known():
    base = queued(1)
    (job,) = TrainingJobs().of([base], [elastic(base)], known())
    assert (job.remaining_work, job.source) == (2_600.0 * 2, Source.TIME_LIMIT)  # worker seconds
    assert not job.preemptible


@pytest.mark.parametrize("limit_s", [None, 365 * 86_400])
def test_where_nobody_limits_a_job_its_running_time_is_not_known(limit_s):
    """Slurm gives such a job a year once it runs."""
    base = queued(1, time_limit_s=limit_s)
    (job,) = TrainingJobs().of([base], [elastic(base)], known())
    assert job.remaining_work is None


def test_like_jobs_of_the_user_tell_more_than_a_time_limit():
    base = queued(1)
    times = [RunningTime("ada", 2, seconds, NOW) for seconds in (1_500.0, 1_600.0, 9_000.0)]
    others = [RunningTime("bob", 2, 5.0, NOW), RunningTime("ada", 4, 5.0, NOW)]
    (job,) = TrainingJobs().of([base], [elastic(base)], known(*times, *others))
    assert (job.remaining_work, job.source) == (600.0 * 2, Source.HISTORY)


def test_a_jobs_own_progress_tells_most():
    base = queued(1)
    said = {base.key: report(base, 0.25)}
    (job,) = TrainingJobs().of([base], [elastic(base)], known(RunningTime("ada", 2, 9.0, NOW), reports=said))
    assert (job.remaining_work, job.source) == (3_000.0 * 2, Source.PROGRESS)


def test_work_done_by_satellites_counts_in_what_progress_has_cost():
    base = queued(1)
    grant = Grant("g", base.key, "n2", 6, "flex", NOW - 500.0, SatelliteState.TRAINING, 7)
    said = {base.key: report(base, 0.5)}
    (job,) = TrainingJobs().of([base], [elastic(base, grants=(grant,))], known(reports=said))
    assert job.remaining_work == 1_000.0 * 2 + 500.0 * 6
    assert job.service_gpu_s == 1_000.0 * 2 + 500.0 * 6


def test_a_job_that_has_outrun_most_of_its_like_goes_by_those_that_took_longer():
    base = queued(1)
    times = [RunningTime("ada", 2, seconds, NOW) for seconds in (900.0, 950.0, 980.0, 1_400.0, 2_000.0)]
    (job,) = TrainingJobs().of([base], [elastic(base)], known(*times))
    assert (job.remaining_work, job.source) == (700.0 * 2, Source.HISTORY)


@pytest.mark.parametrize(("limit_s", "left_s"), [(3600, 1_000.0), (1_300, 300.0), (1_010, 60.0)])
def test_a_job_that_has_outrun_all_of_its_like_is_taken_to_be_half_way_and_ends_at_its_limit(limit_s, left_s):
    base = queued(1, time_limit_s=limit_s)
    (job,) = TrainingJobs().of([base], [elastic(base)], known(RunningTime("ada", 2, 10.0, NOW)))
    assert (job.remaining_work, job.source) == (left_s * 2, Source.HISTORY)


def test_a_change_costs_a_little_so_that_estimates_that_waver_move_nobody():
    base = queued(1)
    (job,) = TrainingJobs().of([base], [elastic(base)], known())
    assert job.change_cost_s > 0


def test_users_demand_counts_what_is_said_of_them_and_1_where_nothing_is():
    ada, bob = queued(1), queued(2, user="bob")
    what = replace(known(), weights={"ada": 0.25})
    first, second = TrainingJobs().of([ada, bob], [elastic(ada), elastic(bob)], what)
    assert (first.weight, second.weight) == (0.25, 1.0)


def test_nothing_is_known_of_an_unlimited_job_without_a_history():
    base = queued(1, time_limit_s=None)
    (job,) = TrainingJobs().of([base], [elastic(base)], known())
    assert job.remaining_work is None


def test_a_measured_job_has_a_speed_and_its_work_is_in_the_unit_of_it():
    base = queued(1)
    (job,) = TrainingJobs().of([base], [elastic(base)], known(scaling={base.key: points(100, 190, 270)}))
    assert job.speed is not None
    assert job.speed.rate(2, 1) == pytest.approx(190)
    assert job.remaining_work == pytest.approx(2_600.0 * 190)


def test_pending_jobs_with_gpus_are_shown_in_the_order_of_submission_and_satellites_are_not():
    base = queued(5)
    early = waiting(9, submitted_at=NOW - 5_000.0, gpus=4, cpus=8)
    later = waiting(6, submitted_at=NOW - 10.0, elastic=ElasticRequest(Range(2, 4)))
    satellite = waiting(7, satellite=SatelliteTag(base.key, "g", 1))
    no_gpus, inelastic = waiting(8, gpus=0), queued(3, elastic=None)
    shown = TrainingJobs().of([base, early, later, satellite, no_gpus, inelastic], [elastic(base)], known())
    assert [job.key.job_id for job in shown] == [9, 5, 6]
    assert (shown[0].workers, shown[0].shape.gpus, shown[0].shares) == (Range(1, 1), 4, ())
    assert (shown[2].workers, shown[2].shape.gpus) == (Range(2, 4), 1)
    assert shown[0].remaining_work == 3_600.0


def test_history_is_written_when_a_job_leaves_the_queue():
    history = History(())
    base, other = queued(1), queued(2, user="bob", gpus=4)
    assert history.see([base, other], NOW) == ()
    assert history.see([other], NOW + 20.0) == ()  # it may be back
    assert history.see([other], NOW + 30.0) == (RunningTime("ada", 2, 1_020.0, NOW + 20.0),)
    assert history.see([other], NOW + 40.0) == ()
    assert history.left_s(queued(3), 20.0) == 1_000.0
    assert history.left_s(queued(3, gpus=4), 20.0) is None


def test_only_the_last_like_jobs_count():
    times = [RunningTime("ada", 2, 1.0, NOW)] * 50 + [RunningTime("ada", 2, 7.0, NOW)] * 10
    assert History(times).left_s(queued(1), 0.0) == 7.0


def test_jobs_that_wait_or_complete_or_are_satellites_leave_no_running_time():
    history = History(())
    seen = [
        waiting(1),
        queued(2, state=JobState.COMPLETING),
        queued(3, satellite=SatelliteTag(JobKey(9), "g", 1)),
    ]
    history.see(seen, NOW)
    assert history.see([], NOW + 1) == history.see([], NOW + 2) == ()


def test_a_job_that_one_look_misses_has_not_ended():
    history = History(())
    for jobs in ([queued(1)], [], [queued(1)], [queued(1)]):
        assert history.see(jobs, NOW) == ()
    assert history.see([], NOW + 5.0) == ()
    assert history.see([], NOW + 6.0) == (RunningTime("ada", 2, 1_005.0, NOW + 5.0),)


def test_a_pending_job_of_which_nothing_has_changed_is_not_made_again():
    seen, queue = TrainingJobs(), [waiting(2), waiting(3)]
    first = seen.of(queue, [], known())
    assert all(one is other for one, other in zip(first, seen.of(queue, [], known()), strict=True))


@pytest.mark.parametrize(
    "changes", [{"gpus": 4}, {"time_limit_s": 60}, {"restart_count": 1}, {"account": "physics"}]
)
def test_a_pending_job_that_has_changed_is_made_again(changes):
    seen, before, after = TrainingJobs(), waiting(2), waiting(2, **changes)
    seen.of([before], [], known())
    assert seen.of([after], [], known()) == TrainingJobs().of([after], [], known())


def test_a_pending_job_is_made_again_once_more_is_known_of_like_jobs():
    seen, job, history = TrainingJobs(), waiting(2), History([RunningTime("ada", 2, 300.0, NOW)])
    what = Known(history, {}, {}, NOW)
    (first,) = seen.of([job], [], what)
    history.see([queued(7, started_at=NOW - 900.0)], NOW)
    history.see([], NOW)
    history.see([], NOW + 1.0)
    (then,) = seen.of([job], [], what)
    assert (first.remaining_work, then.remaining_work) == (300.0, 600.0)
