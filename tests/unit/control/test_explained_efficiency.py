"""`flexo why` says how well a job's GPUs are used, by its own profile (Amoeba, section 3.1)."""

from __future__ import annotations

from says import says

from flexo.control.explanations import explain
from flexo.control.views import JobView, View
from flexo.model.elastic import ElasticJob
from flexo.model.measured import ScalingPoint
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo_protos.resources import Resources


def why(training: int, most: int = 8, **rates: float) -> list[str]:
    """Of a job of 1 to `most` workers that was profiled with these: `w2=100.0` is two workers."""
    points = tuple(ScalingPoint(int(name[1:]), rate, 0.1, 0.0, 1.0, 20, 0.0) for name, rate in rates.items())
    job = ElasticJob(
        JobKey(1),
        "ada",
        Range(1, most),
        Resources(1, 1),
        ("n1",),
        1,
        training_workers=training,
        scalable=True,
    )
    sentences = explain(1, View(jobs=(JobView(job, 1000, True, 0, points),)))
    return [sentence for sentence in sentences if says(sentence, "its efficiency")]


def test_the_efficiency_of_what_it_has_and_of_the_most_it_may_have():
    (sentence,) = why(4, w1=40.0, w2=80.0, w4=128.0, w8=160.0)
    assert says(sentence, "0.80 with 4 workers", "0.50 with 8 workers")
    assert not says(sentence, "estimated")


def test_sizes_between_and_beyond_those_measured_are_estimates_and_said_to_be():
    (sentence,) = why(3, w1=40.0, w4=128.0)
    assert says(sentence, "0.82 with 3 workers", "with 8 workers")
    assert sentence.count("estimated") == 2


def test_with_all_that_it_may_have_one_figure_is_enough():
    (sentence,) = why(8, w1=40.0, w8=160.0)
    assert says(sentence, "0.50 with 8 workers")
    assert sentence.count("workers") == 1
    assert not says(sentence, "estimated")


def test_a_job_that_may_have_a_billion_workers_costs_nothing():
    (sentence,) = why(4, most=999_999_999, w1=40.0, w4=128.0)
    assert says(sentence, "0.80 with 4 workers")


def test_without_a_profile_nothing_is_said():
    assert why(4) == []
