"""Goodput from what a job has seen: batches, the noise of gradients, step times, and all together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.model.ranges import Range
from flexo.scalability.allreduce import PassTime, RingTime, StepModel, fit
from flexo.scalability.goodput import GoodputSpeed
from flexo.scalability.gradient_noise import GradientStatistics
from flexo.scalability.learner import Learner
from flexo.scalability.local_batch import BatchLimits, Passes, split
from flexo.scalability.step_times import Observation, Setting, StepTime

LIMITS = BatchLimits(initial=128, largest=4096, local=Range(32, 1024))
NOISY = GradientStatistics(square=1.0, variance=10.0)


def truth(setting: Setting, *, gamma: float = 1.0, ring_s: float = 0.05) -> StepTime:
    """A pass of 10 ms and 1 ms a sample; a ring that is four times as slow between nodes."""
    compute = 0.01 + 0.001 * setting.local
    ring = ring_s * 2 * (setting.workers - 1) / setting.workers * (4 if setting.nodes > 1 else 1)
    step = (compute**gamma + ring**gamma) ** (1 / gamma)
    return StepTime(step, step - compute)


def seen(*settings: tuple[int, int, int], **ways) -> list[Observation]:
    """Observations by workers, nodes and samples a pass."""
    return [Observation(Setting(*each), truth(Setting(*each), **ways)) for each in settings]


def step_s(model: StepModel, workers: int, several: bool, local: int) -> float:
    return float(model.step_s(np.array(float(workers)), several, np.array(float(local))))


# Batches.


def test_a_batch_is_split_evenly_and_rounded_up():
    assert split(1000, 6, LIMITS) == Passes(local=167, accumulated=0)
    assert split(1000, 6, LIMITS).batch(6) == 1002


def test_what_does_not_fit_on_a_worker_is_accumulated():
    assert split(4096, 2, LIMITS) == Passes(local=1024, accumulated=1)


def test_one_worker_with_more_than_the_initial_batch_accumulates_at_least_once():
    assert split(128, 1, LIMITS) == Passes(128, 0)
    assert split(200, 1, LIMITS) == Passes(100, 1)


@given(st.integers(1, 4096), st.integers(1, 128))
def test_no_split_goes_over_the_largest_batch_or_what_fits_on_a_worker(batch: int, workers: int):
    passes = split(batch, workers, LIMITS)
    assert passes.batch(workers) <= LIMITS.largest
    assert 0 <= passes.local <= LIMITS.local.max
    if LIMITS.largest % workers == 0:
        assert passes.batch(workers) >= batch


# Gradients.


def test_a_larger_batch_is_worth_as_much_more_as_gradients_are_noise():
    assert GradientStatistics(square=0.0, variance=1.0).gain(8) == pytest.approx(8)
    assert GradientStatistics(square=1.0, variance=0.0).gain(8) == 1
    assert GradientStatistics(square=0.0, variance=0.0).gain(8) == 1
    assert NOISY.gain(2) == pytest.approx(11 / 6)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e3))
def test_a_step_is_worth_between_one_and_the_scale_of_its_batch(square, variance, scale):
    gradients = GradientStatistics(square, variance)
    assert 1 - 1e-9 <= gradients.gain(scale) <= scale * (1 + 1e-9)
    assert gradients.gains(np.array([scale]))[0] == pytest.approx(gradients.gain(scale))


# Step times.


@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
def test_the_model_finds_again_what_step_times_were_made_of(gamma: float):
    model = fit(
        seen(
            (1, 1, 32),
            (1, 1, 512),
            (2, 1, 32),
            (4, 1, 512),
            (8, 2, 32),
            (8, 2, 512),
            (16, 4, 64),
            gamma=gamma,
        )
    )
    assert model.gamma == gamma
    for workers, nodes, local in itertools.product((2, 4), (1, 2), (32, 100, 512)):
        true = truth(Setting(workers, nodes, local), gamma=gamma).step_s
        assert step_s(model, workers, nodes > 1, local) == pytest.approx(true, rel=0.1)


def test_a_single_worker_is_taken_to_scale_perfectly():
    model = fit(seen((1, 1, 128)))
    assert step_s(model, 4, False, 128) == step_s(model, 16, True, 128) == pytest.approx(0.138)


def test_half_of_the_only_pass_that_was_seen_is_taken_to_be_constant():
    model = fit(seen((1, 1, 128)))
    assert step_s(model, 1, False, 256) == pytest.approx(0.138 * 1.5)
    assert step_s(model, 1, False, 1) >= 0.138 / 2


def test_nodes_are_taken_to_be_a_little_farther_apart_until_an_exchange_between_them_was_seen():
    near = fit(seen((1, 1, 128), (2, 1, 128)))
    assert near.between == near.within.times(1.1)
    far = fit(seen((1, 1, 128), (2, 1, 128), (8, 2, 128)))
    assert far.between.ring_s == pytest.approx(4 * far.within.ring_s, rel=0.05)


def test_a_ring_sends_twice_its_share_and_one_worker_nothing():
    ring = RingTime(ring_s=1.0, latency_s=0.1)
    assert ring.at(np.array([1.0, 2.0, 4.0])) == pytest.approx([0.0, 1.1, 1.8])


def test_passes_are_linear_between_and_beyond_what_was_seen():
    passes = PassTime((10.0, 20.0), (1.0, 1.5), per_sample_s=0.05)
    assert passes.at(np.array([5.0, 10.0, 15.0, 40.0])) == pytest.approx([0.75, 1.0, 1.25, 2.5])


settings = st.builds(
    Setting, workers=st.integers(1, 32), nodes=st.just(1), local=st.integers(1, 1000)
) | st.builds(Setting, workers=st.integers(2, 64), nodes=st.just(2), local=st.integers(1, 1000))
observations = st.dictionaries(
    settings,
    st.builds(lambda compute, sync: StepTime(compute + sync, sync), st.floats(1e-4, 10), st.floats(1e-6, 10)),
    min_size=1,
    max_size=8,
)


@given(observations, st.integers(1, 64), st.booleans(), st.integers(1, 2000))
def test_whatever_was_seen_and_in_whatever_order_steps_take_time(table, workers, several, local):
    model = fit([Observation(setting, time) for setting, time in table.items()])
    assert model == fit([Observation(setting, time) for setting, time in reversed(table.items())])
    assert hash(model) is not None
    assert 0 < step_s(model, workers, several, local) < np.inf
    assert model.error(workers, several) >= 0


def test_errors_grow_with_the_distance_from_what_was_seen():
    model = fit(seen((1, 1, 128), (2, 1, 128), (4, 1, 128)))
    errors = [model.error(workers, False) for workers in (4, 8, 16)]
    assert errors == sorted(errors)
    assert model.error(8, True) > errors[-1]


# All together.


def learned(
    *settings: tuple[int, int, int], gradients: GradientStatistics = NOISY, batch: int = 0
) -> Learner:
    learner = Learner(LIMITS, batch)
    learner.saw_gradients(gradients)
    for each in seen(*settings):
        learner.saw_step(each.setting, each.time)
    return learner


def test_before_its_first_step_a_job_knows_no_speed_and_takes_the_smallest_batch():
    learner = Learner(LIMITS)
    assert learner.speed() is None
    assert (learner.choose_batch(1, 1), learner.choose_batch(8, 2)) == (128, 256)


def test_what_is_not_news_changes_nothing():
    learner = learned((1, 1, 128))
    speed = learner.speed()
    assert not learner.saw_step(Setting(1, 1, 128), truth(Setting(1, 1, 128)))
    learner.saw_gradients(NOISY)
    assert learner.speed() is speed
    assert learner.saw_step(Setting(2, 1, 128), truth(Setting(2, 1, 128)))
    assert learner.speed() != speed


def test_equal_observations_are_equal_speeds():
    once, again = learned((1, 1, 128), (2, 1, 64)).speed(), learned((2, 1, 64), (1, 1, 128)).speed()
    assert once == again
    assert hash(once) == hash(again)


def test_the_rate_is_that_of_the_best_batch():
    speed = learned((1, 1, 128), (2, 1, 256), (8, 2, 128)).speed()
    assert speed is not None
    for workers, nodes in ((1, 1), (4, 1), (8, 2), (64, 16), (100, 25)):
        best = speed.best_batch(workers, nodes)
        assert speed.rate(workers, nodes) == pytest.approx(speed.rate(workers, nodes, best), rel=1e-9)
        assert all(
            speed.rate(workers, nodes, batch) <= speed.rate(workers, nodes) * 1.01
            for batch in np.geomspace(LIMITS.smallest(workers), LIMITS.largest, 50).astype(int).tolist()
        )


def test_a_cautious_job_expects_less_where_it_has_not_been():
    hoping = learned((1, 1, 128), (2, 1, 128)).speed()
    assert hoping is not None
    cautious = GoodputSpeed(hoping.steps, hoping.gradients, caution=1.0)
    kept = [cautious.rate(*size) / hoping.rate(*size) for size in ((2, 1), (4, 1), (16, 4))]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == pytest.approx(1 / (1 + hoping.error(16, 4)))
    assert cautious.best_batch(16, 4) == hoping.best_batch(16, 4)


def test_noisier_gradients_make_larger_batches_worth_while():
    calm = learned((1, 1, 128), (8, 2, 128), gradients=GradientStatistics(10.0, 1.0)).speed()
    noisy = learned((1, 1, 128), (8, 2, 128), gradients=GradientStatistics(1.0, 1000.0)).speed()
    assert calm is not None
    assert noisy is not None
    assert calm.best_batch(8, 2) < noisy.best_batch(8, 2)
    assert calm.rate(8, 2) / calm.rate(1, 1) < noisy.rate(8, 2) / noisy.rate(1, 1)


def test_a_job_that_accepts_one_batch_only_has_no_other():
    speed = learned((4, 1, 128), batch=512).speed()
    assert speed is not None
    assert speed.best_batch(4, 1) == 512
    assert speed.rate(4, 1) == speed.rate(4, 1, 512)
    assert speed.rate(17, 5) == 0  # less than 32 samples each


def test_more_workers_than_the_largest_batch_can_be_split_among_do_not_run():
    speed = learned((1, 1, 128)).speed()
    assert speed is not None
    assert speed.rate(128, 32) > 0
    assert (speed.rate(129, 33), speed.best_batch(129, 33)) == (0, 0)
    assert speed.rate(0, 0) == 0
    assert speed.rate(2, 3) == 0
