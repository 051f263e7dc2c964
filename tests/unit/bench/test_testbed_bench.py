"""The pure parts of make bench-testbed: jobs and demand by a seed, figures of loans, the comparison."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from flexo.scalability.table import TableSpeed
from flexo_bench.fidelity import calibration
from flexo_bench.fidelity.running import Life, configured
from flexo_bench.fidelity.workload import Job, step_s
from flexo_bench.testbed import printed, report, running, workload
from flexo_bench.testbed.figures import Course, Loans, Pair
from flexo_bench.testbed.simulating import SCHEMES, simulated_course, variants
from flexo_demos.elastic.queue import QueuedJob
from flexo_demos.loans.book import LoanHistory, Returned
from flexo_demos.loans.looks import Look
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime

pytestmark = pytest.mark.thorough

SECONDS = 720.0
TIMES = SlurmTimes(
    submit_s=0.5, free_s=1.0, backfill_s=3.0, boot=StartTime(5.0), end_s=1.0, satellite_s=1.0,
    warm=StartTime(6.0, 0.5), leave_s=2.0, min_resize_interval_s=5.0,
)  # fmt: skip
MEASURED = calibration.Calibration(
    TIMES, TableSpeed.of({workers: workers / step_s(workers) for workers in (1, 2, 4)}),
    calibration.Samples(),
)  # fmt: skip


def gpu_s(job: Job) -> float:
    """Work of a job that is not elastic."""
    return job.seconds * job.least * job.gpus_each


def life(queue_s: float, jct_s: float, preemptions: int = 0) -> Life:
    return Life(Job(1, 0.0, 1, 1, 0, 5.0), 0.0, queue_s, jct_s, ((queue_s, 1),), preemptions)


def pair(lab: Course, simulator: Course) -> Pair:
    return Pair("basic", 1, SECONDS, lab, simulator, MEASURED)


def test_a_seed_draws_the_same_jobs_and_another_one_others() -> None:
    assert workload.draw(1, SECONDS) == workload.draw(1, SECONDS)
    assert workload.draw(1, SECONDS) != workload.draw(2, SECONDS)


def test_jobs_are_as_many_and_of_such_kinds_as_printed() -> None:
    jobs = workload.draw(3, printed.SECONDS)
    assert len(jobs) == 180
    assert sum(job.elastic for job in jobs) == 10
    assert sum(job.fungible for job in jobs) == round(0.21 * 180)
    assert [job.number for job in jobs] == list(range(1, 181))
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert jobs[0].at_s == 0.0
    assert jobs[-1].at_s <= printed.SECONDS


def test_running_times_have_the_mean_of_the_printed_baseline() -> None:
    jobs = workload.rigid(workload.draw(3, printed.SECONDS))
    mean_s = sum(job.seconds for job in jobs) / len(jobs)
    assert mean_s == pytest.approx(4078 - 1532, rel=0.005)


def test_the_baseline_has_the_same_work_and_nothing_elastic_or_fungible() -> None:
    drawn = workload.draw(3, printed.SECONDS)
    for job, same in zip(drawn, workload.rigid(drawn), strict=True):
        assert not same.elastic
        assert not same.fungible
        if job.elastic:
            assert same.least == 2 == job.least * 2
            assert same.seconds == pytest.approx(job.epochs * 10 * step_s(2) / 2, abs=1.0)
        else:
            assert gpu_s(same) == gpu_s(job)


def test_a_fungible_job_may_run_on_slower_gpus_within_its_limit() -> None:
    for job in workload.draw(3, SECONDS):
        if job.fungible and not job.elastic:
            assert 60 * job.limit_minutes > 3 * job.seconds


def test_the_demand_is_a_day_in_whole_servers_that_changes_at_each_step() -> None:
    needs = workload.needs(1, SECONDS)
    assert needs[0].at == 0.0
    assert all(a.servers != b.servers and a.at < b.at for a, b in pairwise(needs))
    within = [need.servers for need in needs if need.at < SECONDS]
    assert 0 <= min(within) < max(within) <= workload.SERVERS
    assert needs == workload.needs(1, SECONDS)


def test_keys_of_a_section_are_replaced_there_and_nowhere_else() -> None:
    toml = "[controller]\ninterval_s = 1\n\n[loaning]\nenabled = true\ninterval_s = 2.0\n"
    changed = configured(toml, "loaning", {"interval_s": "5.0"})
    assert "[controller]\ninterval_s = 1\n" in changed
    assert changed.partition("[loaning]")[2].count("interval_s") == 1
    assert "interval_s = 5.0" in changed.partition("[loaning]")[2]


def look(at: float, lent: set[str], jobs: tuple[QueuedJob, ...]) -> Look:
    return Look(at, frozenset(lent), 0, jobs, frozenset({9}), 0)


def test_use_counts_servers_that_are_lent_or_not_yet_left_until_the_last_submission() -> None:
    base = QueuedJob(1, "RUNNING", "None", (("i1", 2),), False)
    inference = QueuedJob(9, "RUNNING", "None", (("i3", 4),), False)
    looks = [
        look(100.0, {"i1", "i2"}, (base, inference)),  # 2 of 8 GPUs for 10 s
        look(110.0, set(), (base, inference)),  # closed, but not left: 2 of 4 GPUs for 5 s, then it is over
        look(130.0, set(), (inference,)),
    ]
    returned = tuple(
        Returned("i1", 90.0, called_back_at, 149.0, 120.0, "", 0) for called_back_at in (109.0, 109.0, None)
    )
    history = LoanHistory(frozenset(), frozenset(), returned)
    lives = (Life(Job(1, 0.0, 2, 2, 0, 5.0), 15.0, 16.0, 30.0, ((16.0, 2),)),)
    found = running.loans_of(looks, history, lives, zero=100.0)
    assert found.use == pytest.approx((2 * 10 + 2 * 5) / (4 * (2 * 10 + 5)))
    assert (found.loans, found.reclaims, found.servers_reclaimed, found.jobs_on_loan) == (3, 1, 2, 1)
    assert found.away_share == pytest.approx((2 * 10 + 5) / (8 * 15))


def test_a_difference_of_more_than_a_tenth_in_either_mean_is_missed() -> None:
    lab = Course((life(10.0, 20.0), life(30.0, 60.0)), None)
    near = Course((life(11.0, 21.0), life(31.0, 61.0)), None)
    late = Course((life(15.0, 21.0), life(31.0, 61.0)), None)
    assert pair(lab, near).queue == pytest.approx(0.05)
    assert pair(lab, near).within
    assert pair(lab, late).queue == pytest.approx(0.15)
    assert not pair(lab, late).within
    assert not pair(late, lab).within


def test_preemptions_count_each_time_over_all_jobs() -> None:
    assert Course((life(1.0, 2.0, preemptions=2), life(1.0, 2.0)), None).preempted == 1.0


def test_the_report_says_what_was_missed_and_can_be_read_again(tmp_path: Path) -> None:
    jobs = workload.draw(5, 60.0, 12)
    scheme, needs = SCHEMES["basic"], workload.needs(5, 60.0)
    ours = simulated_course(jobs, needs, scheme, MEASURED)
    slow = tuple(Life(x.job, x.submitted_at, x.began_at, 3 * x.ended_at, x.sizes) for x in ours.lives)
    lab = Course(slow, Loans(0.5, 3, 2, 2, 4, 0.4), 2.0, 3.0)
    found = report.Found("make bench-testbed", {}, (Pair("basic", 5, 60.0, lab, ours, MEASURED),))
    assert any("MISSED 10%" in line for line in report.table(found))
    path = tmp_path / "testbed.json"
    report.write(found, path)
    assert json.loads(path.read_text())["runs"][0]["within"] is False
    (again,) = report.simulated_anew(path)
    assert again.lab == lab
    assert again.simulator == ours
    report.draw(found, tmp_path / "testbed.png")
    assert (tmp_path / "testbed.png").stat().st_size > 0


def test_other_jobs_are_simulated_for_each_seed() -> None:
    found = {each.what: each for each in variants((1, 2), 60.0, 10, MEASURED)}
    assert all(len(each.uses) == len(each.preempted) == 2 for each in found.values())
    usual, fungible = found["as in the lab"].courses[0], found["all jobs fungible"].courses[0]
    assert not all(each.job.fungible for each in usual.lives)
    assert all(each.job.fungible for each in fungible.lives)
    longer = found["all jobs twice as long"].courses[0]
    for one, two in zip(usual.lives, longer.lives, strict=True):
        assert (two.job.seconds, two.job.epochs) == (2 * one.job.seconds, 2 * one.job.epochs)


def test_jobs_on_loan_are_slower_and_begin_anew_when_their_server_is_wanted() -> None:
    jobs = workload.draw(1, SECONDS)
    course = simulated_course(jobs, workload.needs(1, SECONDS), SCHEMES["basic"], MEASURED)
    assert course.loans is not None
    assert course.loans.jobs_on_loan > 0
    assert course.loans.reclaims > 0
    assert course.preempted > 0
    preempted = [each for each in course.lives if each.preemptions]
    assert all(each.job.fungible for each in preempted)
    assert all(not each.resizes for each in course.lives if not each.job.elastic)
    slow = [
        each for each in course.lives
        if each.job.fungible and not each.job.elastic and not each.preemptions
        and each.ended_at - each.began_at > 2.9 * each.job.seconds
    ]  # fmt: skip
    assert slow
