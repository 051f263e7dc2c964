"""Speeds learned from the progress that leaders report, without a profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexo.control.seen_speeds import SeenSpeeds
from flexo.model.elastic import LeaderReport
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.scalability.measured import speed_of
from flexo_protos.resources import Resources

KEY = JobKey(1)
QUIET = LeaderReport(
    KEY, 1000, Range(1, 8), Resources(1, 1), ("n1",), 2, 1, 0, scalable=True, satellites=(), progress=0.1
)


class Watch:
    """Looks at one job's reports, two seconds apart."""

    def __init__(self) -> None:
        self.speeds = SeenSpeeds()
        self.now = 0.0
        self.report = QUIET

    def train(self, seconds: int, rate: float, **changes) -> None:
        """It trains on at `rate`, as `changes` say."""
        self.report = replace(self.report, **changes)
        for _ in range(0, seconds, 2):
            self.now += 2.0
            self.report = replace(self.report, progress=self.report.progress + 2.0 * rate)
            self.look()

    def look(self, *running: JobKey) -> None:
        self.speeds.see({KEY: self.report}, running or (KEY,), self.now)

    def seen(self) -> dict[int, float]:
        return {point.workers: point.samples_per_s for point in self.speeds.points(self.now).get(KEY, ())}


def test_each_size_has_the_progress_a_second_that_was_made_with_it():
    watch = Watch()
    watch.train(100, 1e-4)
    watch.train(100, 1.6e-4, training_workers=4, generation=2)
    assert watch.seen() == {2: pytest.approx(1e-4), 4: pytest.approx(1.6e-4)}
    speed = speed_of(watch.speeds.points(watch.now)[KEY])
    assert speed is not None
    assert speed.rate(4, 1) / speed.rate(2, 1) == pytest.approx(1.6)
    assert speed.rate(8, 1) / speed.rate(2, 1) < 1.6**2


def test_nothing_is_made_of_a_size_that_was_seen_for_less_than_a_minute():
    watch = Watch()
    watch.train(50, 1e-4)
    assert watch.seen() == {}
    watch.train(20, 1e-4)
    assert watch.seen() == {2: pytest.approx(1e-4)}


def test_the_time_of_a_change_counts_for_no_size():
    watch = Watch()
    watch.train(100, 1e-4)
    watch.train(200, 0.0, changing=True)
    watch.train(100, 2e-4, changing=False, training_workers=4, generation=2)
    assert watch.seen() == {2: pytest.approx(1e-4), 4: pytest.approx(2e-4)}


def test_progress_in_steps_is_timed_from_step_to_step():
    watch = Watch()
    for _ in range(5):
        watch.train(58, 0.0)
        watch.train(2, 3e-3)
    assert watch.seen() == {2: pytest.approx(6e-3 / 60)}


def test_a_profile_under_way_and_progress_that_goes_back_count_for_nothing():
    watch = Watch()
    watch.train(100, 1e-4, pending_command="profile of 2-6 workers")
    assert watch.seen() == {}
    watch.train(70, 1e-4, pending_command="")
    watch.report = replace(watch.report, progress=0.05)  # back to the last commit
    watch.train(70, 1e-4)
    assert watch.seen() == {2: pytest.approx(1e-4)}


def test_of_what_was_seen_for_long_the_newer_half_counts_more():
    watch = Watch()
    watch.train(4000, 1e-5)
    watch.train(4000, 2e-5)
    assert 1.5e-5 < watch.seen()[2] < 2e-5


def test_a_leader_that_is_away_is_waited_for_and_a_job_that_has_ended_is_forgotten():
    watch = Watch()
    watch.train(100, 1e-4)
    watch.speeds.see({}, (KEY,), watch.now)
    assert watch.seen() == {2: pytest.approx(1e-4)}
    watch.look(JobKey(2))
    assert watch.seen() == {}


def test_a_job_that_tells_no_progress_has_no_speed():
    watch = Watch()
    watch.train(200, 0.0, progress=0.0)
    assert watch.seen() == {}
