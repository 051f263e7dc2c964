"""The truth of Pollux' jobs: epochs, rounding, batches, and what they may tell of themselves."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_application import small_application
from traces import needs_traces

from flexo.model.measured import Source
from flexo.model.training import NodeShare
from flexo.scalability.goodput import GoodputSpeed
from flexo_simulation.pollux_profiles import Application, load_application
from flexo_simulation.pollux_training import PolluxRun, PolluxTraining

ONE = (NodeShare("a", 1),)
TWO = (NodeShare("a", 2),)
APART = (NodeShare("a", 1), NodeShare("b", 2))


@pytest.fixture(scope="module")
def small() -> Application:
    with TemporaryDirectory() as folder:
        application = small_application(Path(folder))
        application.step_times.of((1, 1), 4)  # reads what is read late
        return application


def run_to_end(run: PolluxRun, shares: tuple[NodeShare, ...], tick: float = 60.0, samples: int = 0) -> float:
    """Training time, in ticks."""
    trained = 0.0
    while not run.finished:
        assert run.time_left_s(shares, samples) < math.inf
        trained += run.advance(tick, shares, samples)
    return trained


def known(run: PolluxRun) -> GoodputSpeed:
    """What it knows of its speed, which must be something."""
    speed = run.speed()
    assert isinstance(speed, GoodputSpeed)
    return speed


def test_a_job_takes_its_steps_one_after_the_other(small: Application):
    run = PolluxTraining(small, batch=8).begin()
    assert run.time_left_s(ONE, 0) == 398  # 199 steps of 2 s
    assert run_to_end(run, ONE) == 398
    assert run.finished
    assert run.time_left_s(ONE, 0) == 0


def test_an_epoch_ends_at_a_whole_second(small: Application):
    run = PolluxTraining(small, batch=12).begin()
    # a step takes 2.5 s and is worth 1.435 of the initial ones in the first epoch, 1.427 in the second
    first_s, second_s = 100 * 2.5 / 1.43478, 99 * 2.5 / 1.42683
    assert (first_s, second_s) == pytest.approx((174.24, 173.46), abs=0.01)
    assert run.time_left_s(APART, 0) == pytest.approx(174 + second_s, abs=0.01)
    run.advance(175, APART, 0)  # the second epoch is one second old
    assert run.time_left_s(APART, 0) == pytest.approx(second_s - 1, abs=0.01)


def test_an_end_just_after_a_tick_is_noticed_in_the_next_one_and_counts_at_the_tick(small: Application):
    run = PolluxTraining(small, batch=12).begin()
    assert run.time_left_s(APART, 0) == pytest.approx(347.46, abs=0.01)
    assert run.advance(347, APART, 0) == 347
    assert not run.finished
    assert run.advance(60, APART, 0) == 0
    assert run.finished


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), st.sampled_from([ONE, TWO, APART]))
def test_it_does_not_matter_how_often_one_looks(small: Application, ticks: list[int], shares):
    at_once = run_to_end(PolluxTraining(small, batch=12).begin(), shares, tick=1e6)
    run, trained = PolluxTraining(small, batch=12).begin(), 0.0
    for tick in ticks:
        if not run.finished:
            left_s = run.time_left_s(shares, 0)
            trained += run.advance(tick, shares, 0)
            assert run.finished == (left_s <= tick)
    assert trained + (0 if run.finished else run_to_end(run, shares, tick=1e6)) == at_once


def test_without_shares_or_with_a_batch_that_nobody_measured_it_does_not_get_on(small: Application):
    run = PolluxTraining(small).begin()
    assert run.time_left_s((), 0) == math.inf
    assert run.time_left_s(TWO, 4) == math.inf
    assert run.advance(1000, TWO, 4) == 1000
    assert not run.finished
    assert run.speed() is None


def test_a_job_that_chooses_begins_with_the_smallest_batch_and_then_takes_the_best_that_it_knows(
    small: Application,
):
    run = PolluxTraining(small).begin()
    assert run.speed() is None
    run.advance(29, TWO, 0)
    assert known(run).steps.model.compute.sizes == (4,)
    assert known(run).best_batch(2, 1) > 8
    run.advance(2, TWO, 0)
    assert len(known(run).steps.model.compute.sizes) == 2


def test_a_job_that_may_choose_again_says_when_to_look(small: Application):
    run = PolluxTraining(small).begin()
    assert run.time_left_s(ONE, 0) == 200  # its first epoch; it has seen nothing yet
    run.advance(10, ONE, 0)
    assert run.time_left_s(ONE, 0) == 20


def test_a_job_chooses_again_even_if_the_time_until_then_was_rounded(small: Application):
    run = PolluxTraining(small).begin()
    run.advance(30 - 1e-9, TWO, 0)
    assert run.time_left_s(TWO, 0) > 1


def test_what_others_say_goes_before_its_own_batch(small: Application):
    run = PolluxTraining(small, batch=8).begin()
    assert run.time_left_s(ONE, 32) != run.time_left_s(ONE, 0)
    run.advance(60, ONE, 32)
    assert known(run).steps.model.compute.sizes == (16,)


def test_it_knows_only_the_step_times_that_it_has_seen(small: Application):
    run = PolluxTraining(small).begin()
    run.advance(1, ONE, 0)
    model = known(run).steps.model
    assert (model.seen_within, model.seen_between) == ((1,), ())
    assert known(run).rate(1, 1, 8) == pytest.approx(0.5)
    # nothing of the second that an exchange between nodes takes in truth
    assert known(run).rate(2, 2, 8) == pytest.approx(1 / 1.5)
    run.advance(1, APART, 0)
    assert known(run).steps.model.seen_between == (3,)
    assert known(run).rate(2, 2, 8) < 0.6


def test_it_reports_what_is_left_of_the_epochs_that_it_declared(small: Application):
    run = PolluxTraining(small, batch=8).begin()
    assert run.remaining_work() is None  # without a speed, nobody could tell what it means
    run.advance(100, ONE, 0)
    assert run.remaining_work() == pytest.approx(150)
    assert run.source is Source.PROGRESS
    silent = PolluxTraining(small, batch=8, declared=False).begin()
    silent.advance(100, ONE, 0)
    assert silent.remaining_work() is None
    assert silent.speed() is not None


def test_looking_changes_nothing(small: Application):
    run, untouched = PolluxTraining(small).begin(), PolluxTraining(small).begin()
    for shares in (ONE, TWO, APART) * 3:
        for other in (ONE, TWO, APART):
            run.time_left_s(other, 0)
            run.speed()
            run.remaining_work()
        run.advance(17, shares, 0)
        untouched.advance(17, shares, 0)
    assert run.speed() == untouched.speed()
    assert run.time_left_s(ONE, 0) == untouched.time_left_s(ONE, 0)


@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "yolov3"])
def test_choosing_its_batch_a_job_is_hardly_slower_than_with_the_best_fixed_one(name: str):
    application = load_application(needs_traces("pollux/profiles"), name)
    for shares in ((NodeShare("a", 4),), (NodeShare("a", 4), NodeShare("b", 4))):
        fixed = [
            PolluxTraining(application, batch).begin().time_left_s(shares, 0)
            for batch in application.epochs.batches
        ]
        chosen = run_to_end(PolluxTraining(application).begin(), shares)
        assert chosen < 1.25 * min(fixed)


def test_every_job_of_the_workloads_can_train_with_what_its_user_chose():
    profiles = needs_traces("pollux/profiles")
    for path in sorted(needs_traces("pollux/workloads").glob("*.csv")):
        for row in csv.DictReader(path.open()):
            application = load_application(profiles, row["application"])
            run = PolluxTraining(application, int(row["batch_size"])).begin()
            gpus = int(row["num_replicas"])
            shares = tuple(NodeShare(f"n{node}", min(4, gpus - 4 * node)) for node in range(-(-gpus // 4)))
            left_s = run.time_left_s(shares, 0)
            assert run_to_end(run, shares) == pytest.approx(left_s, abs=0.5)
