"""Runs several simulations, one after the other or in processes of their own, and reports the progress of
each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
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


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy on one workload."""

    label: str
    """The trial's name in tables: the policy's name, or what is special about the trial."""
    policy: Policy
    workload: Workload
    scenario: Scenario


def run_trials(trials: Sequence[Trial], processes: int, told: Told) -> tuple[SimulatedRun, ...]:
    """The outcome of each trial, in their order. With one process, trials run in this one; else in child
    processes."""
    if processes == 1 or len(trials) == 1:
        return tuple(run_trial(number, trial, told) for number, trial in enumerate(trials))
    return _run_in_children(trials, min(processes, len(trials)), told)


def run_trial(number: int, trial: Trial, told: Told) -> SimulatedRun:
    """Run one trial in this process."""

    def progress(ended: int, jobs: int) -> None:
        told(number, ended, jobs)

    outcome = simulate(trial.workload, trial.policy, trial.scenario, progress)
    return replace(outcome, policy=trial.label)


class _Family:
    """The data that forked children inherit, so that no workload has to be sent to them."""

    trials: Sequence[Trial] = ()
    ended: SynchronizedArray[int]


def _run_in_children(trials: Sequence[Trial], processes: int, told: Told) -> tuple[SimulatedRun, ...]:
    context = multiprocessing.get_context("fork")
    _Family.trials, _Family.ended = trials, context.Array("q", len(trials))
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(_run_as_child, number) for number in range(len(trials))]
        try:
            _watch(trials, futures, told)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return tuple(future.result() for future in futures)


def _watch(trials: Sequence[Trial], futures: Sequence[Future[SimulatedRun]], told: Told) -> None:
    """Report progress until all trials are done. Raises what one of them raises."""
    while True:
        done = [future for future in futures if future.done()]
        for future in done:
            future.result()
        for number, ended in enumerate(_Family.ended[:]):
            told(number, ended, len(trials[number].workload.jobs))
        if len(done) == len(futures):
            return
        time.sleep(_LOOK_S)


def _run_as_child(number: int) -> SimulatedRun:
    parent = os.getppid()

    def told(_: int, ended: int, jobs: int) -> None:
        if os.getppid() != parent:  # the parent was killed: nobody waits for this any more
            os._exit(1)
        _Family.ended[number] = ended

    return run_trial(number, _Family.trials[number], told)
