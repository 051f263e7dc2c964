"""The pure parts of make bench-loaning: jobs like those that are printed, choices on equal states, goals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from says import says

from flexo.loaning.reclaim import BaseOn, Server
from flexo_bench.loaning import cases, choices, jobs, published, report
from flexo_bench.loaning.cases import Case, Measured
from flexo_simulation.loan_story import LoanFigures

pytestmark = pytest.mark.thorough

NOBODY = LoanFigures(
    0, 0, 0, 0, 0, math.nan, 0, 0, 0, 0.0, math.nan, 0.0,
    0.0, math.nan, 0.7, 0.4, 0.5, 0.0, math.nan, math.nan,
)  # fmt: skip


def measured(case: Case, queue_s: float, jct_s: float, preempted: int = 0) -> Measured:
    loans = LoanFigures(
        9, 5, 8, 1, 0, 240.0, preempted, 3, 100, preempted / 1000, preempted / 100, preempted / 1000,
        50.0, 0.6, 0.7, 0.4, 0.5, 0.0, 10.0, 100.0,
    ) if case.chooser else NOBODY  # fmt: skip
    return Measured(case, (queue_s, 1.0, 9.0), (jct_s, 2.0, 99.0), preempted, 7, loans, 1.0)


def test_jobs_have_the_printed_running_times_sizes_and_rate():
    drawn = jobs.make(1, scale=0.25).jobs
    gpus = np.array([job.requested_workers for job in drawn])
    seconds = np.array([job.training.begin().remaining_work() for job in drawn]) / gpus
    assert len(drawn) == round(published.JOBS / 4)
    assert float((gpus * seconds).mean()) == pytest.approx(published.GPU_S_A_JOB)
    assert float(np.median(seconds)) == pytest.approx(736, rel=0.15)
    assert float(seconds.mean()) == pytest.approx(13_538, rel=0.1)
    assert float(np.percentile(seconds, 95)) == pytest.approx(74_576, rel=0.1)
    large = gpus >= min(jobs.LARGE)
    assert float((gpus * seconds)[large].sum() / (gpus * seconds).sum()) == pytest.approx(0.36, abs=0.05)
    assert 0 <= drawn[0].submitted_at < drawn[-1].submitted_at <= published.DAYS * jobs.DAY_S


def test_shares_of_jobs_are_as_asked_and_the_same_jobs_for_equal_seeds():
    raw = jobs.make(2, scale=0.1)
    some = jobs.adapted(raw, 2, elastic=1.0, of_large=True, fungible=0.21, heterogeneous=0.1)
    again = jobs.adapted(raw, 2, elastic=1.0, of_large=True, fungible=0.21, heterogeneous=0.1)
    assert some == again
    count = len(some.jobs)
    elastic = [job for job in some.jobs if job.workers.min < job.workers.max]
    assert len(elastic) / count == pytest.approx(0.05, abs=0.01)
    assert all(job.requested_workers >= 16 for job in elastic)
    assert sum(job.fungible for job in some.jobs) / count == pytest.approx(0.21, abs=0.02)
    assert sum(job.heterogeneous for job in some.jobs) / count == pytest.approx(0.1, abs=0.02)


def test_more_jobs_come_by_day_than_by_night(monkeypatch):
    monkeypatch.setattr(jobs, "SPELLS", 0.0)
    hours = np.array([job.submitted_at / 3600 % 24 for job in jobs.make(3, scale=0.25).jobs])
    by_day = ((hours > 8) & (hours < 20)).mean()
    assert by_day == pytest.approx(0.5 + jobs.SWING / math.pi, abs=0.02)


def test_a_case_is_simulated_with_and_without_loaning(monkeypatch):
    monkeypatch.setattr(published, "DAYS", 0.5)
    monkeypatch.setattr(published, "JOBS", 1680)
    without = cases.run(Case(1, 0.02, "basic"))
    having = cases.run(Case(1, 0.02, "basic", "heuristic"))
    assert without.loans.loans == 0
    assert {moment.away for moment in without.course} == {0}
    assert having.loans.loans > 0
    assert having.course
    assert having.loans.deadlines_missed == 0


def test_choices_are_compared_on_the_states_that_were_asked_about():
    servers = (
        Server("s1", (BaseOn("a", 2),)),
        Server("s2", (BaseOn("a", 2),)),
        Server("s3", (BaseOn("b", 1), BaseOn("c", 1))),
    )
    recorder = choices.Recorder()
    assert recorder(servers, 2) == ("s1", "s2")
    found = choices.counted("as asked", Case(1, 1.0, "basic"), [*recorder.states, (servers, 3), (servers, 0)])
    assert found.states == 1
    assert found.preempted["heuristic"] == found.preempted["exact"] == 1
    assert 1 < found.preempted["random"] < 3
    assert found.worst == 0


def test_goals_are_judged_by_sums_and_by_seeds():
    seeds = (1, 2)
    found = report.Found(
        1.0,
        (
            *(measured(Case(seed, 1.0, "basic"), 100.0, 1000.0) for seed in seeds),
            measured(Case(1, 1.0, "basic", "heuristic"), 50.0, 900.0, 10),
            measured(Case(2, 1.0, "basic", "heuristic"), 60.0, 1001.0, 12),
            *(measured(Case(seed, 1.0, "basic", "exact"), 50.0, 900.0, 10) for seed in seeds),
            *(measured(Case(seed, 1.0, "basic", "random"), 50.0, 900.0, 30) for seed in seeds),
            *(measured(Case(seed, 1.0, "basic", "smallest first"), 50.0, 900.0, 11) for seed in seeds),
        ),
        (),
    )

    def judged(*facts: str) -> report.Verdict:
        (verdict,) = [each for each in report.verdicts(found) if says(each.goal, *facts)]
        return verdict

    assert judged("heuristic", "10%", "exact").met
    assert judged("heuristic", "fewer", "random").met
    assert not judged("heuristic", "fewer", "smallest first").met
    better = judged("queueing", "completion")
    assert not better.met
    assert says(better.figures, "queueing on 2", "completion on 1 of 2 seeds")


def test_where_it_was_interrupted_only_whole_seeds_count():
    asked = [Case(seed, 0.1, mode) for seed in (1, 2) for mode in ("basic", "ideal")]
    done = [measured(case, 10.0, 20.0) for case in asked[:3]]
    compared = [choices.Compared(each.case, "as asked", 1, 0.0, {}) for each in done]
    found = report.of_whole_seeds(0.1, asked, done, compared)
    assert [each.case for each in found.measured] == asked[:2]
    assert [each.case for each in found.compared] == asked[:2]
    assert report.of_whole_seeds(0.1, asked, done[1:2], ()).measured == ()


def test_what_is_written_is_json_without_nan():
    found = report.Found(0.5, (measured(Case(1, 0.5, "basic"), 1.0, 2.0),), ())
    text = json.dumps(report.as_json(found), allow_nan=False)
    assert json.loads(text)["cases"][0]["queue_s"]["mean"] == 1.0


def test_use_of_both_clusters_counts_every_t4():
    case = measured(Case(1, 1.0, "baseline"), 1.0, 2.0)
    t4 = 443 * 12
    training = published.TRAINING_GPUS
    assert report.overall_use(case) == pytest.approx((0.7 * training + 0.4 * t4) / (training + t4))
