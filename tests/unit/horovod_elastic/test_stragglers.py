"""Who is slow, and whether going on without it pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.leader.stragglers import (
    Straggler,
    StragglerSettings,
    StragglerWatch,
    advice,
    leaving_pays,
)

WORKERS = ("a", "b", "c", "d")
SLOW = "c"


class Job:
    """A watched job whose workers report every few mini-batches."""

    def __init__(self, workers=WORKERS, **settings) -> None:
        self.watch = StragglerWatch(StragglerSettings(**settings))
        self.workers = workers
        self.boundary = 0
        self.generation = 1
        self.watch.trains(1, workers)

    def train(self, seconds, batches: int = 1, each: int = 1) -> list[Straggler]:
        """`seconds` of a worker's mini-batch; reports of `each` mini-batches."""
        found: list[Straggler] = []
        for _ in range(batches // each):
            self.boundary += each
            for worker in self.workers:
                times = [seconds(worker) for _ in range(each)]
                found += self.watch.steps(worker, self.generation, self.boundary, times)
        return found


def slow_by(ratio: float):
    return lambda worker: 0.1 * (ratio if worker == SLOW else 1.0)


def even(worker: str) -> float:
    return 0.1


def test_ten_slow_mini_batches_in_a_row_make_a_straggler_and_nine_do_not() -> None:
    job = Job(settle=0)
    job.train(even, 5)
    assert job.train(slow_by(2), 9) == []
    (found,) = job.train(slow_by(2), 1)
    assert (found.worker_id, found.ratio, found.batches) == (SLOW, pytest.approx(2), 10)


def test_it_is_told_once_and_again_only_after_it_was_as_fast_as_the_others() -> None:
    job = Job(settle=0)
    assert len(job.train(slow_by(2), 40)) == 1
    job.train(even, 1)
    assert len(job.train(slow_by(2), 40)) == 1


def test_one_ordinary_mini_batch_in_between_starts_the_count_anew() -> None:
    job = Job()
    job.train(even, 5)
    for _ in range(20):
        assert job.train(slow_by(3), 9) == []
        assert job.train(even, 1) == []


def test_reports_of_several_mini_batches_are_compared_one_by_one() -> None:
    job = Job(settle=0)
    job.train(even, 5, each=5)
    assert [found.worker_id for found in job.train(slow_by(2), 20, each=5)] == [SLOW]


def test_reports_that_come_at_different_times_are_compared_by_mini_batch() -> None:
    watch = StragglerWatch(StragglerSettings(settle=0))
    watch.trains(1, ("a", "b"))
    assert watch.steps("a", 1, 12, [0.1] * 12) == ()
    assert watch.steps("b", 1, 6, [0.3] * 6) == ()
    assert [found.worker_id for found in watch.steps("b", 1, 12, [0.3] * 6)] == ["b"]


def test_of_two_workers_the_slower_one_is_the_straggler() -> None:
    job = Job(("a", SLOW))
    assert [found.worker_id for found in job.train(slow_by(1.8), 20)] == [SLOW]


def test_one_worker_alone_is_never_slow() -> None:
    assert Job((SLOW,)).train(slow_by(9), 50) == []


def test_two_slow_workers_of_five_are_both_found() -> None:
    job = Job(("a", "b", "c", "d", "e"))
    found = job.train(lambda worker: 0.2 if worker in "de" else 0.1, 20)
    assert sorted(each.worker_id for each in found) == ["d", "e"]


def test_the_first_mini_batches_of_a_generation_do_not_count() -> None:
    job = Job(settle=3)
    assert job.train(slow_by(5), 12) == []
    assert len(job.train(slow_by(5), 1)) == 1


def test_a_new_generation_begins_from_nothing() -> None:
    job = Job(settle=0)
    job.train(slow_by(2), 9)
    job.generation, job.boundary = 2, 0
    job.watch.trains(2, WORKERS)
    assert job.train(slow_by(2), 9) == []
    assert job.watch.steps(SLOW, 1, 10, [9.0]) == ()
    assert len(job.train(slow_by(2), 2)) == 1


def test_differences_of_a_few_milliseconds_are_noise() -> None:
    assert Job().train(lambda worker: 0.006 if worker == SLOW else 0.002, 100) == []


def test_noise_that_hits_everybody_alike_finds_nobody() -> None:
    for seed in range(20):
        dice = random.Random(seed)
        assert Job().train(lambda worker, dice=dice: dice.lognormvariate(-2.3, 0.4), 400) == []


def test_a_straggler_is_found_through_noise() -> None:
    dice = random.Random(1)
    found = Job().train(lambda worker: slow_by(2.5)(worker) * dice.lognormvariate(0, 0.08), 60)
    assert {each.worker_id for each in found} == {SLOW}


def test_what_is_missing_of_a_mini_batch_does_not_pile_up() -> None:
    watch = StragglerWatch()
    watch.trains(1, ("a", "b"))
    for boundary in range(1, 5000):
        watch.steps("a", 1, boundary, [0.1])
    assert len(watch._times) <= 257


def test_after_a_gap_the_count_begins_anew() -> None:
    watch = StragglerWatch(StragglerSettings(settle=0))
    watch.trains(1, ("a", "b"))
    for worker, seconds in (("a", 0.1), ("b", 0.4)):
        assert watch.steps(worker, 1, 6, [seconds] * 6) == ()
        assert watch.steps(worker, 1, 16, [seconds] * 9) == ()  # the seventh was lost


@given(st.integers(2, 64), st.integers(1, 8), st.floats(1.0, 10.0))
def test_a_satellite_leaves_only_if_the_rest_trains_faster(workers: int, leaving: int, ratio: float) -> None:
    if leaving_pays(workers, leaving, ratio):
        assert (workers - leaving) * ratio > workers


@pytest.mark.parametrize(
    ("on_its_node", "base", "release", "said"),
    [
        (1, False, True, "its satellite leaves"),
        (4, False, False, "2 of 6 workers would be slower yet"),
        (1, True, False, "the base is the job's minimum"),
    ],
)
def test_the_advice_says_why(on_its_node: int, base: bool, release: bool, said: str) -> None:
    advised = advice(Straggler(SLOW, 1.8, 10), 6, on_its_node, base)
    assert advised.release is release
    assert said in advised.why
    assert "1.8 times" in advised.why
