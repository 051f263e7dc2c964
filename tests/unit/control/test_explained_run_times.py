"""`flexo why` forecasts the rest of a job's training by batch (IBM, section V-A)."""

from __future__ import annotations

from says import says

from flexo.control.explanations import explain
from flexo.control.views import JobView, View
from flexo.model.elastic import ElasticJob
from flexo.model.measured import Source
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.scalability.run_time import RunTimes
from flexo_protos.resources import Resources
from flexo_simulation.ibm_training import CATEGORIES, AllReduceTimes, all_reduce_s, analyze

FIRST = CATEGORIES[0]
SPEED = analyze(FIRST, AllReduceTimes.calibrate(all_reduce_s, range(2, 9)))
WORK = FIRST.minutes * 60 * SPEED.rate(1, 1, FIRST.largest_per_gpu)
"""The samples of the paper's job of category 1."""


def why(training: int, allowed: Range, times: RunTimes | None) -> list[str]:
    job = ElasticJob(
        JobKey(1),
        "ada",
        allowed,
        Resources(1, 1),
        ("n1",),
        1,
        training_workers=training,
        scalable=True,
        batch=FIRST.batch,
    )
    sentences = explain(1, View(jobs=(JobView(job, 1000, True, 0, by_batch=times),)))
    return [sentence for sentence in sentences if says(sentence, "by batch")]


def times(source: Source = Source.PROGRESS) -> RunTimes:
    return RunTimes(SPEED, WORK, FIRST.batch, source)


def test_each_batch_has_its_time_with_the_fewest_the_present_and_the_most_workers():
    (sentence,) = why(2, Range(1, 8), times())
    by_batch = sentence.split(": ", 1)[1].split("; ")
    assert [told.split(" ", 1)[0] for told in by_batch] == ["32", "64", "128", "256"]
    assert says(by_batch[0], "16 min with 1 worker", "13 min with 2 workers", "with 8 workers")
    assert says(by_batch[1], "10 min with 2 workers")
    assert not says(by_batch[1], "1 worker")
    assert says(by_batch[3], "with 8 workers")
    assert not says(by_batch[3], "2 workers")


def test_a_batch_too_large_for_all_that_the_job_may_have_does_not_fit():
    (sentence,) = why(1, Range(1, 4), times())
    assert says(sentence, "256 samples do not fit 4 workers")


def test_the_sentence_says_what_the_rest_goes_by():
    (progress,) = why(1, Range(1, 4), times())
    (limit,) = why(1, Range(1, 4), times(Source.TIME_LIMIT))
    assert says(progress, "progress")
    assert says(limit, "time limit")


def test_of_a_job_without_trials_nothing_is_forecast():
    assert why(1, Range(1, 4), None) == []
