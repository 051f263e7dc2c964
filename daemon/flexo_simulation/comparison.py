"""Runs several simulations, one after the other or in processes of their own, and reports the progress of
each. Where time is limited, the important ones come first, and those that would end too late are left out."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Final

from flexo.policies.base import Policy
from flexo_simulation.engine import simulate
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

_LOOK_S: Final = 0.2
"""Seconds between two checks of the processes' progress."""

Told = Callable[[int, int, int], None]
"""Called with the number of a trial, its jobs whose story has ended, and its jobs in all."""
Done = Callable[[int, SimulatedRun], None]
"""Called with the number of a trial and its outcome, as soon as it has one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy on one workload."""

    label: str
    """The trial's name in tables: the policy's name, or what is special about the trial."""
    policy: Policy
    workload: Workload
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """When trials have to be over."""

    ends_at: float = math.inf
    """By the monotonic clock."""
    always: int = 0
    """Number of the first trials, which run to their end in any case."""

    def of(self, number: int) -> float:
        """The time until which this trial may run."""
        return math.inf if number < self.always else self.ends_at


class _OutOfTime(Exception):
    """Ends a trial that is not over in time."""


class _Queue:
    """The trials that are still to begin. Mutable."""

    def __init__(self, trials: Sequence[Trial], limit: TimeLimit, clock: Callable[[], float]) -> None:
        self._trials, self._limit, self._clock = trials, limit, clock
        self._waiting = deque(range(len(trials)))
        self._begun_at: dict[int, float] = {}
        self._lasted_s: dict[int, float] = {}

    def take(self) -> int | None:
        """The next trial that can end in time. Those before it are never begun."""
        while self._waiting:
            number = self._waiting.popleft()
            if self._clock() + self._expected_s(number) <= self._limit.of(number):
                self._begun_at[number] = self._clock()
                return number
        return None

    def ended(self, number: int) -> None:
        """Take note of how long a trial lasted."""
        self._lasted_s[number] = self._clock() - self._begun_at[number]

    def _expected_s(self, number: int) -> float:
        """As long as the longest trial so far of the same policy. Of a new policy nothing is known but that
        trials take time: as long as the shortest of another."""
        policy = self._trials[number].policy.name
        alike = [s for other, s in self._lasted_s.items() if self._trials[other].policy.name == policy]
        return max(alike) if alike else min(self._lasted_s.values(), default=0.0)


def run_trials(trials: Sequence[Trial], processes: int, told: Told) -> tuple[SimulatedRun, ...]:
    """The outcome of each trial, in their order. With one process, trials run in this one; else in child
    processes."""
    outcome_of: dict[int, SimulatedRun] = {}
    run_in_time(trials, processes, told, TimeLimit(), outcome_of.__setitem__)
    return tuple(outcome_of[number] for number in range(len(trials)))


def run_in_time(
    trials: Sequence[Trial],
    processes: int,
    told: Told,
    limit: TimeLimit,
    done: Done,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the trials, which are in order of importance, and call `done` with each outcome.

    A trial is not begun if it would not end within `limit`, to judge by those before it. One that takes
    longer than expected is stopped there. Neither has an outcome.
    """
    queue = _Queue(trials, limit, clock)
    if processes == 1 or len(trials) == 1:
        while (number := queue.take()) is not None:
            outcome = _run_until(number, trials[number], told, limit.of(number), clock)
            queue.ended(number)
            if outcome is not None:
                done(number, outcome)
        return
    _run_in_children(trials, min(processes, len(trials)), told, limit, done, queue)


def _run(number: int, trial: Trial, told: Told) -> SimulatedRun:
    def progress(ended: int, jobs: int) -> None:
        told(number, ended, jobs)

    outcome = simulate(trial.workload, trial.policy, trial.scenario, progress)
    return replace(outcome, policy=trial.label)


def _run_until(
    number: int, trial: Trial, told: Told, until: float, clock: Callable[[], float]
) -> SimulatedRun | None:
    def in_time(number: int, ended: int, jobs: int) -> None:
        if clock() > until and ended < jobs:
            raise _OutOfTime
        told(number, ended, jobs)

    try:
        return _run(number, trial, in_time)
    except _OutOfTime:
        return None


class _Family:
    """The data that forked children inherit, so that no workload has to be sent to them."""

    trials: Sequence[Trial] = ()
    ended: SynchronizedArray[int]


def _run_in_children(
    trials: Sequence[Trial], processes: int, told: Told, limit: TimeLimit, done: Done, queue: _Queue
) -> None:
    context = multiprocessing.get_context("fork")
    _Family.trials, _Family.ended = trials, context.Array("q", len(trials))
    running: dict[Future[SimulatedRun | None], int] = {}
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            while True:
                while len(running) < processes and (number := queue.take()) is not None:
                    running[pool.submit(_run_as_child, number, limit.of(number))] = number
                if not running:
                    return
                for future in wait(running, _LOOK_S, FIRST_COMPLETED).done:
                    number = running.pop(future)
                    queue.ended(number)
                    if (outcome := future.result()) is not None:
                        told(number, len(trials[number].workload.jobs), len(trials[number].workload.jobs))
                        done(number, outcome)
                for number in running.values():
                    told(number, _Family.ended[number], len(trials[number].workload.jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_as_child(number: int, until: float) -> SimulatedRun | None:
    parent = os.getppid()

    def told(_: int, ended: int, jobs: int) -> None:
        if os.getppid() != parent:  # the parent was killed: nobody waits for this any more
            os._exit(1)
        _Family.ended[number] = ended

    return _run_until(number, _Family.trials[number], told, until, time.monotonic)
