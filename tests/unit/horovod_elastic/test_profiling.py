"""A profile walks a range of sizes and says how fast each trains."""

from __future__ import annotations

import pytest
from says import says

from horovod_elastic.leader.profiling import (
    MOST_SIZES,
    SIZE_WITHIN_S,
    STEP_WITHIN_S,
    WARM_UP_BATCHES,
    Profile,
    ProfilePoint,
    allowed,
    sizes_between,
    with_efficiency,
)


class Job:
    """Workers that train at whatever size the profile says, and report one mini-batch at a time."""

    def __init__(self, low: int, high: int, there: int, batches: int = 10, samples: int = 32) -> None:
        self.now, self.generation, self.boundary, self.samples = 0.0, 1, 500, samples
        self.profile = Profile(low, high, there, self.now, batches)
        self.workers = [f"w{rank}" for rank in range(there)]
        self.profile.trains(1, self.workers, self.now, already=True)
        self.sizes: list[int] = []

    def step(self) -> None:
        self.now += 0.1
        self.boundary += 1
        size = len(self.workers)
        wall = 0.1 + 0.01 * size
        cold = 5.0 if self.boundary <= WARM_UP_BATCHES else 0.0
        for worker in self.workers:
            self.profile.steps(
                worker, self.generation, self.boundary, [0.1 + cold], [wall + cold], self.samples, self.now
            )

    def resize(self) -> None:
        limit = self.profile.limit
        if limit is not None and limit != len(self.workers):
            self.workers = [f"w{rank}" for rank in range(limit)]
            self.generation, self.boundary = self.generation + 1, 0
            self.profile.trains(self.generation, self.workers, self.now)

    def run(self) -> tuple[ProfilePoint, ...]:
        while (limit := self.profile.limit) is not None:
            if not self.sizes or self.sizes[-1] != limit:
                self.sizes.append(limit)
            self.resize()
            self.step()
            assert self.now < 1000
        return self.profile.points


def test_each_size_is_measured_once_from_the_largest_down() -> None:
    job = Job(1, 4, there=4)
    points = job.run()
    assert job.sizes == [4, 3, 2, 1]
    assert [point.workers for point in points] == [1, 2, 3, 4]
    for point in points:
        assert point.step_s == pytest.approx(0.1 + 0.01 * point.workers)
        assert point.sync_s == pytest.approx(0.01 * point.workers)
        assert point.samples_per_s == pytest.approx(32 * point.workers / point.step_s)
        assert point.batches == 10


def test_efficiency_is_throughput_a_worker_to_the_best() -> None:
    points = Job(1, 4, there=4).run()
    assert points[0].efficiency == 1.0
    assert points[3].efficiency == pytest.approx(0.11 / 0.14)


def test_the_best_size_may_be_a_large_one() -> None:
    """Amoeba, figure 1: where a large batch does not fit few GPUs, p* is not the smallest size."""
    one, four = ProfilePoint(1, 40.0, 1.0, 0.0, 5), ProfilePoint(4, 400.0, 0.5, 0.1, 5)
    assert [point.efficiency for point in with_efficiency([four, one])] == [pytest.approx(0.4), 1.0]


def test_where_samples_are_not_known_steps_are_counted() -> None:
    points = Job(1, 2, there=2, samples=0).run()
    assert [point.samples_per_s for point in points] == [0.0, 0.0]
    assert points[1].efficiency == pytest.approx(0.11 / 0.12)


def test_sizes_beyond_the_workers_there_are_are_left_out_and_told() -> None:
    job = Job(1, 8, there=2)
    assert [point.workers for point in job.run()] == [1, 2]
    [left_out] = job.profile.left_out
    assert says(left_out, "more than 2 workers", "the job has 2")


@pytest.mark.parametrize(
    ("low", "high", "batches", "named"),
    [(0, 2, 0, "MIN"), (3, 2, 0, "MIN"), (5, 8, 0, "only 4"), (1, 2, 20_000, "10000")],
)
def test_a_range_that_cannot_be_measured_is_refused(low: int, high: int, batches: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Profile(low, high, 4, 0.0, batches)


def test_a_size_that_does_not_come_about_is_left_out_after_a_while() -> None:
    profile = Profile(1, 2, 2, 0.0)
    profile.trains(1, ["a", "b"], 0.0, already=True)
    profile.trains(2, ["a"], 1.0)  # b has died
    assert profile.tick(SIZE_WITHIN_S) == ""
    assert says(profile.tick(SIZE_WITHIN_S + 2), "2 workers", 1)
    assert profile.limit == 1


def test_a_job_that_stands_still_is_left_after_a_while() -> None:
    profile = Profile(2, 2, 2, 0.0)
    profile.trains(1, ["a", "b"], 0.0, already=True)
    assert profile.tick(SIZE_WITHIN_S + 2) == ""
    assert "no mini-batch ended" in profile.tick(STEP_WITHIN_S + 1)
    assert profile.limit is None
    assert profile.tick(2 * STEP_WITHIN_S) == ""


def test_what_was_measured_in_a_generation_that_broke_does_not_count() -> None:
    job = Job(2, 2, there=2, batches=10)
    for _ in range(12):
        job.step()
    job.generation, job.boundary = 2, 0
    job.profile.trains(2, job.workers, job.now)
    for _ in range(14):
        job.step()
    assert job.profile.points == ()
    job.step()
    assert job.profile.points[0].batches == 10


def test_mini_batches_that_some_worker_has_not_told_of_are_passed_over() -> None:
    profile = Profile(2, 2, 2, 0.0, batches=10)
    profile.trains(1, ["a", "b"], 0.0)
    for index in range(1, 31):
        for worker in ("a", "b"):
            if (worker, index) not in (("a", 8), ("b", 11)):
                profile.steps(worker, 1, index, [0.1], [0.2], 8, 1.0)
    assert profile.limit is None
    assert profile.points[0].batches == 10


def test_times_of_the_generation_before_that_come_late_do_not_count() -> None:
    profile = Profile(2, 2, 2, 0.0, batches=2)
    profile.trains(1, ["a", "b"], 0.0)
    for worker in ("a", "b"):
        profile.steps(worker, 1, 7, [9.0] * 20 + [0.1] * 7, [9.0] * 20 + [0.2] * 7, 8, 1.0)
    assert profile.points[0].step_s == pytest.approx(0.2)


def test_a_wide_range_is_measured_at_some_sizes_with_both_ends() -> None:
    sizes = sizes_between(2, 256)
    assert len(sizes) <= MOST_SIZES
    assert (sizes[0], sizes[-1]) == (256, 2)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert sizes_between(2, 9) == (9, 8, 7, 6, 5, 4, 3, 2)


def test_profiling_is_allowed_unless_the_user_has_turned_it_off() -> None:
    assert allowed({})
    assert not allowed({"FLEXO_PROFILE": "off"})


def test_a_job_of_units_is_measured_at_whole_units() -> None:
    profile = Profile(2, 7, 7, 0.0, unit=2)
    sizes = []
    while profile.limit is not None:
        sizes.append(profile.limit)
        profile.tick(1e6 * len(sizes))
    assert sizes == [6, 4, 2]
    with pytest.raises(ValueError, match="units of 4"):
        Profile(2, 3, 8, 0.0, unit=4)
