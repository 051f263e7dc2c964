"""Simulations in order of importance, as far as there is time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.registry import make
from flexo_simulation.comparison import TimeLimit, Trial, run_in_time
from flexo_simulation.generate import Recipe, generate
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario

SCENARIO = Scenario((NodeGroup(2, 4),))


class _Clock:
    """Time goes by with each look at it."""

    def __init__(self, step_s: float) -> None:
        self.now, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self._step_s
        return self.now


def ran(
    jobs: list[int], limit: TimeLimit, processes: int = 1, clock: Callable[[], float] = time.monotonic
) -> list[int]:
    """The numbers of the trials that have an outcome; a trial has so many jobs."""
    trials = [
        Trial(f"{number}", make("fifo"), generate(Recipe(jobs=count, gpus=8, seed=1)), SCENARIO)
        for number, count in enumerate(jobs)
    ]
    found: list[int] = []

    def done(number: int, outcome: SimulatedRun) -> None:
        assert len(outcome.records) == jobs[number]
        found.append(number)

    run_in_time(trials, processes, lambda number, ended, jobs: None, limit, done, clock)
    return sorted(found)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_without_a_limit_each_trial_has_its_outcome(processes: int) -> None:
    assert ran([5, 6, 7], TimeLimit(), processes) == [0, 1, 2]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_the_first_trials_run_however_late_it_is(processes: int) -> None:
    assert ran([5, 6, 7], TimeLimit(-math.inf, always=2), processes) == [0, 1]


def test_a_trial_is_not_begun_if_those_before_it_took_longer_than_what_is_left() -> None:
    clock = _Clock(1.0)
    alone = ran([5], TimeLimit(math.inf), clock=clock)
    lasted = clock.now
    assert alone == [0]
    assert ran([5, 5, 5, 5], TimeLimit(2.5 * lasted), clock=_Clock(1.0)) == [0, 1]


def test_a_trial_that_takes_longer_than_expected_is_stopped() -> None:
    looks = _Clock(0.0)
    assert ran([5, 3000], TimeLimit(math.inf), clock=looks) == [0, 1]
    assert ran([5, 3000], TimeLimit(12.0), clock=_Clock(1.0)) == [0]
