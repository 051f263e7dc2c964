"""A job's output tells of workers that failed in one line for several, and how often that was lately."""

from __future__ import annotations

from says import says

from horovod_elastic.leader.failed_workers import COLLECTED_S, LATELY_S, FailureCollector
from horovod_elastic.leader.membership.commands import WorkerFailed

FAILED = WorkerFailed("t1", 1, trained=True, again=True)


def told(collector: FailureCollector, *times: float) -> list[str]:
    """The lines after a failure at each of these times."""
    lines = []
    for now in times:
        collector.add(FAILED, now)
        lines += [each.sentence(4) for each in collector.take(now + COLLECTED_S)]
    return lines


def test_failures_that_come_again_are_counted_from_the_third_on() -> None:
    first, second, third, later = told(FailureCollector(), 0.0, 20.0, 40.0, 41.0 + LATELY_S)
    assert says(first, "1 worker on t1 failed", "exit code 1", "started again")
    assert "failures in" not in first + second
    assert "3 failures in 10 minutes" in third
    assert "failures in" not in later


def test_failures_of_one_moment_are_one_line() -> None:
    collector = FailureCollector()
    collector.add(FAILED, 0.0)
    (line,) = told(collector, 1.0)
    assert "2 workers on t1 failed" in line
